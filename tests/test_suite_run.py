"""`hip bench --suite` with a random model: every suite end to end, resumption, refusals; and the scorings' own arithmetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.suite.scoring import decode, judge, one_pass

HIP = Path(sys.executable).with_name("hip")
SAMPLES = Path(__file__).resolve().parent.parent / "samples"
SUITES = {"ruler": 11, "kv": 1, "passkey": 2, "babi": 3, "mrcr": 2}


@pytest.fixture
def bench(tiny_model, tmp_path):
    # the program may be installed without its source folder: it finds the samples where it is run
    (tmp_path / "samples").symlink_to(SAMPLES)
    env = os.environ | {"HIP_MODEL": str(tiny_model), "HIP_DATA_DIR": str(tmp_path / "data"), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [HIP, "bench", "--device", "cpu", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=300, text=True, check=False)

    return run


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_suite_from_end_to_end_and_resumption(bench, tmp_path):
    arguments = ("--suite", ",".join(SUITES), "--context", "2K", "--pack", "2", "--attention", "dense,auto", "--dense-below", "0")
    done = bench(*arguments, "--out", "rows.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    rows = lines(done.stdout)
    answers = [row for row in rows if row["row"] == "answer"]
    # eight equal requests with what answers them are longer than 2,048 characters
    assert {(row["task"], row["reason"]) for row in rows if row["row"] == "skipped"} == {("mrcr_8", "context")}
    for suite, tasks in SUITES.items():
        assert len({row["task"] for row in answers if row["suite"] == suite}) == tasks
    # the same questions of both
    asked = {
        name: [(row["task"], row["question"], row["expected"]) for row in answers if row["attention"] == name] for name in ("dense", "cpu")
    }
    assert asked["dense"] == asked["cpu"] and len(asked["cpu"]) > 25
    assert all(0 <= row["greedy_score"] <= 1 for row in answers)
    assert {row["task"] for row in answers if row["pass_right"] is None} == {"cwe"}
    for row in rows:
        if row["row"] == "haystack":
            assert 0.99 * 2048 <= row["tokens"] <= 2048 and row["questions"] == len(
                {key for key in asked["dense"] if key[0] == row["task"]}
            )
    assert {row["row"] for row in rows} == {"answer", "haystack", "skipped", "summary", "paired"}

    written = (tmp_path / "rows.jsonl").read_text()
    assert lines(written) == [row for row in rows if row["row"] in ("answer", "haystack", "skipped")]
    kept = [line for line in written.splitlines(keepends=True) if json.loads(line)["task"] != "vt"]
    (tmp_path / "rows.jsonl").write_text("".join(kept) + '{"row": "answ')
    again = bench(*arguments, "--out", "rows.jsonl", "--json")
    assert again.returncode == 0, again.stderr
    fresh = lines(again.stdout)
    assert {row["task"] for row in fresh if row["row"] in ("answer", "haystack")} == {"vt"}
    # the figures are of old and new answers together
    figures = [[row for row in of if row["row"] in ("summary", "paired")] for of in (rows, fresh)]
    assert figures[0] == figures[1]


def test_lines_tables_and_a_picture(bench, tmp_path):
    pytest.importorskip("matplotlib")
    done = bench(
        "--suite", "passkey", "--context", "1K", "--scoring", "pass", "--pack", "2", "--attention", "paper-3k,dense", "--plot", "s.svg"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(one pass) of") == 4 and "decoded)" not in done.stdout
    assert "Scores with Wilson's intervals" in done.stdout and "mean of tasks" in done.stdout and "Against dense" in done.stdout
    assert "<svg" in (tmp_path / "s.svg").read_text()


def test_a_text_too_short_is_refused_for_its_cells_only(bench, tmp_path):
    (tmp_path / "short.txt").write_text("Nothing happened here. " * 3)
    arguments = ("--suite", "ruler", "--task", "niah_single_2", "--task", "niah_single_1", "--context", "1K", "--scoring", "pass")
    done = bench(*arguments, "--attention", "dense", "--pack", "1", "--text", "short.txt", "--json")
    assert done.returncode == 0, done.stderr
    (skipped,) = [row for row in lines(done.stdout) if row["row"] == "skipped"]
    assert skipped["task"] == "niah_single_2" and skipped["reason"] == "text"
    assert skipped["skipped"].startswith("the text has only ") and skipped["skipped"].endswith(" tokens, give a longer one by --text")


def test_a_run_without_an_answer_says_why(bench, tmp_path):
    done = bench("--suite", "kv", "--context", "1K,2K", "--minutes", "0.00001", "--attention", "dense")
    assert done.returncode == 1 and done.stdout.count("time is up, give --minutes more") == 2 and "--minutes" in done.stderr
    (tmp_path / "short.txt").write_text("Nothing happened here.")
    done = bench("--suite", "babi", "--task", "qa1", "--context", "1K", "--attention", "dense", "--text", "short.txt")
    assert done.returncode == 3 and "nothing was measured: the text has only " in done.stderr


def test_what_exceeds_the_memory_says_so(tiny_model, monkeypatch):
    from hipcli import placement
    from hipcli.console import Terminal
    from hipcli.suite.catalogue import choose
    from hipcli.suite.options import SuiteOptions
    from hipcli.suite.records import Records
    from hipcli.suite.run import open_bench, rows

    options = SuiteOptions(choose(["kv"]), (1024,), ("dense", "paper-3k"), model=str(tiny_model), device="cpu", dtype="float32")
    opened = open_bench(options, float("inf"), Terminal(quiet=True))
    monkeypatch.setattr(placement, "free_bytes", lambda device, most=None: 1000)
    found = list(rows(opened, Records()))
    assert [(row["attention"], row["reason"]) for row in found] == [("dense", "memory"), ("paper-3k", "memory")]
    assert all("of memory and 1.0 KB are free" in row["skipped"] for row in found)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--suite", "x"), "--suite must be one of ruler"),
        (("--suite", "kv", "--task", "vt"), "--task must be one of kv_retrieval"),
        (("--suite", "kv", "--attention", "x"), "--attention: preset must be one of default"),
        (("--suite", "kv", "--samples", "0"), "--samples"),
        (("--suite", "kv", "--context", "x"), "--context"),
        (("--suite", "kv", "--preset", "cpu"), "--attention"),
        (("--suite", "kv", "--part", "layer"), "--part cannot be used with --suite"),
        (("--samples", "2"), "--samples needs --suite"),
        (("--dense-below", "0"), "--dense-below needs --suite"),
        (("--suite", "kv", "--plot", "x.gif"), ".svg"),
    ],
)
def test_bad_arguments(bench, arguments, word):
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and word in done.stderr


def test_a_text_that_is_not_there(bench):
    done = bench("--suite", "babi", "--text", "nowhere.txt")
    assert (done.returncode, done.stdout) == (3, "") and "nowhere.txt" in done.stderr


@pytest.fixture
def held(tiny_model):
    """An engine that holds a text, and its tokenizer."""
    from hipcli.engine import Engine
    from hipcli.model import load_model
    from hipcli.settings import AttentionSettings
    from hipcli.tokens import load_tokenizer

    tokenizer = load_tokenizer(tiny_model)
    engine = Engine(load_model(tiny_model, dtype="float32"), AttentionSettings(mode="dense"))
    engine.prefill([*tokenizer.prompt().prefix_ids, *tokenizer.encode("The library was founded in 1911 by Maria Lindqvist. " * 3)])
    yield engine, tokenizer
    engine.close()


def test_one_pass_says_what_decoding_says_of_dense_attention(held):
    from hipcli.suite.prompt import Asked
    from hipcli.suite.tasks import Question

    engine, tokenizer = held
    before = engine.cached_len
    ids = tokenizer.prompt().suffix_ids("Who founded it?")
    answer = list(engine.generate(ids, max_tokens=6))
    asked = Asked(Question("?", ("a", "b")), ids, answer, ((0, 3), (3, 6)), 6)
    assert one_pass(engine, asked).right and one_pass(engine, asked).score == 1
    for at, parts in ((0, 0.5), (4, 0.5)):
        wrong = [*answer[:at], (answer[at] + 1) % 300, *answer[at + 1 :]]
        score = one_pass(engine, Asked(asked.question, ids, wrong, ((0, 3), (3, 6)), 6))
        assert not score.right and score.score <= parts
    writing = Asked(Question("?", ("a",), opening="x"), ids, [*answer[:5], (answer[5] + 1) % 300], ((2, 6),), 6)
    assert one_pass(engine, writing).score == 0.75
    assert engine.cached_len == before


def test_decoding_is_judged_by_the_metric(held):
    from hipcli.suite.catalogue import TASKS
    from hipcli.suite.prompt import as_asked
    from hipcli.suite.tasks import Question

    engine, tokenizer = held
    asked = as_asked(Question("Who?", ("ab", "cd"), "It was"), tokenizer, tokenizer.prompt())
    assert isinstance(decode(engine, tokenizer, asked), str)
    assert judge(TASKS[0], asked.question, "AB") == judge(TASKS[0], asked.question, "cd!")
    assert judge(TASKS[0], asked.question, "cd ab").right and judge(TASKS[0], asked.question, "ab").score == 0.5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named_and_a_device_is_not_read_for_earlier_rows(bench):
    arguments = ("--suite", "passkey", "--task", "passkey", "--context", "1K", "--scoring", "pass", "--pack", "2", "--attention", "dense")
    done = bench(*arguments, "--out", "/dev/full")
    assert done.returncode == 7 and "cannot write /dev/full: No space left" in done.stderr
