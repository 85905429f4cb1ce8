"""Batches: every file once, bad ones listed, and a run goes on from whatever ended the last."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pexpect
import pytest

from hipcli.batching.files import find_files
from hipcli.batching.job import BatchJob, chosen_questions
from hipcli.batching.parquet import parquet_rows
from hipcli.batching.run import batch
from hipcli.console import Terminal
from hipcli.errors import IncompleteError, InputError, UsageError
from hipcli.options import RunOptions
from hipcli.questions import Question

HIP = Path(sys.executable).with_name("hip")
TEXT = "The library was founded in 1911 by Maria Lindqvist, a printer. "
WHO, WHEN = Question("Who founded it?"), Question("When?", ("1911",))
# of a row, what may differ between two runs that do the same
MEASURED = ("timing", "hip_version")


@pytest.fixture
def papers(tmp_path, pdf, zips):
    """A folder of files of seven formats, long ones between short ones, and three that cannot be read."""
    folder = tmp_path / "papers"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text(TEXT * 40)
    (folder / "b.md").write_text(f"# History\n\n{TEXT}\n\n# Rooms\n\nIt has nine rooms.\n")
    (folder / "c.html").write_text(f"<html><body><h1>History</h1><p>{TEXT}</p></body></html>")
    (folder / "d.pdf").write_bytes(pdf.book(TEXT, "It has nine rooms."))
    (folder / "e.epub").write_bytes(zips.epub({"one.xhtml": f"<p>{TEXT}</p>" * 30}))
    (folder / "deep/f.docx").write_bytes(zips.docx(f"<w:p><w:r><w:t>{TEXT}</w:t></w:r></w:p>"))
    (folder / "deep/g.srt").write_text(f"1\n00:00:01,000 --> 00:00:04,000\n{TEXT}\n")
    (folder / "torn.pdf").write_bytes(pdf.book(TEXT)[:300])
    (folder / "fake.epub").write_text("no book")
    (folder / "deep/scan.pdf").write_bytes(pdf.build([pdf.stream(b"")]))
    return folder


GOOD = {"a.txt", "b.md", "c.html", "d.pdf", "e.epub", "deep/f.docx", "deep/g.srt"}
BAD = {"torn.pdf", "fake.epub", "deep/scan.pdf"}


@pytest.fixture
def job(tmp_path, tiny_model, papers, monkeypatch):
    """Makes a job over the papers, or over other sources."""
    monkeypatch.setenv("HIP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def make(*sources: str, questions=(WHO, WHEN), out="rows.jsonl", **more) -> BatchJob:
        options = RunOptions(sources or ("papers",), model=str(tiny_model), max_tokens=4, offline=True, no_session=True)
        return BatchJob(options, tuple(questions), out, **more)

    return make


@pytest.fixture
def readable(papers):
    """Without the files that cannot be read, each of which costs a second."""
    for name in BAD:
        (papers / name).unlink()
    return papers


def run(job: BatchJob) -> int:
    """Do a job; the number of files that failed."""
    try:
        batch(job, Terminal(quiet=True))
    except IncompleteError as fault:
        return int(fault.message.split()[0])
    return 0


def rows(path="rows.jsonl"):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def failed(path="rows.jsonl.failed"):
    return {row["path"]: row["error"] for row in rows(path)} if os.path.exists(path) else {}


def asked(found):
    return sorted((row["document"]["path"], row["question"]) for row in found)


def same(row):
    return {name: value for name, value in row.items() if name not in MEASURED}


def test_every_file_once_and_bad_ones_listed(job):
    assert run(job()) == len(BAD)
    assert asked(rows()) == sorted((f"papers/{name}", question.text) for name in GOOD for question in (WHO, WHEN))
    assert set(failed()) == {f"papers/{name}" for name in BAD} and {error["code"] for error in failed().values()} == {3}
    assert "no text" in failed()["papers/deep/scan.pdf"]["message"]
    assert all(row["right"] in (True, False) for row in rows() if row["question"] == "When?")
    before = Path("rows.jsonl").read_bytes(), Path("rows.jsonl.failed").read_bytes()
    assert run(job(retry_failed=True)) == len(BAD)
    assert (Path("rows.jsonl").read_bytes(), Path("rows.jsonl.failed").read_bytes()) == before


def test_a_row_does_not_depend_on_the_files_before_it(job):
    """Nothing of a document stays behind in the engine, whatever the lengths: each file alone gives the same."""
    run(job(*(f"papers/{name}" for name in sorted(GOOD))))
    for name in sorted(GOOD):
        run(job(f"papers/{name}", out="alone.jsonl"))
    run(job(*(f"papers/{name}" for name in sorted(GOOD, reverse=True)), out="reversed.jsonl"))
    key = lambda row: (row["document"]["path"], row["question"])  # noqa: E731
    first, alone, back = (sorted(map(same, rows(path)), key=key) for path in ("rows.jsonl", "alone.jsonl", "reversed.jsonl"))
    assert first == alone == back and len(first) == 2 * len(GOOD)


def test_what_is_new_is_asked_and_nothing_else(job, readable):
    run(job(questions=[WHO]))
    count = len(GOOD)
    run(job())
    assert len(rows()) == 2 * count
    (readable / "new.txt").write_text(TEXT)
    (readable / "b.md").write_text("Another text.")
    run(job())
    assert [row["document"]["path"] for row in rows()[2 * count :]] == ["papers/b.md"] * 2 + ["papers/new.txt"] * 2
    other = job()
    run(replace(other, options=replace(other.options, max_tokens=3)))
    assert len(rows()) == 2 * (count + 2) + 2 * (count + 1)


def test_a_bad_file_that_was_mended_is_answered_and_no_longer_listed(job, papers, pdf):
    run(job())
    (papers / "torn.pdf").write_bytes(pdf.book(TEXT))
    assert run(job()) == len(BAD) - 1 and "papers/torn.pdf" not in failed()
    (papers / "fake.epub").unlink()
    (papers / "deep/scan.pdf").unlink()
    # those of another job stay listed
    assert run(job()) == 0 and set(failed()) == {"papers/fake.epub", "papers/deep/scan.pdf"}
    assert run(job("papers", "papers/fake.epub")) == 1
    assert failed()["papers/fake.epub"]["message"] == "no such file: papers/fake.epub"


def test_pages_that_cannot_be_read_fail_a_file_under_strict(job, papers, pdf):
    pages = [pdf.stream(pdf.lines(b"The library was founded in 1911.")), pdf.packed(pdf.lines(b"Lost words") * 40, damaged=True)]
    (papers / "half.pdf").write_bytes(pdf.build(pages))
    half = job("papers/half.pdf")
    assert run(replace(half, options=replace(half.options, strict=True))) == 1 and not rows()
    assert failed()["papers/half.pdf"]["code"] == 6
    # strict changes no answer, so it is the same run: what failed stays failed until it is asked for
    assert run(half) == 1 and run(replace(half, retry_failed=True)) == 0 and len(rows()) == 2 and not failed()


def test_a_range_of_pages_that_one_file_lacks_fails_that_file(job):
    both = job("papers/d.pdf", "papers/c.html")
    assert run(replace(both, options=replace(both.options, pages="2"))) == 1
    assert list(failed()) == ["papers/c.html"] and asked(rows())[0][0] == "papers/d.pdf"


@pytest.fixture
def command(tmp_path, tiny_model):
    """A batch of 6 files as a user's command, slow enough to be stopped half-way, and its environment."""
    for number in range(6):
        (tmp_path / f"f{number}.txt").write_text(f"Volume {number}. {TEXT}" * 12)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    env |= {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CACHE_DIR": str(tmp_path / "cache"), "HIP_MODEL": str(tiny_model)}
    (tmp_path / "q.txt").write_text("Who?\nWhen?\n")
    # paced by the answers, whatever the machine
    return [str(HIP), "batch", "f*.txt", "--questions", "q.txt", "--max-tokens", "30"], env | {"HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


EACH = sorted((f"f{number}.txt", question) for number in range(6) for question in ("Who?", "When?"))


def test_a_killed_run_goes_on(tmp_path, command):
    parquet = pytest.importorskip("pyarrow.parquet")
    arguments, env = [*command[0], "--out", "rows.parquet", "--json"], command[1]
    lines = tmp_path / "rows.parquet.rows"
    first = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=env)
    while first.poll() is None and (not lines.exists() or lines.read_bytes().count(b"\n") < 3):
        time.sleep(0.01)
    first.kill()
    assert first.communicate(timeout=60) == (b"", b"") and first.returncode == -9
    before = lines.read_bytes().count(b"\n")
    assert 3 <= before < 12
    second = subprocess.run(arguments, capture_output=True, cwd=tmp_path, env=env, timeout=120)
    told = json.loads(second.stdout)
    assert (second.returncode, second.stderr, told["done"], told["files"], told["rows_added"]) == (0, b"", 6, 6, 12 - before)
    assert asked(map(json.loads, parquet.read_table(tmp_path / "rows.parquet")["record"].to_pylist())) == EACH
    assert not lines.exists()


def test_a_bar_is_shown_and_an_interrupted_run_goes_on(tmp_path, command):
    arguments, env = [*command[0], "--out", "rows.jsonl"], command[1] | {"TERM": "xterm"}
    child = pexpect.spawn(arguments[0], arguments[1:], cwd=str(tmp_path), env=env, dimensions=(24, 120), timeout=100)
    child.expect(r"batch.*[12]/6 files.* left")
    child.sendintr()
    child.expect("stopped: [1-5] of 6 files are done, and their rows are kept; the same command goes on")
    child.expect(pexpect.EOF)
    assert child.wait() == 130
    before = (tmp_path / "rows.jsonl").read_bytes()
    assert before.endswith(b"\n") and 2 <= before.count(b"\n") < 12
    second = subprocess.run(arguments, capture_output=True, cwd=tmp_path, env=env, timeout=120)
    assert (second.returncode, second.stdout) == (0, b"") and b"6 of 6 files done" in second.stderr
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(before) and asked(rows(tmp_path / "rows.jsonl")) == EACH


def test_a_parquet_file_holds_what_the_lines_hold(job, readable):
    parquet = pytest.importorskip("pyarrow.parquet")
    run(job())
    assert run(job(out="rows.parquet")) == 0
    table = parquet.read_table("rows.parquet").to_pylist()
    assert [same(json.loads(row["record"])) for row in table] == [same(row) for row in rows()]
    for row, whole in zip(table, rows()):
        assert (row["path"], row["question"], row["answer"]) == (whole["document"]["path"], whole["question"], whole["answer"])
        assert row["citations"] == whole["citations"] and row["right"] == whole.get("right")
    (readable / "new.txt").write_text(TEXT)
    run(job(out="rows.parquet"))
    # JSON can name half a character, which Parquet cannot hold
    run(job("papers/new.txt", questions=[Question("Why \ud83d?")], out="rows.parquet"))
    after = parquet.read_table("rows.parquet").to_pylist()
    assert after[: len(table)] == table and len(after) == len(table) + 3 and after[-1]["question"] == "Why \\ud83d?"
    before = Path("rows.parquet").stat().st_mtime_ns
    run(job("papers/new.txt", questions=[Question("Why \ud83d?")], out="rows.parquet"))
    assert Path("rows.parquet").stat().st_mtime_ns == before
    assert sorted(Path().glob("rows.parquet*")) == [Path("rows.parquet")]


def test_a_parquet_file_is_whole_or_not_there(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    with pytest.raises(KeyboardInterrupt), parquet_rows(str(path)):
        raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.parquet.rows"]
    (tmp_path / "rows.parquet.rows").unlink()
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="is not a Parquet file"), parquet_rows(str(path)):
        pass
    assert path.read_bytes() == b"something else"


def test_files_are_found_once(tmp_path, papers, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (papers / "link.txt").symlink_to("a.txt")
    terminal = Terminal(quiet=True)
    everything = [file.path for file in find_files(["papers"], terminal)]
    assert set(everything) == {f"papers/{name}" for name in GOOD | BAD} and everything[-1].startswith("papers/deep/")
    again = find_files(["papers/a.txt", "papers", "./papers/a.txt", "papers/link.txt", str(papers / "b.md")], terminal)
    assert sorted(file.path for file in again) == sorted(everything)
    assert [file.path for file in find_files(["papers/*.md", "papers/**/*.srt"], terminal)] == ["papers/b.md", "papers/deep/g.srt"]
    (tmp_path / "[1].txt").write_text(TEXT)
    assert [file.path for file in find_files(["[1].txt"], terminal)] == ["[1].txt"]
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen([sys.executable, "-c", "open('pipe', 'w').write('text')"], cwd=tmp_path)
    assert "read again" in find_files(["pipe"], terminal)[0].fault.message and writer.wait(30) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"out": "rows.csv"}, "--out must end in"),
        ({"workers": 2}, "--workers is for --engine ray"),
        ({"engine": "ray", "workers": 0}, "--workers must be at least 1"),
        ({"max_context": 100}, "--max-context is for --export"),
        ({"export": "openai-batch", "out": "rows.parquet"}, "--export writes a .jsonl file"),
        ({"export": "openai-batch", "engine": "ray"}, "--export writes a .jsonl file"),
    ],
    ids=str,
)
def test_what_does_not_go_together(job, more, words):
    with pytest.raises(UsageError, match=words):
        job(**more)


def test_what_is_refused_before_anything_is_spent(job, tmp_path):
    cases = [(job("-"), "standard input"), (job("papers/*.doc"), "no file matches")]
    cases += [(replace(job(), options=replace(job().options, **wrong)), words) for wrong, words in (
        ({"password_file": "nowhere"}, "password file"), ({"encoding": "klingon"}, "encoding"), ({"preset": "nope"}, "preset"),
    )]  # fmt: skip
    for wrong, words in cases:
        with pytest.raises(UsageError, match=words):
            batch(wrong, Terminal(quiet=True))
    shutil.rmtree(tmp_path / "papers")
    (tmp_path / "papers").mkdir()
    with pytest.raises(InputError, match="no file to read"):
        batch(job(), Terminal(quiet=True))
    for prompt, questions, words in ((None, None, "give a --prompt"), ("a", "b", "not both"), (" ", None, "empty")):
        with pytest.raises(UsageError, match=words):
            chosen_questions(prompt, questions)
    assert not list(tmp_path.glob("rows*"))
