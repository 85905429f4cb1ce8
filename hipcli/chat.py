"""`hip chat`: one document, questions one after the other, each with the earlier ones in mind.

Turns stay in the model's memory behind the document, as they were read and said, so that no turn is read twice. Knows
nothing of how lines are edited.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hipcli.ask import answer_record
from hipcli.chat_input import open_input
from hipcli.citations import Citation
from hipcli.citing import CiteOptions, evidence_record, show_sources
from hipcli.console import AnswerWriter, Terminal, amount, write_json, write_stdout
from hipcli.errors import DoesNotFit, UsageError
from hipcli.evidence import Evidence, gather
from hipcli.input import read
from hipcli.inspection import check_complete
from hipcli.options import RunOptions
from hipcli.pipeline import MORE_TOKENS, Answer, Reading, as_question, open_reading

_HELP = """/sources      the passages on which the last answer's words stand
/reset        let the model forget the conversation; the document stays
/save FILE    write all that was asked and said to a new file
/help         this list
/quit         end, as Ctrl-D does
Ctrl-C stops an answer. A question may begin with // for a plain /."""


@dataclass(frozen=True)
class Turn:
    """One question and what came of it. first: the model had no earlier one in mind, as after /reset."""

    question: str
    answer: Answer
    evidence: Evidence
    stopped: bool
    first: bool

    @property
    def citations(self) -> tuple[Citation, ...]:
        return self.evidence.citations


def chat(options: RunOptions, terminal: Terminal) -> None:
    """Read the documents, then answer until the input ends; raises every HipError."""
    if "-" in options.sources:
        raise UsageError("standard input ('-') cannot be both document and questions", "give the document as a file")
    began = time.monotonic()
    document = read(options, terminal)
    read_seconds = time.monotonic() - began
    with open_reading(document, options, terminal, lambda prompt, encoded: MORE_TOKENS) as reading:
        reading.timing["read_seconds"] = read_seconds
        with open_input(terminal) as lines:
            talk = Conversation(reading, terminal, lines.interactive)
            if lines.interactive:
                terminal.note("ask about the document; /help lists what else there is, Ctrl-D ends")
            for line in lines:
                if not talk.take(line):
                    break
    check_complete(document, options)


