"""Loaders: programs of the user's that read what hip cannot, or otherwise. Real programs, run on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hipcli.errors import InputError, UsageError
from hipcli.readers import read_document
from hipcli.readers.content import ReadOptions
from hipcli.readers.loader import loader_format
from hipcli.readers.source import open_source

HIP = Path(sys.executable).with_name("hip")
UPPER = "import sys; print(open(sys.argv[1], encoding='utf-8').read().upper().replace('|', '\\f'), end='')"


@pytest.fixture
def upper(tmp_path) -> str:
    """A command that prints a file in capitals, with a page's end for each bar."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "my upper.py").write_text(UPPER)
    return f"'{sys.executable}' '{tmp_path / 'tools' / 'my upper.py'}' {{path}}"


def command(code: str) -> str:
    return f"'{sys.executable}' -c \"{code}\" {{path}}"


def test_a_loader_reads_files_of_its_suffix_and_form_feeds_end_pages(tmp_path, upper):
    for name in ("a.odt", "-x; touch made $(touch made).odt", "é [b].ODT"):
        (tmp_path / name).write_text("first|second é")
        document = read_document([str(tmp_path / name)], loaders={"odt": upper})
        assert [page.text for page in document.pages] == ["FIRST", "SECOND É"]
        assert document.sources[0].format == f"loader: {upper}"
    assert not list(tmp_path.rglob("made"))


def test_a_loader_wins_over_hips_own_reader_and_a_type_over_the_loader(tmp_path, upper, pdf):
    (tmp_path / "a.md").write_text("# words")
    assert read_document([str(tmp_path / "a.md")], loaders={"md": upper}).pages[0].text == "# WORDS"
    assert read_document([str(tmp_path / "a.md")], loaders={"md": upper}, type="markdown").pages[0].text == "# words"
    assert read_document([str(tmp_path / "a.md")], loaders={"txt": upper}).pages[0].text == "# words"


def test_folders_and_archives_hold_files_for_loaders(tmp_path, zips):
    size = command("import os, sys; print(sys.argv[1][-4:], os.path.getsize(sys.argv[1]), 'bytes')")
    binary = b"PK\3\4\0\0\0 an odt is a zip file"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.odt").write_bytes(binary)
    (tmp_path / "docs" / "b.txt").write_text("text")
    (tmp_path / "docs.zip").write_bytes(zips.zip({"a.odt": binary, "b.txt": "text"}))
    for name in ("docs", "docs.zip"):
        assert len(read_document([str(tmp_path / name)]).sources) == 1
        pages = read_document([str(tmp_path / name)], loaders={"odt": size}).pages
        assert [page.text.strip() for page in pages] == [f".odt {len(binary)} bytes", "text"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('line one\\n\\x1b[31mno such table')", r"ended with exit status 1: \\x1b\[31mno such table"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal 9"),
        ("pass", "holds no text|has no pages"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)) * 9)", "printed is no text"),
        ("import sys; sys.stdout.write('x' * 3_000_000)", "printed more than 1 MiB"),
        ("print(input())", "exit status 1: EOFError"),
    ],
)
def test_what_goes_wrong_is_one_sentence(tmp_path, code, says):
    path = tmp_path / "a.odt"
    path.write_text("words")
    with pytest.raises(InputError, match=says) as fault:
        if "3_000_000" in code:
            loader_format(command(code), most_bytes=1 << 20).read(open_source(str(path)), ReadOptions())
        else:
            read_document([str(path)], loaders={"odt": command(code)})
    assert fault.value.message.isprintable() and "a.odt" in fault.value.message


def test_a_program_that_is_not_there_is_named(tmp_path):
    (tmp_path / "a.odt").write_text("words")
    with pytest.raises(InputError, match="its loader, nowhere, is not installed") as fault:
        read_document([str(tmp_path / "a.odt")], loaders={"odt": "nowhere {path}"})
    assert "hip config show" in fault.value.hint


def test_a_loader_that_hangs_ends_with_what_it_started(tmp_path):
    import psutil

    path = tmp_path / "a.odt"
    path.write_text("words")
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(601)']); time.sleep(601)"
    began = time.monotonic()
    with pytest.raises(InputError, match="took longer than 1 s and was stopped"):
        loader_format(command(child), seconds=1.0).read(open_source(str(path)), ReadOptions())
    assert time.monotonic() - began < 10
    left = [process for process in psutil.process_iter(["cmdline"]) if "time.sleep(601)" in " ".join(process.info["cmdline"] or [])]
    assert psutil.wait_procs(left, timeout=10)[1] == []


@pytest.fixture
def hip(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    env |= {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CONFIG": str(tmp_path / "hip.toml"), "HIP_OFFLINE": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([HIP, *arguments], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)

    return run


def test_the_settings_keep_loaders(hip, tmp_path, upper):
    (tmp_path / "hip.toml").write_text("# mine\nmax_tokens = 9\n")
    (tmp_path / "a.odt").write_text("words")
    assert hip("extract", "--no-marks", "a.odt").stdout == "words\n"
    assert hip("config", "set", "loaders.odt", upper).returncode == 0
    assert hip("extract", "--no-marks", "a.odt").stdout == "WORDS\n"
    assert f"loaders.odt  {upper}  (from line 5 of the file)" in hip("config", "show").stdout
    rows = {row["key"]: row for row in json.loads(hip("config", "show", "--json").stdout)["settings"]}
    assert rows["loaders.odt"]["value"] == upper and rows["max_tokens"]["value"] == 9
    assert "# mine" in (tmp_path / "hip.toml").read_text()
    assert hip("config", "unset", "loaders.odt").returncode == 0
    assert hip("extract", "--no-marks", "a.odt").stdout == "words\n"
    assert "is not set" in hip("config", "unset", "loaders.odt").stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('loaders = "odt2txt"', "line 1: loaders must be a table"),
        ("[loaders]\n\nodt = 3", "line 3: loaders.odt must be a command"),
        ('[loaders]\nodt = "odt2txt"', "in which {path} stands for the file"),
        ('[loaders]\nodt = "{path}"', "in which {path} stands for the file"),
        ('[loaders]\nodt = "a \'{path}"', "must be a command"),
        ('[loaders]\n"../x" = "a {path}"', "must name a file's suffix"),
    ],
)
def test_a_wrong_loader_in_the_file_is_named_with_its_line(hip, tmp_path, text, says):
    (tmp_path / "hip.toml").write_text(text)
    (tmp_path / "a.txt").write_text("words")
    done = hip("extract", "a.txt")
    assert (done.returncode, done.stdout) == (2, "") and says in done.stderr


def test_a_wrong_loader_is_not_kept(hip, tmp_path):
    for key, value in (("loaders.odt", "odt2txt"), ("loaders.", "a {path}"), ("loaders.o/t", "a {path}")):
        assert hip("config", "set", key, value).returncode == 2
    assert not (tmp_path / "hip.toml").exists()


def test_no_folder_of_documents_names_a_loader(hip, tmp_path, upper):
    """The file of settings is the user's; one that lies beside the documents is a document."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / ".hip.toml").write_text(f'[loaders]\ntxt = "{upper}"\n')
    (tmp_path / "docs" / "a.txt").write_text("words")
    assert "words" in hip("extract", "--no-marks", "docs").stdout


def test_unknown_loader_names_raise_usage_errors():
    from hipcli.config_keys import check_loader

    with pytest.raises(UsageError):
        check_loader("", "a {path}", "loaders.")
