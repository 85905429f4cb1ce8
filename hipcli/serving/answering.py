"""A question put to a document that is in memory: ids for all turns, text as it comes, the pages it stands on.

Runs in the worker's thread. Knows nothing of HTTP, nor of the protocols that carry the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hipcli.ask import session_record
from hipcli.citing import CiteOptions, evidence_record
from hipcli.document import Document
from hipcli.evidence import Evidence, gather
from hipcli.pipeline import Answer, Reading, as_question
from hipcli.serving.asking import Ask
from hipcli.serving.documents import Entry
from hipcli.serving.jobs import Job
from hipcli.serving.limits import Limits
from hipcli.serving.problems import Problem
from hipcli.serving.shelf import Held, Shelf
from hipcli.serving.stopping import StopText
from hipcli.trimming import Trimmer

if TYPE_CHECKING:
    from hipcli.tokens import PromptParts


@dataclass(frozen=True)
class Answered:
    """An answer. prompt_tokens: of document, earlier turns and question; cached_tokens: of these, held or loaded, not computed.

    extension: what is told beside the protocol's own fields, as JSON. wait_seconds: in the queue; seconds: of work;
    first_seconds: of these, to the first token. prefilled_tokens: computed before it.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    extension: dict[str, Any]
    wait_seconds: float
    first_seconds: float
    seconds: float

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


class Answerer:
    """Answers what is asked of the documents on a shelf."""

    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self._shelf, self._limits = shelf, limits

    def read(self, entry: Entry, document: Callable[[], Document], job: Job) -> None:
        """Read a document, so that the first question need not wait for it."""
        self._shelf.take(entry, document, job)

    def answer(self, ask: Ask, entry: Entry, document: Callable[[], Document], job: Job) -> Answered:
        """Answer; `job` is told pieces of the text, which together are the answer's. Raises Cancelled, Problem, HipError."""
        was_held = entry.id in self._shelf
        held = self._shelf.take(entry, document, job)
        reading = held.reading
        suffix = suffix_ids(reading.prompt, ask)
        if len(suffix) > self._limits.question_tokens:
            most = f"{len(suffix):,} tokens, and may have {self._limits.question_tokens:,}"
            raise Problem(400, f"question and earlier turns have {most}: upload long texts as documents", code="context_length_exceeded")
        options = replace(reading.options, **_chosen(ask))
        reading.make_room(len(suffix), options.max_tokens)
        said, evidence = _cited(held, ask, lambda: self._decode(replace(reading, options=options), suffix, ask, job))
        tokens = reading.engine.cached_len
        computed = 0 if was_held else tokens - (reading.session.reused if reading.session else 0)
        return Answered(
            text=said.text,
            finish_reason=said.finish_reason,
            prompt_tokens=tokens + len(suffix),
            cached_tokens=tokens - computed,
            answer_tokens=said.tokens,
            extension=_extension(reading, entry, evidence, ask),
            wait_seconds=job.started - job.made,
            first_seconds=said.wait_seconds,
            seconds=said.seconds,
        )

    def _decode(self, reading: Reading, suffix: list[int], ask: Ask, job: Job) -> Answer:
        """The answer with its text as it was told."""
        stop, trim, pieces = StopText(ask.stop), Trimmer(), []

        def hand_on(text: str) -> None:
            if piece := trim.push(text):
                pieces.append(piece)
                job.tell("text", piece)

        def enough(_: str) -> bool:
            job.check()
            return stop.hit

        said = reading.answer(
            ask.question, suffix=suffix, on_text=lambda text: hand_on(stop.push(text)), enough=enough, on_read=lambda done: job.check()
        )
        hand_on(stop.finish())
        return replace(said, text="".join(pieces))


def _chosen(ask: Ask) -> dict[str, Any]:
    """The run's options that a request chooses."""
    names = ("max_tokens", "temperature", "top_p", "seed")
    return {name: value for name in names if (value := getattr(ask, name)) is not None}


def suffix_ids(prompt: PromptParts, ask: Ask) -> list[int]:
    """Ids that follow the document: earlier turns as they were said, then the question. Raises Problem."""
    if ask.earlier and (prompt.turn_ids is None or prompt.encode_text is None):
        raise Problem(400, "the model's chat template has no second turn: send one question at a time", code="unsupported_value")
    ids: list[int] = []
    for number, question in enumerate([*(question for question, _ in ask.earlier), ask.question]):
        asked = as_question(question)
        if number == 0:
            # the document stands before it and was read long ago
            ids += prompt.suffix_ids(f"{ask.system}\n\n{asked}" if ask.system.strip() else asked)
        else:
            ids += prompt.encode_text(ask.earlier[number - 1][1]) + prompt.next_ids(asked)
    return ids


def _cited(held: Held, ask: Ask, answer: Callable[[], Answer]) -> tuple[Answer, Evidence]:
    """An answer and what it rests on; where more than a question is read, by words alone, since all of it would be traced."""
    if not (ask.earlier or ask.system.strip()):
        return held.citer.cited(ask.question, lambda question: answer())
    said = answer()
    return said, gather(said.text, ask.question, held.reading.document)


def _extension(reading: Reading, entry: Entry, evidence: Evidence, ask: Ask) -> dict[str, Any]:
    """What plain clients ignore."""
    document, record = reading.document, evidence_record(evidence, CiteOptions(map=ask.map))
    indices = {(document.sources[page.source].name, page.number): index for index, page in enumerate(document.pages)}
    for known, citation in zip(record["citations"], evidence.citations):
        known |= {"place": citation.place, "index": indices[citation.source, citation.page]}
    return {"document": entry.id, "name": entry.name} | record | {"session": session_record(reading)}
