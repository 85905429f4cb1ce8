"""Question files: what they may hold, how answers are marked, and how a run that ended goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.answers_file import AnswersFile
from hipcli.errors import DiskError, InputError, UsageError
from hipcli.questions import Question, load_questions


def test_plain_lines_and_json_lines(tmp_path):
    plain, lines = tmp_path / "q.txt", tmp_path / "q.jsonl"
    plain.write_text("\ufeffWho?\r\n\r\n  When?  \n", encoding="utf-8")
    assert load_questions(str(plain)) == [Question("Who?"), Question("When?")]
    lines.write_text('{"question": "Who?", "accept": ["Ada"]}\n\n{"question": "When?", "other": 1}\n')
    assert load_questions(str(lines)) == [Question("Who?", ("Ada",)), Question("When?")]


@pytest.mark.parametrize(
    ("content", "fault", "words"),
    [
        (b"", UsageError, "holds no question"),
        (b"\n \n", UsageError, "holds no question"),
        (b'{"q": 1}', InputError, "line 1"),
        (b'{"question": "a"}\nplain', InputError, "line 2"),
        (b'{"question": " "}', InputError, "line 1"),
        (b'{"question": "a", "accept": "b"}', InputError, "accept"),
        (b'{"question": "a", "accept": [""]}', InputError, "accept"),
        (b"caf\xe9?", InputError, "not UTF-8"),
    ],
    ids=repr,
)
def test_what_is_refused(tmp_path, content, fault, words):
    path = tmp_path / "q.txt"
    path.write_bytes(content)
    with pytest.raises(fault, match=words):
        load_questions(str(path))


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="cannot read questions"):
        load_questions(str(tmp_path / "none.txt"))


def test_marks():
    question = Question("When?", ("3 March 1874", "March  3"))
    assert question.mark("It was on 3\nMARCH 1874.") is True
    assert question.mark("On march 3 they lit it") is True
    assert question.mark("3 May 1874") is False
    assert Question("When?").mark("anything") is None


HIP = Path(sys.executable).with_name("hip")


@pytest.fixture
def ask(tmp_path, tiny_model):
    """Asks questions that come by standard input, with --out rows.jsonl; returns the process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    folders = {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CACHE_DIR": str(tmp_path / "cache")}
    env = kept | folders | {"HIP_MODEL": str(tiny_model), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    (tmp_path / "book.txt").write_text("The library was founded in 1911 by Maria Lindqvist, a printer. " * 10)

    def run(questions: str, *more: str) -> subprocess.CompletedProcess:
        command = [HIP, "ask", "book.txt", "--questions", "-", "--out", "rows.jsonl", "--max-tokens", "4", *more]
        return subprocess.run(command, input=questions.encode(), capture_output=True, cwd=tmp_path, env=env, timeout=120)

    return run


def rows(tmp_path):
    return [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]


def test_answers_that_are_there_are_not_asked_again(ask, tmp_path):
    assert ask("Who?\nWhen?\n").returncode == 0
    before = (tmp_path / "rows.jsonl").read_bytes()
    again = ask("When?\nWho?\n")
    assert again.returncode == 0 and again.stdout == b"" and b"2 of 2 questions are answered" in again.stderr
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    more = ask("Who?\nWhere?\nWho?\n", "--json")
    # a question that is put twice wants two answers
    assert [json.loads(line)["question"] for line in more.stdout.splitlines()] == ["Where?", "Who?"]
    assert [row["question"] for row in rows(tmp_path)] == ["Who?", "When?", "Where?", "Who?"]


@pytest.mark.parametrize("change", [["--dense"], ["--temperature", "0.5", "--seed", "1"], ["--system", "Be brief."]], ids=str)
def test_other_settings_are_asked_anew(ask, tmp_path, change):
    ask("Who?\n")
    assert ask("Who?\n", *change).returncode == 0 and len(rows(tmp_path)) == 2


def test_another_document_is_asked_anew(ask, tmp_path):
    ask("Who?\n")
    (tmp_path / "book.txt").write_text("Another book. " * 30)
    ask("Who?\n")
    assert len(rows(tmp_path)) == 2


def test_a_row_cut_by_a_kill_is_made_again(ask, tmp_path):
    ask("Who?\nWhen?\n")
    data = (tmp_path / "rows.jsonl").read_bytes()
    (tmp_path / "rows.jsonl").write_bytes(data[:-30])
    done = ask("Who?\nWhen?\n")
    assert done.returncode == 0 and b"cut short" in done.stderr and b"1 of 2 questions" in done.stderr
    assert [row["question"] for row in rows(tmp_path)] == ["Who?", "When?"]
    assert rows(tmp_path)[1]["answer"] == json.loads(data.splitlines()[1])["answer"]


@pytest.mark.parametrize("content", [b"notes of mine", b"{}\n", b'{"a": 1}\n[]\n', b"text\n"], ids=repr)
def test_a_file_of_something_else_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not one of hip's rows"):
        AnswersFile(str(path))
    assert path.read_bytes() == content


def test_what_cannot_hold_rows(ask, tmp_path):
    for path, fault in ((str(tmp_path), DiskError), ("/dev/null", InputError), (str(tmp_path / "no" / "file"), DiskError)):
        with pytest.raises(fault):
            AnswersFile(path)
    done = subprocess.run([HIP, "ask", "book.txt", "Who?", "--out", "x"], capture_output=True, cwd=tmp_path)
    assert done.returncode == 2 and b"--out keeps the answers of --questions" in done.stderr


def test_two_runs_do_not_write_one_file(tmp_path):
    path = str(tmp_path / "rows.jsonl")
    first = AnswersFile(path)
    with pytest.raises(UsageError, match="another run is adding rows"):
        AnswersFile(path)
    first.close()
    AnswersFile(path).close()


@pytest.mark.parametrize("length", [1, 10, 40])
def test_the_beginning_of_a_row_is_taken_away(tmp_path, length):
    path = tmp_path / "rows.jsonl"
    row = b'{"schema_version": 1, "question": "Who?", "run": "a"}\n'
    path.write_bytes(row + row[:length])
    answers = AnswersFile(str(path))
    assert answers.half_row and path.read_bytes() == row
    assert answers.skip("a", "Who?") and not answers.skip("a", "Who?")
