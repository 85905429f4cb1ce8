"""Other people's data files: recognised by their fields, asked whole, scored by their own metrics against values worked out by hand."""

from __future__ import annotations

import json

import pytest

from hipcli.errors import InputError
from hipcli.suite import published
from hipcli.suite.official import load_data
from hipcli.suite.tasks import Question


def score(metric, answer, *parts, labels=()):
    return metric(answer, Question("?", parts, labels=tuple(labels)))


def test_f1():
    assert published.f1("The cat, sat!", "a cat") == pytest.approx(2 / 3)
    assert published.f1("dog", "cat") == 0 and published.f1("cat cat", "cat") == pytest.approx(2 / 3)
    assert score(published.best(published.f1), "red fox", "blue", "the red fox") == 1


def test_rouge_l():
    # common words the, cat: of three and of four different ones
    assert published.rouge_l("the cat ran", "the black cat sat") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert published.rouge_l("one two. three four", "three four. one two") == 1
    assert published.rouge_l("", "a") == published.rouge_l("b", "a") == 0


def test_rouge_lsum():
    # 'a b' of the first line and 'd' of the second, of four given and five wanted words
    assert published.rouge_lsum("A b d\nx", "a b c\nd e") == pytest.approx(2 * 3 / 9)
    assert published.rouge_lsum("a a", "a") == pytest.approx(2 / 3)


def test_common_subsequences():
    assert published.common("abcbdab", "bdcaba") in ([1, 2, 3, 5], [1, 2, 3, 4], [1, 4, 5, 6], [1, 2, 5, 6], [1, 3, 5, 6])
    assert published.common("abc", "abc") == [0, 1, 2] and published.common("ab", "") == []


def test_edit_similarity():
    # difflib: twice three common characters of eight
    assert published.edit_similarity("# note\nabcx", "abcy") == 0.75
    assert published.edit_similarity("```", "a") == 0


def test_numbers():
    assert published.share_of_numbers("Paragraph 3, or 4", "Paragraph 3") == 0.5 and published.share_of_numbers("none", "3") == 0
    assert score(published.last_number, "returns -3.", "-3") == 1 and score(published.last_number, "3 or 4", "3") == 0
    assert score(published.first_value, "is 4.50, not 3", "4.5") == 1 and score(published.first_value, "", "4") == 0
    assert score(published.running_values, "1, 2, 9, 4", "1", "2", "3", "4") == 0.5


def test_classes_and_choices():
    classes = ("Date", "City", "Other city")
    assert score(published.one_class, "City", "City", labels=classes) == 1
    assert score(published.one_class, "Date or City", "City", labels=classes) == 0.5
    assert score(published.one_class, "Other city", "Other city", labels=("Other", *classes)) == 1
    choice = ("the boat", "B")
    for answer, right in (
        ("B. the boat", 1),
        ("A", 0),
        ("The answer is: B", 1),
        ("the answer is the boat", 1),
        ("I say B then A", 1),
        ("", 0),
    ):
        assert score(published.letter, answer, *choice, labels="ABCD") == right
    for answer, right in (("B: f", 1), ("the answer is: run", 1), ("the answer is: jump", 0), ("run", 0)):
        assert score(published.debugged, answer, "run", "B", labels="ABCD") == right
    for answer, right in (
        ("**The correct answer is (C)**", 1),
        ("The correct answer is C", 1),
        ("(C)", 0),
        ("The correct answer is (B)", 0),
    ):
        assert score(published.chosen, answer, "C") == right
    assert score(published.speaker, "It is Mia.", "MIA") == 1 and score(published.any_part, "in PARIS", "Rome", "Paris") == 1
    assert score(published.first_line(published.any_part), "\nno\nParis", "Paris") == 0


