"""Streams, terminals, signals and locales, through the installed command and a tiny real model."""

from __future__ import annotations

import json
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
HOSTILE = "[/INST] arr[i] = :book: C:\\[tmp]\x1b]52;c;QQ==\x07\r\b\x9b31m \u202eevil\u2066 " + "x" * 300 + "\tend"


@pytest.fixture
def env(tmp_path, request) -> dict[str, str]:
    """A clean environment; the working folder holds a short and a long document."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_", "LC_", "PYTHON")) and name != "NO_COLOR"}
    (tmp_path / "book.txt").write_text(TEXT * 10)
    (tmp_path / "long.txt").write_text(TEXT * 20_000)
    if "tiny_model" in request.fixturenames:
        kept["HIP_MODEL"] = str(request.getfixturevalue("tiny_model"))
    return kept | {
        "HIP_DATA_DIR": str(tmp_path / "data"),
        "HIP_CACHE_DIR": str(tmp_path / "cache"),
        "HIP_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TERM": "xterm",
    }


@pytest.fixture
def shell(tmp_path, env):
    """Runs a bash line in which `hip` is the installed command."""

    def run(line: str, **extra: str) -> subprocess.CompletedProcess:
        script = f'hip() {{ "{HIP}" "$@"; }}; {line}'
        command = ["bash", "-c", script]
        return subprocess.run(command, capture_output=True, cwd=tmp_path, env=env | extra, stdin=subprocess.DEVNULL, timeout=120)

    return run


@pytest.fixture
def terminal(tmp_path, env):
    """Runs a command under a terminal of 80 × 10 and returns what it showed."""

    def run(command: str, arguments: list[str], **extra: str) -> str:
        child = pexpect.spawn(command, arguments, cwd=tmp_path, env=env | extra, dimensions=(10, 80), timeout=120)
        shown = child.read().decode("utf-8", "replace")
        child.close()
        assert child.exitstatus == 0, shown
        return shown

    return run


WRITE = "from hipcli.console import AnswerWriter\nw = AnswerWriter()\nfor piece in {pieces!r}: w.write(piece)\nw.finish()"


def test_a_hostile_answer_cannot_drive_a_terminal(terminal):
    shown = terminal(sys.executable, ["-c", WRITE.format(pieces=[HOSTILE])])
    assert not re.search(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown.replace("\r\n", "\n"))
    assert "\\x1b]52;c;QQ==\\a\\r\\b\\x9b31m \\u202eevil\\u2066" in shown
    assert shown.startswith("[/INST] arr[i] = :book: C:\\[tmp]")


def test_a_pipe_gets_the_text_without_controls(shell, env):
    done = subprocess.run([sys.executable, "-c", WRITE.format(pieces=list(HOSTILE))], env=env, capture_output=True)
    assert done.stdout.decode() == re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", HOSTILE) + "\n"


@pytest.mark.parametrize("pieces", [["a"], ["a\n\n"], [" \n", "a", "\n", "\n"], ["\na", " "]])
def test_an_answer_ends_with_one_newline(env, pieces):
    done = subprocess.run([sys.executable, "-c", WRITE.format(pieces=pieces)], env=env, capture_output=True)
    assert done.stdout == b"a\n"


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_no_encoding_breaks_the_output(shell, tmp_path, locale):
    (tmp_path / "odd.txt").write_text("café 日本 ☃ \U0001f4d6")
    assert shell("hip extract --no-marks odd.txt", **locale).returncode == 0
    record = json.loads(shell("hip extract --json odd.txt", **locale).stdout)
    assert record["pages"][0]["text"].strip() == "café 日本 ☃ \U0001f4d6"


def test_a_live_bar_only_on_a_capable_terminal(terminal, tiny_model):
    command = ["ask", "book.txt", "Who founded the library?", "--max-tokens", "3", "--no-session"]
    live = terminal(str(HIP), command)
    assert "\x1b[" in live and "tokens" in live and "Sources" in live
    for quiet in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = terminal(str(HIP), command, **quiet)
        assert "\x1b" not in plain and "prefill" in plain
    assert "\x1b" not in terminal(str(HIP), [*command, "--quiet"])


def test_markup_in_a_file_name_is_only_text(terminal, tmp_path, tiny_model):
    (tmp_path / "a[").mkdir()
    (tmp_path / "a[" / "b] :book: \x1b[31m.txt").write_text(TEXT)
    shown = terminal(str(HIP), ["inspect", "a[/b] :book: \x1b[31m.txt"])
    assert ":book: \\x1b[31m.txt" in shown and "\x1b[31m.txt" not in shown


def test_json_stays_clean_beside_a_live_bar(tmp_path, env, tiny_model):
    line = f"'{HIP}' ask book.txt 'Who?' --max-tokens 3 --json > out.json"
    child = pexpect.spawn("bash", ["-c", line], cwd=tmp_path, env=env, timeout=120)
    child.expect(pexpect.EOF)
    assert json.loads((tmp_path / "out.json").read_text())["schema_version"] == 1


@pytest.mark.parametrize("line", ["hip extract long.txt | head -c 1", "hip extract --json long.txt | true", "hip --help | true"])
def test_a_closed_pipe_ends_the_work_silently(shell, line):
    done = shell(f"{line}; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_answer_into_a_closed_pipe_stops(shell, tiny_model):
    began = time.monotonic()
    done = shell("hip ask book.txt 'Who?' --max-tokens 1000000 --quiet | head -c 1; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert time.monotonic() - began < 90


@pytest.mark.parametrize("line", ["hip extract book.txt > /dev/full", "hip extract book.txt >&-", "hip --version > /dev/full"])
def test_an_unwritable_stdout_is_said(shell, line):
    done = shell(line)
    assert done.returncode == 7 and done.stderr.startswith(b"hip: cannot write") and b"Traceback" not in done.stderr


def test_a_closed_stderr_costs_nothing_but_messages(shell):
    for to in ("2>&-", "2>/dev/full"):
        done = shell(f"hip extract book.txt {to}")
        assert done.returncode == 0 and TEXT.encode() in done.stdout


def test_stdin_is_a_document_like_any_other(shell):
    named, piped = shell("hip extract --no-marks book.txt"), shell("cat book.txt | hip extract --no-marks -")
    assert named.stdout == piped.stdout != b""
    slow = shell("(sleep 4; cat book.txt) | hip extract --no-marks -")
    assert slow.stdout == named.stdout and b"standard input" in slow.stderr
    closed = shell("hip extract - <&-")
    assert closed.returncode == 3 and b"closed" in closed.stderr


def interrupt(arguments, env, cwd, *, moment, number=signal.SIGINT, stdin=subprocess.DEVNULL):
    """Start hip in a session of its own, signal it once `moment` has passed, and return code, stdout, stderr."""
    child = subprocess.Popen(
        [HIP, *arguments],
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    seen = moment(child) or (b"", b"")
    os.killpg(child.pid, number)
    out, err = child.communicate(timeout=60)
    return child.returncode, seen[0] + out, seen[1] + err


def first_line_on_stderr(child):
    return b"", child.stderr.readline()


def first_byte_on_stdout(child):
    return child.stdout.read(1), b""


@pytest.mark.parametrize("delay", [0.5, 1.0, 2.0, 4.0])
def test_interrupted_at_any_time(env, tmp_path, tiny_model, delay):
    code, out, err = interrupt(["ask", "long.txt", "Who?"], env, tmp_path, moment=lambda child: time.sleep(delay))
    assert (code, out) == (130, b"")
    assert err.splitlines()[-1] == b"Interrupted" and b"Traceback" not in err


def test_interrupted_while_waiting_for_stdin(env, tmp_path):
    code, out, err = interrupt(["extract", "-"], env, tmp_path, moment=first_line_on_stderr, stdin=subprocess.PIPE)
    assert (code, out) == (130, b"") and err.endswith(b"\nInterrupted\n")


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGINT, 130, b"Interrupted"), (signal.SIGTERM, 143, b"Terminated")])
def test_interrupted_prefill(env, tmp_path, tiny_model, number, code, word):
    done, out, err = interrupt(["ask", "long.txt", "Who?"], env, tmp_path, moment=first_line_on_stderr, number=number)
    assert (done, out) == (code, b"")
    assert err.splitlines() == ["prefill …".encode(), word]


def test_interrupted_answer_is_kept_and_json_stays_empty(env, tmp_path, tiny_model):
    code, out, err = interrupt(["ask", "book.txt", "Who?", "--max-tokens", "1000000"], env, tmp_path, moment=first_byte_on_stdout)
    assert code == 130 and out.endswith(b"\n") and out.strip() and b"Traceback" not in err
    code, out, err = interrupt(["ask", "long.txt", "Who?", "--json"], env, tmp_path, moment=lambda child: time.sleep(3))
    assert (code, out) == (130, b"")
    assert json.loads(err)["error"] == {"code": 130, "message": "Interrupted", "hint": None}
