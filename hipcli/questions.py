"""`hip ask --questions FILE`: many questions of one document, which is read into the model once.

A file holds one question a line, or JSON lines with a "question" each and, to have the answers marked, an "accept" list.
Knows nothing of models.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hipcli.answers_file import AnswersFile, document_id, run_id
from hipcli.ask import answer_record, show_numbers, stream_answer
from hipcli.check import Check, checked
from hipcli.citing import Citer, CiteOptions, evidence_record, show_evidence
from hipcli.console import Terminal, visible, write_json, write_stdout
from hipcli.errors import InputError, UsageError
from hipcli.evidence import Evidence
from hipcli.input import read
from hipcli.inspection import check_complete
from hipcli.options import RunOptions
from hipcli.loading import find_model
from hipcli.pipeline import Answer, Reading, open_reading, room_for

Keep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Question:
    """accept: an answer that contains one of these, in any case, is right; empty when the file does not say."""

    text: str
    accept: tuple[str, ...] = ()

    def mark(self, answer: str) -> bool | None:
        """Whether an answer is right, None when the file does not say what would be."""
        if not self.accept:
            return None
        return any(" ".join(wanted.casefold().split()) in " ".join(answer.casefold().split()) for wanted in self.accept)


def load_questions(path: str) -> list[Question]:
    """The questions of a file ("-" is standard input), in order, without empty lines.

    Raises InputError when it cannot be read, UsageError when it holds no question.
    """
    lines = [line.strip() for line in _text(path).split("\n")]
    as_json = path.endswith(".jsonl") or next((line for line in lines if line), "").startswith("{")
    questions = [_from_json(path, number, line) if as_json else Question(line) for number, line in enumerate(lines, 1) if line]
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


def _from_json(path: str, number: int, line: str) -> Question:
    hint = 'each line looks like {"question": "Who signed the treaty?", "accept": ["Ada Stone"]}'
    try:
        record: dict[str, Any] = json.loads(line)
        text, accept = record["question"], record.get("accept", [])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f'line {number} of {path} is not a JSON object with a "question"', hint) from None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f'the "question" in line {number} of {path} is not a text', hint)
    if not isinstance(accept, list) or not all(isinstance(wanted, str) and wanted.strip() for wanted in accept):
        raise InputError(f'the "accept" in line {number} of {path} is not a list of texts', hint)
    return Question(text.strip(), tuple(accept))


def ask_all(
    options: RunOptions,
    questions: list[Question],
    terminal: Terminal,
    check: bool = False,
    out: str | None = None,
    cite: CiteOptions = CiteOptions(),
) -> None:
    """Answer each question on one prefill; with --json one object a line, as soon as it is known.

    check, cite: as for `ask`. out: a file of rows, to which each answer is added and whose questions are not asked again.
    """
    if cite.map_file:
        raise UsageError("--map-file draws one question, and --questions asks many", "ask that question alone, or use --map")
    began = time.monotonic()
    document = read(options, terminal)
    read_seconds = time.monotonic() - began
    keep = None
    if out is not None:
        answers, run = AnswersFile(out), run_id(document_id(document), find_model(options, terminal).digest, options)
        questions, keep = _unanswered(questions, answers, run, terminal), partial(answers.add, run=run)
    marks: list[bool | None] = []
    if questions:
        with open_reading(document, options, terminal, room_for([question.text for question in questions])) as reading:
            reading.timing["read_seconds"] = read_seconds
            citer = Citer(reading, cite)
            for number, question in enumerate(questions):
                answer, right = _ask_one(citer, question, terminal, check, keep, first=number == 0)
                marks.append(right)
            if not terminal.as_json:
                show_numbers(reading, answer, terminal)
    marked = [right for right in marks if right is not None]
    if marked:
        terminal.note(f"right: {sum(marked)} of {len(marked)}")
    check_complete(document, options)


def _unanswered(questions: list[Question], answers: AnswersFile, run: str, terminal: Terminal) -> list[Question]:
    """The questions that no row answers yet; says how many there are of both."""
    if answers.half_row:
        terminal.warn(f"the last row of {answers.path} was cut short by a run that was killed; its question is asked again")
    left = [question for question in questions if not answers.skip(run, question.text)]
    if len(left) < len(questions):
        terminal.note(f"{len(questions) - len(left)} of {len(questions)} questions are answered in {answers.path} already")
    return left


def _ask_one(
    citer: Citer, question: Question, terminal: Terminal, check: bool, keep: Keep | None, *, first: bool
) -> tuple[Answer, bool | None]:
    """Answer one question, show it and keep it; with whether it is right, None when nobody said what would be."""
    if not terminal.as_json:
        write_stdout(visible(f"{'' if first else chr(10)}Q: {question.text}") + "\n")
    reading, how = citer.reading, partial(_answer, citer.reading, terminal)
    (answer, evidence), found = checked(reading.engine, check, lambda: citer.cited(question.text, how))
    right, record = question.mark(answer.text), marked_record(citer, question, answer, evidence, found)
    if keep is not None:
        keep(record)
    if terminal.as_json:
        write_json(record)
        return answer, right
    show_evidence(evidence, reading.document, citer.options, terminal)
    if found:
        found.say(terminal)
    if right is not None:
        terminal.note("right" if right else f"wrong: it holds none of {', '.join(question.accept)}")
    return answer, right


def marked_record(
    citer: Citer, question: Question, answer: Answer, evidence: Evidence | None, check: Check | None = None
) -> dict[str, Any]:
    """The JSON object of an answer, with whether it is right where the file says what would be."""
    right = question.mark(answer.text)
    known = {} if right is None else {"right": right, "accept": list(question.accept)}
    return answer_record(citer.reading, question.text, answer, evidence_record(evidence, citer.options), check) | known


def _answer(reading: Reading, terminal: Terminal, question: str) -> Answer:
    """Silently for JSON, else to stdout as it comes."""
    return reading.ask(question) if terminal.as_json else stream_answer(reading, question)