ROWS = {
    "lb/hotpotqa.jsonl": {"input": "Who?", "context": "Ann did.", "answers": ["Ann"], "dataset": "hotpotqa", "all_classes": None},
    "lb/trec_e.jsonl": {"input": "Q", "context": "C", "answers": ["City"], "dataset": "trec_e", "all_classes": ["City", "Date"]},
    "v2/data.json": {
        "question": "Q?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "B", "context": "C", "length": "short",
    },
    "ib/kv_retrieval.jsonl": {"id": 0, "context": "{}", "input": "Key?", "answer": ["u-1"], "options": []},
    "ib/math_find.jsonl": {"id": 0, "context": "[1, 2]", "input": "Largest?", "answer": 2, "options": ""},
    "ib/code_debug.jsonl": {"id": 0, "context": "def f()", "input": "", "answer": ["g"], "options": ["f", "g", "h", "i"]},
    "ruler/niah_single_1/validation.jsonl": {"index": 0, "input": "Text.\nWhat is it?", "outputs": ["12"], "length": 4},
    "ruler/qa_1/validation.jsonl": {"index": 0, "input": "Text.\nWho?", "outputs": ["Ann", "Bea"], "length": 4},
}  # fmt: skip


@pytest.fixture
def data(tmp_path):
    for name, row in ROWS.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([row, row]) if path.suffix == ".json" else f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    return tmp_path / "data"


def test_every_format_is_recognised(data):
    tasks, left_out = load_data(data)
    found = {task.name: task for task in tasks}
    assert not left_out and set(found) == {
        "hotpotqa", "trec", "v2_short", "kv_retrieval", "math_find", "code_debug", "niah_single_1", "qa_1",
    }  # fmt: skip
    assert all(len(task.examples) == 2 for task in tasks)
    answers = {
        "hotpotqa": "ann.", "trec": "City\nDate", "v2_short": "The correct answer is (B)", "kv_retrieval": '"u-1"', "math_find": "2",
        "code_debug": "B.", "niah_single_1": "it is 12", "qa_1": "bea",
    }  # fmt: skip
    for name, answer in answers.items():
        question = found[name].examples[0].question
        assert found[name].metric(answer, question) == 1 and found[name].metric("zzz", question) == 0
    question = found["code_debug"].examples[0].question
    assert question.parts == ("g", "B") and "\nB. g\n" in question.text
    assert (found["qa_1"].examples[0].text, found["qa_1"].examples[0].question.text) == ("Text.", "Who?")


def test_what_is_no_data_is_named(data):
    (data / "notes.json").write_text('{"a": 1}')
    (data / "dureader.jsonl").write_text(json.dumps(ROWS["lb/hotpotqa.jsonl"] | {"dataset": "dureader"}))
    (data / "half.jsonl").write_text('{"outputs": ')
    (data / "lacks.jsonl").write_text('{"answers": [], "dataset": "trec"}')
    tasks, left_out = load_data(data)
    assert len(tasks) == 8 and len(left_out) == 4
    assert any("dureader is not supported" in sentence for sentence in left_out)
    with pytest.raises(InputError, match="--data"):
        load_data(data / "nowhere")


def test_data_from_end_to_end(data, tiny_model):
    from hipcli.console import Terminal
    from hipcli.suite.options import SuiteOptions
    from hipcli.suite.records import Records
    from hipcli.suite.run import open_bench, rows

    (data / "ib/math_find.jsonl").write_text(json.dumps(ROWS["ib/math_find.jsonl"] | {"context": "12 " * 600}))
    options = SuiteOptions(
        load_data(data)[0], (512, 1024), ("dense",), scoring="pass", model=str(tiny_model), device="cpu", dtype="float32"
    )
    found = list(rows(open_bench(options, float("inf"), Terminal(quiet=True)), Records()))
    answers = [row for row in found if row["row"] == "answer"]
    assert {row["context"] for row in answers} == {1024} and all(row["pass_right"] is None and "greedy_score" in row for row in answers)
    assert {(row["task"], row["sample"]) for row in answers} >= {("hotpotqa", 0), ("hotpotqa", 1), ("qa_1", 1)}
    (skipped,) = [row for row in found if row["row"] == "skipped"]
    assert skipped["task"] == "math_find" and "more than the longest --context" in skipped["skipped"]
