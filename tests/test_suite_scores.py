"""The accuracy suite's arithmetic: metrics and intervals against values worked out by hand, records and summaries of rows."""

from __future__ import annotations

import json

import pytest

from hipcli.errors import InputError, UsageError
from hipcli.suite import metrics, report
from hipcli.suite.options import DEFAULT_ATTENTION, SuiteOptions, listed, options_from
from hipcli.suite.records import Records, key_of, mend, read_records
from hipcli.suite.stats import mean_interval, paired, rank_auc, wilson
from hipcli.suite.summary import check_aucs, comparisons, summaries
from hipcli.suite.tasks import Question

PLACES = ("garden", "office", "kitchen")


@pytest.mark.parametrize(
    ("answer", "score"), [("it is 12 and Ab", 1), ("ab", 0.5), ("AB, 12, 13", 1), ("1 2", 0), ("", 0), ("121", 0.5), ("12ab", 1)]
)
def test_recall(answer, score):
    assert metrics.recall(answer, Question("?", ("12", "aB"))) == score


@pytest.mark.parametrize(
    ("answer", "score"), [(" 12345.", 1), ("key 12345, not 54321", 1), ("54321 then 12345", 0), ("123456", 0), ("none", 0), ("12 345", 0)]
)
def test_first_number(answer, score):
    assert metrics.first_number(answer, Question("?", ("12345",))) == score


@pytest.mark.parametrize(("answer", "score"), [('"a-b".', 1), ("value:a-b", 1), ("a-bc", 0), ("a - b", 0), ("A-b", 0)])
def test_whole_word(answer, score):
    assert metrics.whole_word(answer, Question("?", ("a-b",))) == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [("garden", 1), (" the Garden. Then the office.", 1), ("garden or office", 0), ("gardens", 0), ("", 0), ("the office garden?\nno", 0)],
)
def test_one_label(answer, score):
    assert metrics.one_label(answer, Question("Where is A?", ("garden",), labels=PLACES)) == score


def test_a_label_of_the_question_does_not_count():
    question = Question("Where was it before the office?", ("garden",), labels=PLACES)
    assert metrics.one_label("before the office it was in the garden", question) == 1


def test_same_writing():
    question = Question("?", ("abcd",), opening="XY")
    assert metrics.same_writing("XY abcd", question) == metrics.same_writing("  XYabcd\n", question) == 1
    assert metrics.same_writing("abcd", question) == 0
    # difflib: twice the matching characters over all
    assert metrics.same_writing("XY abXX", question) == 0.5 and metrics.same_writing("XY", question) == 0