class Conversation:
    """Turns on one reading. interactive: Ctrl-C stops an answer and not the program.

    turns: all that were taken; the model has in mind those from number `forgotten` on.
    """

    def __init__(self, reading: Reading, terminal: Terminal, interactive: bool) -> None:
        self.reading, self.terminal, self.interactive = reading, terminal, interactive
        self.turns: list[Turn] = []
        self.forgotten = 0
        self._document_tokens = reading.engine.cached_len
        self._written = False
        if reading.prompt.turn_ids is None:
            terminal.warn(f"the chat template of {reading.files.name} has no second turn: each question is asked on its own")

    def take(self, line: str) -> bool:
        """Answer a question or follow a command; False when the conversation is over."""
        line = line.strip()
        if not line:
            return True
        if line.startswith("/") and not line.startswith("//"):
            return self._command(line)
        self._ask(line[1:] if line.startswith("//") else line)
        return True

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/sources": lambda rest: self._sources(),
            "/reset": lambda rest: self._reset(),
            "/save": self._save,
            "/help": lambda rest: self.terminal.note(_HELP),
        }
        if name in ("/quit", "/exit"):
            return False
        if name in commands:
            commands[name](rest.strip())
        else:
            self.terminal.note(f"there is no {name}; /help lists what there is, and // begins a question with /")
        return True

    def _ask(self, question: str) -> None:
        reading = self.reading
        kept, asked = reading.prompt.turn_ids is not None, as_question(question)
        suffix = reading.prompt.next_ids(asked) if len(self.turns) > self.forgotten and kept else reading.prompt.suffix_ids(asked)
        try:
            reading.make_room(len(suffix), reading.options.max_tokens)
        except DoesNotFit as fault:
            self.terminal.warn(f"{fault.message}; /reset forgets the conversation and makes room")
            return
        writer, as_json = AnswerWriter(), self.terminal.as_json
        if self._written and not as_json and not self.interactive:
            write_stdout("\n")
        with _StopOnly(self.interactive) as stop:
            try:
                on_text = None if as_json else writer.write
                answer = reading.answer(question, on_text=on_text, enough=lambda text: stop.wanted, suffix=suffix, keep=kept)
            finally:
                writer.finish()
        self._written = True
        # by words alone: what was said before would be traced too
        evidence = gather(answer.text, question, reading.document)
        self.turns.append(Turn(question, answer, evidence, stop.wanted, len(self.turns) == self.forgotten))
        self._tell(self.turns[-1])

    def _tell(self, turn: Turn) -> None:
        """What belongs to an answer beside its words."""
        if self.terminal.as_json:
            record = answer_record(self.reading, turn.question, turn.answer, evidence_record(turn.evidence, CiteOptions()))
            held = self.reading.engine.cached_len - self._document_tokens
            write_json(record | {"turn": len(self.turns) - self.forgotten, "conversation_tokens": held})
            return
        if turn.stopped:
            self.terminal.note("stopped; the chat goes on")
        elif turn.answer.finish_reason == "length":
            self.terminal.note(f"the answer was cut at {turn.answer.tokens} tokens (--max-tokens)")
        if turn.citations:
            self.terminal.note(f"[{', '.join(_places(turn.citations, self.reading))}; /sources shows the words]")

    def _sources(self) -> None:
        if not self.turns:
            self.terminal.note("nothing was asked yet")
        else:
            show_sources(self.turns[-1].evidence, self.reading.document, self.terminal)

    def _reset(self) -> None:
        self.reading.engine.rewind(self._document_tokens)
        self.forgotten = len(self.turns)
        self.terminal.note("the conversation is forgotten; the document is not")

    def _save(self, path: str) -> None:
        if not path or not self.turns:
            self.terminal.note("say where: /save FILE" if not path else "nothing was asked yet")
            return
        try:
            # the conversation is as private as the document, and no file is written over
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8", errors="backslashreplace") as out:
                out.write("\n".join(self._markdown()))
        except FileExistsError:
            self.terminal.warn(f"{path} exists and is left as it is; name a new file")
        except (OSError, ValueError) as fault:
            self.terminal.warn(f"cannot write {path}: {getattr(fault, 'strerror', None) or fault}")
        else:
            self.terminal.note(f"saved {amount(len(self.turns), 'answers')} to {path}")

    def _markdown(self) -> list[str]:
        lines = [f"# {', '.join(source.name for source in self.reading.document.sources)}", ""]
        for turn in self.turns:
            lines += ["---", ""] if turn.first and turn is not self.turns[0] else []
            lines += [f"## {turn.question}", "", turn.answer.text + (" …" if turn.stopped else ""), ""]
            lines += [f"- {place}: “{found.quote}”" for place, found in zip(_places(turn.citations, self.reading), turn.citations)]
            lines += [""] if turn.citations else []
        return lines


def _places(citations: Sequence[Citation], reading: Reading) -> list[str]:
    several = len(reading.document.sources) > 1
    return [f"{found.source}, {found.place}" if several else found.place for found in citations]


class _StopOnly:
    """While open, the first Ctrl-C sets `wanted`; the second does what it does elsewhere. Only where `active`."""

    def __init__(self, active: bool) -> None:
        self.active, self.wanted = active, False

    def __enter__(self) -> _StopOnly:
        if self.active:
            self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def _stop(self, number: int, frame: object) -> None:
        if self.wanted and callable(self._before):
            self._before(number, frame)
        self.wanted = True

    def __exit__(self, *fault: object) -> None:
        if self.active:
            signal.signal(signal.SIGINT, self._before)
