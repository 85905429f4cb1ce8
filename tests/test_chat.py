"""Chat: turns that stay in memory, commands, Ctrl-C and Ctrl-D on a terminal, and lines from a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
import torch

from hipcli.decoding import last_logits
from hipcli.engine import Engine
from hipcli.model import load_model
from hipcli.settings import AttentionSettings

HIP = Path(sys.executable).with_name("hip")
READY = r"\x1b\[\?2004h"  # the editor waits for a line
PREFIX, SUFFIX, NEXT = list(range(10, 90)), [5, 6, 7], [8, 9, 11, 12]


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model, dtype="float32")


@pytest.fixture
def engine(model):
    """Holds PREFIX, which is longer than what dense attention covers."""
    engine = Engine(model, AttentionSettings(dense_below=0), chunk_tokens=64)
    engine.prefill(PREFIX)
    yield engine
    engine.close()


def logits(engine, suffix):
    held = engine.cached_len
    engine._read_suffix([*engine._unread, *suffix])
    found = last_logits(engine.model, engine._hidden).clone()
    engine._cut(held)
    return found


@pytest.mark.parametrize("ended_by", ["length", "closing", "stop"])
def test_a_kept_turn_is_what_reading_it_would_give(engine, model, ended_by):
    free = list(engine.generate(SUFFIX, max_tokens=6))
    stop = frozenset(free[4:5]) if ended_by == "stop" else frozenset()
    ids = engine.generate(SUFFIX, max_tokens=6, stop_ids=stop, keep=True)
    said = [next(ids), next(ids)] if ended_by == "closing" else list(ids)
    ids.close()
    assert said == free[: len(said)] and len(said) == {"length": 6, "closing": 2, "stop": free.index(free[4])}[ended_by]
    assert engine.cached_len + len(engine._unread) == len(PREFIX) + len(SUFFIX) + len(said)
    engine.store.check_integrity()
    other = Engine(model, AttentionSettings(dense_below=0), chunk_tokens=64)
    other.prefill([*PREFIX, *SUFFIX, *said])
    assert torch.allclose(logits(engine, NEXT), logits(other, NEXT), atol=1e-4)
    assert not torch.allclose(logits(engine, NEXT), logits(other, [*NEXT[:-1], 13]), atol=1e-4)


def test_an_answer_that_is_not_kept_leaves_a_kept_one_alone(engine):
    list(engine.generate(SUFFIX, max_tokens=4, keep=True))
    held, unread, before = engine.cached_len, list(engine._unread), logits(engine, NEXT)
    list(engine.generate(NEXT, max_tokens=4))
    assert (engine.cached_len, engine._unread) == (held, unread)
    assert torch.equal(before, logits(engine, NEXT))


def test_rewinding_forgets_turns(engine):
    before = logits(engine, NEXT)
    list(engine.generate(SUFFIX, max_tokens=4, keep=True))
    engine.rewind(len(PREFIX))
    assert engine.cached_len == len(PREFIX) and torch.equal(before, logits(engine, NEXT))


@pytest.fixture
def env(tmp_path, tiny_model) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIP_") and name != "NO_COLOR"}
    (tmp_path / "book.txt").write_text("The library was founded in 1911 by Maria Lindqvist, a printer. " * 10)
    folders = {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CACHE_DIR": str(tmp_path / "cache")}
    return (
        kept
        | folders
        | {"HIP_MODEL": str(tiny_model), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    )


def piped(env, cwd, lines: bytes, *more: str) -> subprocess.CompletedProcess:
    command = [HIP, "chat", "book.txt", "--max-tokens", "6", *more]
    return subprocess.run(command, input=lines, capture_output=True, cwd=cwd, env=env, timeout=120)


def test_lines_of_a_pipe_are_questions_and_commands(env, tmp_path):
    lines = (
        b"/sources\nWho?\n\nWhen?\n/save talk.md\n/nope\n/reset\n/save before.md\nWhy?\n/save talk.md\n/save all.md\n/quit\nnever asked\n"
    )
    done = piped(env, tmp_path, lines)
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert "nothing was asked yet" in said and "there is no /nope" in said and "forgotten" in said
    assert "saved 2 answers to talk.md" in said and "exists and is left as it is" in said
    saved = (tmp_path / "talk.md").read_text()
    assert saved.startswith("# book.txt\n\n## Who?\n\n") and "\n## When?\n" in saved and "never" not in saved
    # what the model forgets is still the user's
    assert (tmp_path / "before.md").read_text() == saved and "saved 3 answers to all.md" in said
    assert (tmp_path / "all.md").read_text().startswith(saved + "\n---\n\n## Why?\n")
    assert (tmp_path / "talk.md").stat().st_mode & 0o777 == 0o600
    assert b"\x1b" not in done.stdout + done.stderr and b"> " not in done.stdout


def test_a_pipe_in_json_shows_that_turns_are_remembered(env, tmp_path):
    done = piped(env, tmp_path, b"Who?\nWho?\n/reset\nWho?\n", "--json")
    first, second, third = (json.loads(line) for line in done.stdout.decode().splitlines())
    assert done.stderr == b"" and [row["turn"] for row in (first, second, third)] == [1, 2, 1]
    held = [row["conversation_tokens"] for row in (first, second, third)]
    assert first["answer"] == third["answer"] and 0 < held[0] == held[2] < held[1] <= 3 * held[0]


def test_refusals(env, tmp_path):
    assert piped(env, tmp_path, b"\xff\n").returncode == 3
    command = [HIP, "chat", "-"]
    assert subprocess.run(command, input=b"text", capture_output=True, cwd=tmp_path, env=env, timeout=60).returncode == 2
    assert subprocess.run([HIP, "chat"], capture_output=True, cwd=tmp_path, env=env, timeout=60).returncode == 2


def test_ctrl_c_stops_the_answer_and_ctrl_d_the_chat(env, tmp_path):
    child = pexpect.spawn(str(HIP), ["chat", "book.txt", "--max-tokens", "100000"], cwd=tmp_path, env=env, dimensions=(24, 80), timeout=60)
    child.expect("Ctrl-D ends")
    child.expect(READY)
    child.send("half a line")
    child.expect("half a line")
    child.send("\x03")
    child.expect(READY)
    child.send("Who?\r")
    # the answer has begun when something follows the editor's last word
    child.expect(r"\x1b\[\?2004l[^\x1b]*[!-~]{4}")
    child.sendintr()
    child.expect("the chat goes on")
    child.expect(READY)
    child.send("/sources\r")
    child.expect("Sources")
    child.expect(READY)
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    history = tmp_path / "cache" / "chat-history"
    assert "+Who?" in history.read_text() and history.stat().st_mode & 0o777 == 0o600


def test_history_and_editing_on_a_terminal(env, tmp_path):
    child = pexpect.spawn(str(HIP), ["chat", "book.txt", "--max-tokens", "3"], cwd=tmp_path, env=env, dimensions=(24, 80), timeout=60)
    child.expect(READY)
    child.send("/hepl\x7f\x7flp\r")
    child.expect("forget the conversation")
    child.expect(READY)
    child.send("\x1b[A\r")
    child.expect("forget the conversation")
    child.expect(READY)
    child.send("/quit\r")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_stdout_holds_answers_alone_under_a_terminal(env, tmp_path):
    child = pexpect.spawn("bash", ["-c", f"'{HIP}' chat book.txt --max-tokens 3 > out.txt"], cwd=tmp_path, env=env, timeout=60)
    child.expect(READY)
    child.send("Who?\r")
    child.expect(READY)
    child.send("\x04")
    child.expect(pexpect.EOF)
    out = (tmp_path / "out.txt").read_bytes()
    assert b"\x1b" not in out and b"> " not in out and out.endswith(b"\n")