def test_wilson_intervals():
    for (successes, count), expected in {
        (0, 10): (0.0, 0.2775), (10, 10): (0.7225, 1.0), (5, 10): (0.2366, 0.7634), (8, 10): (0.4902, 0.9433), (50, 100): (0.4038, 0.5962),
    }.items():  # fmt: skip
        assert wilson(successes, count) == pytest.approx(expected, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_mean_of_tasks():
    mean, low, high = mean_interval([(50, 100), (100, 100)])
    assert mean == 0.75 and low < 0.75 < high
    # near to the sum of two binomial variances
    assert high - mean == pytest.approx(1.96 * (0.5 * 0.5 / 103.84 + 0.0185 * 0.9815 / 103.84) ** 0.5 / 2, rel=1e-3)


def test_paired_counts():
    first, second = [True] * 4 + [False] * 6, [True] * 3 + [False] + [True] * 5 + [False]
    counts = paired(first, second)
    assert (counts.both, counts.only_first, counts.only_second, counts.neither) == (3, 1, 5, 1)
    assert counts.p == pytest.approx(2 * (1 + 6) / 2**6)
    assert paired([True], [True]).p == 1
    with pytest.raises(ValueError, match="zip"):
        paired([True], [])


def answer(question: int, attention: str = "dense", of: int = 2, task: str = "vt", **fields) -> dict:
    key = {"task": task, "context": 4096, "seed": 0, "sample": 0, "attention": attention, "model": "m"}
    return {"row": "answer", **key, "question": question, "of": of, **fields}


def test_a_cell_is_complete_with_all_its_questions_judged():
    both = {"pass_right": True, "pass_score": 1.0, "greedy_right": False, "greedy_score": 0.5}
    records, key = Records([answer(0, **both)]), key_of(answer(0))
    assert not records.complete(key, "pass")
    records.add(answer(1, pass_right=None, pass_score=None, greedy_right=True, greedy_score=1.0))
    assert all(records.complete(key, scoring) for scoring in ("pass", "greedy", "both"))
    assert not records.complete(key_of(answer(0, "cpu")), "pass")
    records.add(answer(1, pass_right=False, pass_score=0.0))
    assert records.complete(key, "pass") and not records.complete(key, "both")
    assert [row["pass_right"] for row in records.answers([key])] == [True, False]


def test_records_survive_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert not read_records(path).answers([key_of(answer(0))])
    path.write_text(json.dumps(answer(0)) + "\n" + json.dumps(answer(1))[:20])
    assert len(read_records(path).answers([key_of(answer(0))])) == 1
    mend(path)
    assert path.read_text() == json.dumps(answer(0)) + "\n"
    path.write_text(json.dumps(answer(0)))
    mend(path)
    assert path.read_text() == json.dumps(answer(0)) + "\n"
    path.write_text("{\n" + json.dumps(answer(0)) + "\n")
    with pytest.raises(InputError, match="line 1 of"):
        read_records(path)


def rows():
    for number in range(4):
        dense, ours = number < 1, number < 3
        yield answer(number, of=4, pass_right=dense, pass_score=float(dense), greedy_right=dense, greedy_score=0.5)
        yield answer(number, "cpu", of=4, pass_right=ours, pass_score=float(ours), greedy_right=number == 0, greedy_score=1.0)
        yield answer(number, task="cwe", of=4, pass_right=None, pass_score=None, greedy_right=False, greedy_score=0.0)


def test_summaries_and_comparisons(capsys):
    dense, ours, common, *means = summaries(list(rows()))
    assert (dense["n"], dense["pass"], dense["greedy"], dense["agree"]) == (4, 0.25, 0.5, 1.0)
    assert (ours["pass"], ours["agree"]) == (0.75, 0.5)
    assert "pass" not in common and common["agree"] is None
    # dense alone was asked about common words: there is no mean to compare
    assert not means
    shared = [*rows(), *(row | {"attention": "cpu"} for row in rows() if row["task"] == "cwe")]
    means = [row for row in summaries(shared) if row["task"] == "mean of tasks"]
    assert [(row["attention"], row["pass"], row["greedy"], row["tasks"]) for row in means] == [
        ("dense", 0.125, 0.25, 2),
        ("cpu", 0.375, 0.5, 2),
    ]
    one_pass_only = [{name: row[name] for name in row if row["task"] == "cwe" or not name.startswith("greedy")} for row in shared]
    assert ["greedy" in row for row in summaries(one_pass_only) if row["task"] == "vt"] == [False, False]
    one, every, *_ = comparisons(list(rows()))
    assert every["scoring"] == "pass"
    assert (one["task"], one["n"], one["both"], one["only"], one["only_dense"], one["neither"], one["p"]) == ("vt", 4, 1, 2, 0, 1, 0.5)
    assert every["task"] == "all tasks"
    report.conclude(list(rows()), False)
    text = capsys.readouterr().out
    assert "15.0 to 85.0" in text and "Against dense" in text
    report.conclude(list(rows()), True)
    assert {json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()} == {"summary", "paired"}


def test_options():
    given = dict.fromkeys(("task", "attention", "samples", "scoring", "pack", "seed", "text", "dense_below", "model"))
    given["check"] = False
    given |= {"context": ["8K,4K", "4096"], "device": "auto", "dtype": "auto", "minutes": 2.0}
    given |= {"kv": "auto", "kv_dtype": "fp8", "gpu_memory": None, "host_memory": "2GiB"}
    options = options_from(["kv,passkey"], given)
    assert options.contexts == (4096, 8192) and [task.name for task in options.tasks] == ["kv_retrieval", "passkey", "number_string"]
    assert (options.attention, options.pack, options.samples, options.seconds) == (DEFAULT_ATTENTION, 50, None, 120)
    assert (options.kv.dtype, options.kv.host_bytes) == ("fp8", 2 << 30)
    assert listed(["a, b", "b", ""]) == ["a", "b"]
    for wrong in ({"samples": 0}, {"pack": 0}, {"scoring": "x"}, {"dense_below": -1}, {"attention": ("x",)}, {"seconds": 0}):
        with pytest.raises(UsageError):
            SuiteOptions(options.tasks, options.contexts, **wrong)


def test_auc_counts_pairs_and_ties():
    assert rank_auc([3, 1], [2, 1]) == (2 + 0.5) / 4
    assert rank_auc([1.0], []) is None


def test_check_is_judged_over_all_answers_and_within_cells():
    def row(task, agreement, right):
        cell = {"task": task, "context": 8192, "attention": "default", "outside_caught": 0.5}
        return cell | {"agreement": agreement, "pass_right": right}

    rows = [row("easy", 0.9, True), row("easy", 0.95, False), row("hard", 0.5, False), row("hard", 0.6, True)]
    found = {(line["figure"], line["over"]): line["auc"] for line in check_aucs(rows)}
    assert found["agreement", "all answers"] == 2 / 4 and found["agreement", "within cells"] == 1 / 2
    assert found["outside_caught", "all answers"] == 0.5
    assert check_aucs([row("easy", 0.9, True) | {"attention": "dense"}]) == []
