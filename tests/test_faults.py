"""docs/faults.md: every row names tests that exist or says why there is none. And the recipes that no other file has a place for."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HIP = Path(sys.executable).with_name("hip")
ROW = re.compile(r"^\| ([A-Z]\d+) \| \[(.+?)\]\((https://\S+)\) \| (.*?) \| ?(.*?) ?\|$", re.M)
ROWS = {row[1]: row for row in ROW.finditer((ROOT / "docs/faults.md").read_text(encoding="utf-8"))}
COUNTS = {"P": 11, "S": 14, "E": 11, "T": 10, "C": 14}


def test_the_table_has_every_fault():
    assert {group: sum(name[0] == group for name in ROWS) for group in COUNTS} == COUNTS


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_tests_that_exist_or_says_why_not(name):
    tests = re.findall(r"`(\S+?)::(\S+?)`", ROWS[name][4])
    assert tests or len(ROWS[name][5]) > 30
    for file, function in tests:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file} has no {function}"


@pytest.fixture
def env(tmp_path, tiny_model) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    folders = {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CACHE_DIR": str(tmp_path / "cache")}
    return kept | folders | {"HIP_MODEL": str(tiny_model), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def hip(tmp_path, env):
    def run(*arguments: str, **extra: str) -> subprocess.CompletedProcess:
        return subprocess.run([HIP, *arguments], capture_output=True, cwd=tmp_path, env=env | extra, timeout=120)

    return run


ASK = ("-q", "Who?", "--max-tokens", "4", "--json")


def test_the_engines_of_a_text_are_part_of_its_session(hip, tmp_path, pdf):
    """P3: another version of an engine may give other text."""
    from importlib.metadata import version

    (tmp_path / "a.pdf").write_bytes(pdf.book(*["The library was founded in 1911 by Maria Lindqvist. "] * 20))
    key = json.loads(hip("ask", "a.pdf", *ASK).stdout)["session"]["key"]
    manifest = (tmp_path / "cache" / "sessions" / key / "manifest.json").read_text()
    readers = json.loads(re.search(r'"readers": (\{.*?\})', manifest, re.S)[1])
    assert {name: readers[name] for name in ("pypdf", "pypdfium2")} == {name: version(name) for name in ("pypdf", "pypdfium2")}


def test_a_text_with_nul_and_broken_characters_is_stored_and_read_again(hip, tmp_path, pdf):
    """P6 and P7: NUL and lone surrogates of a font's map, through extraction, JSON, tokens and a session."""
    letters = b"<61> <0000>\n<62> <D835>\n<63> <D835DC00>"
    cmap = b"begincmap 1 begincodespacerange <00> <FF> endcodespacerange\n3 beginbfchar\n%s\nendbfchar endcmap" % letters
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 4 0 R >>"
    page = pdf.stream(pdf.lines(*[b"xayb zc"] * 40))
    (tmp_path / "a.pdf").write_bytes(pdf.build([page] * 8, extra=[pdf.stream(cmap), font], resources=b"/Font << /F1 5 0 R >>"))
    pages = json.loads(hip("extract", "a.pdf", "--json").stdout)["pages"]
    assert pages[0]["text"].splitlines()[0] == "xy\ufffd z\U0001d400"
    first, again = (json.loads(hip("ask", "a.pdf", *ASK).stdout) for _ in range(2))
    assert again["session"]["reused_tokens"] == first["session"]["tokens"] > 1000 and again["answer"] == first["answer"]


def test_click_is_never_imported():
    """C14: typer brings its own copy of click, and others bring another; only typer's public names are used."""
    for path in [*(ROOT / "hipcli").rglob("*.py"), *(ROOT / "kernels").rglob("*.py"), *(ROOT / "cache").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "click" or name.startswith("typer._") for name in names), path


def test_an_unexpected_fault_shows_no_secret(hip, tmp_path):
    """C16: neither a local variable nor the source line of a fault is printed."""
    lines = [
        "import hipcli.input",
        "def read(*given, **named):",
        "    token = 'tok-local'",
        "    raise KeyError(1) if 'tok-line' else token",
    ]
    (tmp_path / "sitecustomize.py").write_text("\n".join([*lines, "hipcli.input.read = read"]))
    (tmp_path / "a.txt").write_text("words")
    done = hip("extract", "a.txt", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and b"unexpected error: KeyError" in done.stderr and b"tok-" not in done.stderr + done.stdout
    debug = hip("extract", "a.txt", PYTHONPATH=str(tmp_path), HIP_DEBUG="1")
    assert (
        b"Traceback" in debug.stderr and b"tok-line" in debug.stderr and b"tok-local" not in debug.stderr
    )  # asked for: source lines, and still no variables


NO_LOCKS = """import filelock
class NoLock(filelock.FileLock):
    def _acquire(self):
        import os
        self._context.lock_file_fd = os.open(os.devnull, os.O_RDONLY)
    def _release(self):
        import os
        fd, self._context.lock_file_fd = self._context.lock_file_fd, None
        os.close(fd)
filelock.FileLock = NoLock
"""


def test_processes_without_working_locks_end_with_one_whole_session(hip, tmp_path, env):
    """C18: on some network disks a lock locks nothing."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_LOCKS)
    (tmp_path / "book.txt").write_text("The library was founded in 1911 by Maria Lindqvist, a printer. " * 100)
    command = [HIP, "ask", "book.txt", *ASK]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    extra = {"PYTHONPATH": str(tmp_path / "site")}
    children = [subprocess.Popen(command, env=env | extra, cwd=tmp_path, **pipes) for _ in range(4)]
    done = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0] * 4, done
    assert len({json.loads(out)["answer"] for out, _ in done}) == 1
    assert hip("sessions", "verify").returncode == 0
    again = json.loads(hip("ask", "book.txt", *ASK).stdout)
    assert again["session"]["reused_tokens"] > 0 and again["answer"] == json.loads(done[0][0])["answer"]
