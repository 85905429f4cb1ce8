"""`hip ask --questions FILE`: many questions of one document, which is read into the model once.

A file holds one question a line, or JSON lines with a "question" each. Knows nothing of models.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hipcli.ask import answer_record, show_numbers, show_sources, stream_answer
from hipcli.citations import cite
from hipcli.console import Terminal, visible, write_json, write_stdout
from hipcli.errors import InputError, UsageError
from hipcli.inspection import check_complete
from hipcli.pipeline import RunOptions, open_reading, read, room_for


def load_questions(path: str) -> list[str]:
    """The questions of a file ("-" is standard input), in order, without empty lines.

    Raises InputError when it cannot be read, UsageError when it holds no question.
    """
    lines = [line.strip() for line in _text(path).split("\n")]
    as_json = path.endswith(".jsonl") or next((line for line in lines if line), "").startswith("{")
    questions = []
    for number, line in enumerate(lines, 1):
        if line:
            questions.append(_from_json(path, number, line) if as_json else line)
    if not questions:
        raise UsageError(f"{path} holds no question", "write one question a line")
    return questions


def _text(path: str) -> str:
    try:
        if path != "-":
            data = Path(path).read_bytes()
        elif sys.stdin is None:
            raise InputError("cannot read questions: standard input is closed")
        else:
            data = sys.stdin.buffer.read()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise InputError(f"cannot read questions from {path}: it is not UTF-8 (byte {fault.start})") from None
    except OSError as fault:
        raise InputError(f"cannot read questions from {path}: {fault.strerror}") from None


def _from_json(path: str, number: int, line: str) -> str:
    hint = 'each line looks like {"question": "Who signed the treaty?"}'
    try:
        question = json.loads(line)["question"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f'line {number} of {path} is not a JSON object with a "question"', hint) from None
    if not isinstance(question, str) or not question.strip():
        raise InputError(f'the "question" in line {number} of {path} is not a text', hint)
    return question.strip()


def ask_all(options: RunOptions, questions: list[str], terminal: Terminal) -> None:
    """Answer each question on one prefill; with --json one object a line, as soon as it is known."""
    began = time.monotonic()
    document = read(options, terminal)
    read_seconds = time.monotonic() - began
    with open_reading(document, options, terminal, room_for(questions)) as reading:
        reading.timing["read_seconds"] = read_seconds
        for number, question in enumerate(questions):
            if terminal.as_json:
                answer = reading.answer(question)
                write_json(answer_record(reading, question, answer, cite(answer.text, question, document)))
                continue
            write_stdout(visible(f"{'' if number == 0 else chr(10)}Q: {question}") + "\n")
            answer = stream_answer(reading, question)
            show_sources(cite(answer.text, question, document), document, terminal)
        if not terminal.as_json:
            show_numbers(reading, answer, terminal)
    check_complete(document, options)
