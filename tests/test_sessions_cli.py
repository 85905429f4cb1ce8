"""Sessions through the installed command: restarts, kills, many processes at once, full and read-only disks."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hipcli.sessions import Library
from hipcli.sessions.folder import damage

HIP = Path(sys.executable).with_name("hip")
WORDS = "library founded printer lamp harbour keeper storm ledger bridge orchard".split()


def prose(words: int, seed: int = 0) -> str:
    source = random.Random(seed)
    return " ".join(f"{source.choice(WORDS)} {source.randrange(1000)}" for _ in range(words // 2))


@pytest.fixture
def env(tmp_path, tiny_model) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    (tmp_path / "book.txt").write_text(prose(600))
    (tmp_path / "more.txt").write_text(prose(200, seed=1))
    folders = {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CACHE_DIR": str(tmp_path / "cache")}
    return kept | folders | {"HIP_MODEL": str(tiny_model), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def hip(tmp_path, env):
    def run(*arguments: str, **extra: str) -> subprocess.CompletedProcess:
        return subprocess.run([HIP, *arguments], capture_output=True, cwd=tmp_path, env=env | extra, timeout=120)

    return run


@pytest.fixture
def ask(hip):
    """The record of `hip ask … --json`; the run must not fail."""

    def run(*sources: str, **extra: str) -> dict:
        done = hip("ask", *sources, "-q", "Who?", "--max-tokens", "8", "--json", **extra)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# what a plain answer leaves out of a random model's babble
CLEAN = {code: None for code in (*range(9), *range(11, 32), *range(127, 160))}


def shown(done: subprocess.CompletedProcess) -> str:
    return done.stdout.decode().strip()


def counts(record):
    return record["session"]["reused_tokens"], record["session"]["prefilled_tokens"]


def test_a_second_question_reads_nothing_again(hip, ask):
    first, second = ask("book.txt"), ask("book.txt")
    total = first["session"]["tokens"]
    assert total > 2048 and counts(first) == (0, total) and counts(second) == (total, 0)
    assert first["answer"] == second["answer"] and second["timing"]["prefill_seconds"] == 0
    assert ask("book.txt", HIP_CACHE_DIR="elsewhere")["answer"] == first["answer"]
    plain = hip("ask", "book.txt", "When?", "--max-tokens", "4")
    assert f"{total:,} of {total:,} tokens reused".encode() in plain.stderr
    many = hip("ask", "book.txt", "--questions", "-", "--json", "--max-tokens", "4")
    assert many.returncode == 2
    alone = json.loads(hip("ask", "book.txt", "Who?", "--no-session", "--max-tokens", "8", "--json").stdout)
    assert alone["session"] is None and alone["answer"] == first["answer"]
    summary = json.loads(hip("summarize", "book.txt", "--json", "--spans", "1", "--max-tokens", "8").stdout)
    assert counts(summary) == (total, 0)


def test_a_file_added_at_the_end_is_read_alone(ask):
    alone, both = ask("book.txt"), ask("book.txt", "more.txt")
    reused, prefilled = counts(both)
    assert reused == alone["session"]["tokens"] // 1024 * 1024 > 0
    assert reused + prefilled == both["session"]["tokens"]
    assert ask("book.txt", "more.txt", HIP_CACHE_DIR="elsewhere")["answer"] == both["answer"]


def test_names(hip, ask, tmp_path):
    assert hip("ask", "book.txt", "Who?", "--session", "mine", "--max-tokens", "4").returncode == 0
    listed = json.loads(hip("sessions", "ls", "--json").stdout)["sessions"]
    assert [row["names"] for row in listed] == [["mine"]] and listed[0]["complete"]
    preset = ["--preset", "cpu:keep=4K:window=2K"]
    for change, words in (
        (["--dense"], "attention: mode was"),
        (["--system", "Be brief."], "prompt was"),
        (preset, "attention: preset was"),
    ):
        refused = hip("ask", "book.txt", "Who?", "--session", "mine", *change)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert f"'mine' was made of something else: {words}".encode() in refused.stderr
    (tmp_path / "book.txt").write_text("Another book.")
    assert b"document was" in hip("ask", "book.txt", "Who?", "--session", "mine").stderr
    assert hip("ask", "book.txt", "Who?", "--session", "a", "--no-session").returncode == 2


def test_the_commands_on_sessions(hip, ask, tmp_path):
    assert b"no sessions yet" in hip("sessions", "ls").stderr
    key = ask("book.txt")["session"]["key"]
    assert hip("sessions", "path").stdout.decode() == f"{tmp_path / 'cache' / 'sessions'}\n"
    assert key.encode() in hip("sessions", "ls").stdout
    shown = json.loads(hip("sessions", "show", key[:5], "--json").stdout)
    assert shown["complete"] and shown["fields"]["dtype"] and shown["sources"] == ["book.txt"]
    assert b"attention plan" in hip("sessions", "show", key).stdout
    assert hip("sessions", "verify").stdout.decode() == f"{key}  ok\n"
    asked = hip("sessions", "prune", "--max-size", "1KB")
    assert asked.returncode == 2 and b"--yes" in asked.stderr
    (tmp_path / "cache" / "sessions" / "stray").mkdir()
    (tmp_path / "cache" / "sessions" / "stray" / "file").write_bytes(b"12345")
    assert json.loads(hip("sessions", "ls", "--json").stdout)["strays"][0]["size_bytes"] == 5
    assert b"no session, and left as it is" in hip("sessions", "ls").stderr
    dry = json.loads(hip("sessions", "prune", "--max-size", "1KB", "--dry-run", "--json").stdout)
    assert dry["removed"] == [key] and dry["freed_bytes"] > 0
    assert json.loads(hip("sessions", "prune", "--older-than", "1h", "-y", "--json").stdout)["removed"] == []
    os.utime(tmp_path / "cache" / "sessions" / key / "manifest.json", (1, 1))
    assert json.loads(hip("sessions", "prune", "--older-than", "30d", "-y", "--json").stdout)["removed"] == [key]
    key = ask("book.txt")["session"]["key"]
    (tmp_path / "cache" / "sessions" / f"{key}.1.gone").mkdir()
    left = hip("sessions", "prune", "--older-than", "30d", "-y").stderr
    # what hip did not make stays
    assert b"stray (5 B)" in left and b".gone" not in left and (tmp_path / "cache" / "sessions" / "stray" / "file").exists()
    assert hip("sessions", "rm").returncode == hip("sessions", "rm", "nope").returncode == 2
    assert hip("sessions", "rm", key).returncode == 0 and Library(tmp_path / "cache").sessions() == []
    for wrong in (["prune", "--max-size", "much"], ["prune", "--older-than", "old"], ["show", ""]):
        assert hip("sessions", *wrong).returncode == 2


def test_a_flipped_byte_is_found_by_both(hip, ask, tmp_path):
    whole = ask("book.txt")
    path = sorted((tmp_path / "cache" / "sessions" / whole["session"]["key"]).glob("*.safetensors"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    verified = hip("sessions", "verify")
    assert verified.returncode == 1 and path.name.encode() in verified.stdout
    asked = hip("ask", "book.txt", "Who?", "--max-tokens", "8")
    assert asked.returncode == 0 and b"damaged" in asked.stderr and b"read again from token 1,024 on" in asked.stderr
    assert shown(asked) == whole["answer"].translate(CLEAN)
    assert hip("sessions", "verify").returncode == 0


def killed(env, cwd, moment) -> None:
    """Start a question, and kill it without warning once `moment(child)` returns."""
    child = subprocess.Popen([HIP, "ask", "book.txt", "Who?", "--quiet"], env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    moment(child)
    child.kill()
    child.communicate()


def test_killed_at_any_moment_the_next_run_goes_on(env, ask, tmp_path):
    """Kills spread over prefill and writing; each later run resumes behind what is on the disk, and says the same."""
    (tmp_path / "book.txt").write_text(prose(3000))
    whole = ask("book.txt", HIP_CACHE_DIR="elsewhere")
    library, source, reached = Library(tmp_path / "cache"), random.Random(0), []

    def saved() -> int:
        held = library.get(whole["session"]["key"])
        return held.manifest.saved_tokens if held and held.manifest else 0

    for wanted in (0, 2048, 5120):

        def moment(child):
            while child.poll() is None and saved() < wanted:
                time.sleep(0.005)
            time.sleep(source.uniform(0, 0.1))

        killed(env, tmp_path, moment)
        reached.append(saved())
    assert reached == sorted(reached) and reached[-1] >= 5120
    resumed = ask("book.txt")
    assert counts(resumed) == (reached[-1], whole["session"]["tokens"] - reached[-1])
    assert resumed["answer"] == whole["answer"] and counts(ask("book.txt"))[1] == 0


def test_eight_processes_on_one_cold_document(env, tmp_path, hip):
    command = [HIP, "ask", "book.txt", "Who?", "--max-tokens", "8", "--json"]
    children = [subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
    done = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0] * 8, done
    records = [json.loads(out) for out, _ in done]
    total = records[0]["session"]["tokens"]
    assert len({record["answer"] for record in records}) == 1
    assert sorted(counts(record) for record in records) == [(0, total)] + [(total, 0)] * 7
    assert len(json.loads(hip("sessions", "ls", "--json").stdout)["sessions"]) == 1


def test_who_waits_says_so(env, tmp_path, ask):
    key = ask("book.txt")["session"]["key"]
    library = Library(tmp_path / "cache")
    library.remove(library.get(key))
    lock = library.lock(key)
    lock.acquire()
    child = subprocess.Popen([HIP, "ask", "book.txt", "Who?"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert b"waiting for it" in child.stderr.readline()
    finally:
        lock.release()
    assert child.wait(timeout=60) == 0


def mounted(folder: Path, options: str) -> None:
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("this user may not mount a file system")


@pytest.mark.parametrize("size", ["64k", "320k"])
def test_a_full_disk_costs_one_warning(hip, ask, tmp_path, size):
    """64k has no room for a chunk; 320k for one or two and not for all, which the budget does not tell."""
    mounted(small := tmp_path / "small", f"size={size}")
    try:
        extra = {"HIP_CACHE_DIR": str(small), "HIP_CACHE_SIZE": "1GB" if size == "320k" else ""}
        done = hip("ask", "book.txt", "Who?", "--max-tokens", "8", **extra)
        assert done.returncode == 0 and done.stderr.count(b"warning") == 1 and b"is not saved" in done.stderr
        assert shown(done) == ask("book.txt")["answer"].translate(CLEAN)
        again = ask("book.txt", **extra)
        # what there was room for is whole, and is used
        assert again["answer"] == ask("book.txt")["answer"] and (counts(again)[0] >= 1024) == (size == "320k")
        assert hip("sessions", "verify", **extra).returncode == 0
    finally:
        subprocess.run(["umount", str(small)])


def test_a_read_only_cache_is_read_and_not_written(hip, ask, tmp_path):
    mounted(cache := tmp_path / "fixed", "size=50m")
    try:
        extra = {"HIP_CACHE_DIR": str(cache)}
        first = ask("book.txt", **extra)
        subprocess.run(["mount", "-o", "remount,ro", str(cache)], check=True)
        again = hip("ask", "book.txt", "Who?", "--max-tokens", "8", **extra)
        assert again.returncode == 0 and b"warning" not in again.stderr and b"tokens reused" in again.stderr
        assert shown(again) == first["answer"].translate(CLEAN)
        other = hip("ask", "more.txt", "Who?", "--max-tokens", "8", **extra)
        assert other.returncode == 0 and other.stderr.count(b"warning") == 1
    finally:
        subprocess.run(["umount", str(cache)])


def test_an_interrupted_prefill_keeps_its_chunks(env, tmp_path, ask):
    (tmp_path / "book.txt").write_text(prose(8000))
    child = subprocess.Popen(
        [HIP, "ask", "book.txt", "Who?"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not list((tmp_path / "cache").glob("sessions/*/manifest.json")):
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and err.endswith(b"Interrupted\n")
    assert not re.search(rb"Traceback|warning", err)
    (session,) = Library(tmp_path / "cache").sessions()
    assert session.manifest.saved_tokens >= 1024 and damage(session) is None
