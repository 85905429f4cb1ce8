"""Live displays on small and large terminals, signals under them, and file names and documents that try to drive one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

HIP = Path(sys.executable).with_name("hip")
TEXT = "The library was founded in 1911 by Maria Lindqvist, a printer. "
READY = r"\x1b\[\?2004h"  # the editor waits for a line
SIZES = [(10, 80), (50, 200)]
ODD = "第一章 [/b] :book: " + "long " * 30
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def env(tmp_path, tiny_model) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_", "LC_")) and name != "NO_COLOR"}
    (tmp_path / "book.txt").write_text(TEXT * 40)
    (tmp_path / "long.txt").write_text(TEXT * 20_000)
    folders = {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CACHE_DIR": str(tmp_path / "cache")}
    return kept | folders | {"HIP_MODEL": str(tiny_model), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TERM": "xterm"}


@pytest.fixture
def spawn(tmp_path, env):
    def start(*arguments: str, size: tuple[int, int] = (10, 80), **extra: str) -> pexpect.spawn:
        return pexpect.spawn(str(HIP), list(arguments), cwd=tmp_path, env=env | extra, dimensions=size, timeout=120)

    return start


def too_wide(shown: str, columns: int) -> list[str]:
    """Frames of a live display that would not fit its line; what is printed for good may wrap."""
    from rich.cells import cell_len

    frames = [ESCAPES.sub("", part) for part in re.split(r"[\r\n]+", shown) if "━" in part or "⠋" in part]
    return [frame for frame in frames if cell_len(frame) > columns]


COMMANDS = {
    "reading": (["extract", "BOOK", "--no-marks"], "pages"),
    "prefill": (["ask", "book.txt", "Who?", "--max-tokens", "3", "--no-session"], "tokens"),
    "summarize": (["summarize", "book.txt", "--spans", "2", "--max-tokens", "3"], "tokens"),
    "inspect": (["inspect", "BOOK"], "pages"),
    "batch": (["batch", "book.txt", "--prompt", "Who?", "--max-tokens", "2", "--out", "rows.jsonl"], "files"),
}


@pytest.mark.parametrize("size", SIZES, ids=["80x10", "200x50"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_live_display_fits_and_is_taken_away(spawn, tmp_path, pdf, name, size):
    arguments, unit = COMMANDS[name]
    book = f"{ODD}.pdf".replace("/", "∕")
    if "BOOK" in arguments:
        (tmp_path / book).write_bytes(pdf.book(*[TEXT] * 400))
    child = spawn(*[book if one == "BOOK" else one for one in arguments], size=size)
    shown = child.read().decode("utf-8", "replace")
    child.close()
    assert child.exitstatus == 0, shown
    assert "━" in shown and unit in shown
    assert too_wide(shown, size[1]) == []
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0  # the cursor is there again
    assert shown.rfind("━") < shown.rfind("\x1b[2K")  # the last bar was wiped away


@pytest.mark.parametrize("size", SIZES, ids=["80x10", "200x50"])
def test_measurements_fit_too(spawn, size):
    """Bars while they run, tables when they are done; the line about the machine is as long as its names."""
    child = spawn("bench", "--context", "256", "--part", "layer", "--minutes", "1", "--device", "cpu", size=size)
    shown = child.read().decode("utf-8", "replace")
    child.close()
    assert child.exitstatus == 0 and "one layer" in shown and too_wide(shown, size[1]) == []
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0


@pytest.mark.parametrize("size", SIZES, ids=["80x10", "200x50"])
def test_a_chat_fits_too(spawn, size):
    child = spawn("chat", "book.txt", "--max-tokens", "3", "--no-session", size=size)
    child.expect(READY)
    child.send("Who?\r")
    child.expect(READY)
    child.send("\x04")
    rest = child.read().decode("utf-8", "replace")
    child.close()
    assert child.exitstatus == 0 and "Traceback" not in rest and too_wide(rest, size[1]) == []


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), (signal.SIGTERM, 143)])
def test_an_interrupted_bar_leaves_the_terminal_as_it_was(spawn, key, code):
    child = spawn("ask", "long.txt", "Who?", "--no-session")
    child.expect("prefill")
    child.send(key) if isinstance(key, str) else child.kill(key)
    shown = child.before.decode() + child.after.decode() + child.read().decode("utf-8", "replace")
    child.close()
    assert (child.exitstatus, "Traceback" in shown) == (code, False), shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_at_once(env, tmp_path, number):
    """The first stops at the next chunk, the second waits for nothing; neither leaves a traceback or half an object."""
    child = subprocess.Popen(
        [HIP, "ask", "long.txt", "Who?", "--json"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(6)
    began = time.monotonic()
    child.send_signal(number)
    time.sleep(0.02)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert child.returncode in (128 + number, -number) and out == b"" and b"Traceback" not in err


HOSTILE = "a\x1b]52;c;QQ==\x07b\r\x08\x9bc \u202ed \x1b[2J [/INST] arr[i] = :book: end"


def test_a_hostile_document_cannot_drive_a_terminal(spawn, tmp_path, pdf):
    """C5: text, its name, its warnings and its quotes."""
    (tmp_path / "evil\x1b]0;x\x07.txt").write_text(HOSTILE)
    for arguments in (
        ["extract", "evil\x1b]0;x\x07.txt"],
        ["inspect", "--warnings", "evil\x1b]0;x\x07.txt"],
        ["extract", "gone\x1b[2J.txt"],
    ):
        child = spawn(*arguments, TERM="dumb")
        shown = child.read().decode("utf-8", "replace")
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]|\r(?!\n)", shown), shown
        assert "\\x1b]0;x\\x07.txt" in shown or "\\x1b[2J" in shown


@pytest.mark.parametrize("name", [b"-x.txt", b"\xff\xfe.txt", b"a\nb.txt", "ž 第.txt".encode(), b" .txt", b"[/bold].txt"])
@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"PYTHONIOENCODING": "latin-1"}], ids=["C", "UTF-8", "latin-1"])
def test_odd_names_in_every_locale(env, tmp_path, name, locale):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.parent.mkdir(exist_ok=True)
    path.write_text("words é 第")
    command = [os.fsencode(HIP), b"extract", b"--json", b"--", name]
    done = subprocess.run(command, env=env | locale, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0 and "words é 第" in done.stdout.decode(), done.stderr
