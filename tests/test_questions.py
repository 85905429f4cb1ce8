"""Question files: what they may hold, and how answers are marked."""

import pytest

from hipcli.errors import InputError, UsageError
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
