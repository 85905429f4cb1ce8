"""`hip summarize`: a summary that provably rests on the whole document.

The document is read into the model once; each part is summarised on that one prefill, then the summaries are merged.
What was finished before an interruption is printed. Knows nothing of how models work.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hipcli.ask import show_numbers
from hipcli.console import Terminal, amount, write_json, write_stdout
from hipcli.document import Document
from hipcli.errors import UsageError
from hipcli.input import read
from hipcli.inspection import check_complete
from hipcli.key_sentences import KeySentence, key_sentences
from hipcli.options import RunOptions
from hipcli.outline import Part, make_parts, part_count, settle_division
from hipcli.pipeline import Answer, Reading, open_reading
from hipcli.summary_output import as_markdown, as_record, as_text, where
from hipcli.unfinished import Unfinished, digest

_MOST_SPANS = 1000
# so many notes are merged at once: a small model loses its way in more, and a question's memory stays bounded
_MERGED_AT_ONCE = 16
_LOOP_CHARS = 400
_LOOP = re.compile(r"(.{12,120}?)\1\1$", re.DOTALL)
# a note's tokens may be cut otherwise when they are read again
_SLACK = 1.25


@dataclass(frozen=True)
class Length:
    """What a --length means: words of the requests, longest answers in tokens, and how many key sentences a part shows."""

    part: str
    merged: str
    part_tokens: int
    merged_tokens: int
    words_per_sentence: int
    most_sentences: int


LENGTHS = {
    "short": Length("one sentence", "two sentences", 64, 96, 180, 3),
    "medium": Length("three sentences", "one paragraph", 128, 256, 60, 8),
    "long": Length("six sentences", "three paragraphs", 256, 512, 30, 20),
}


@dataclass(frozen=True)
class SummaryChoice:
    """What the user asked of the summary, checked; raises UsageError. spans: even parts, None for as many as the length suggests."""

    length: str = "medium"
    by: str = "auto"
    focus: str | None = None
    spans: int | None = None
    markdown: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.spans is not None and not 1 <= self.spans <= _MOST_SPANS:
            raise UsageError(f"--spans must be within 1 and {_MOST_SPANS}, got {self.spans}")
        if self.spans is not None and self.by == "section":
            raise UsageError("--spans cuts into even spans of pages, --by section at sections: give one of them")
        if self.focus is not None and not self.focus.strip():
            raise UsageError("--focus is empty", 'hip summarize book.pdf --focus "money and who paid it"')
        if self.markdown and self.as_json:
            raise UsageError("give either --markdown or --json, not both")


@dataclass
class Summary:
    """What has been made so far. answers: of the first parts, in order; merged: None until all are merged."""

    choice: SummaryChoice
    division: str
    parts: list[Part]
    keys: list[list[KeySentence]]
    answers: list[Answer] = field(default_factory=list)
    merged: Answer | None = None


def summarize(options: RunOptions, choice: SummaryChoice, terminal: Terminal) -> None:
    """Print the summary, the parts' own summaries and the coverage on stdout; raises every HipError.

    Whatever ends it early, an interruption or a fault, the parts that were finished are printed before it is raised.
    """
    began = time.monotonic()
    document = read(options, terminal)
    read_seconds = time.monotonic() - began
    summary = Summary(choice, settle_division(document, "pages" if choice.spans else choice.by), [], [])

    def room(prompt: Any, encoded: Any) -> int:
        summary.parts = _parts(document, encoded, summary)
        return _room(summary, document, prompt, options)

    with open_reading(document, options, terminal, room) as reading:
        reading.timing["read_seconds"] = read_seconds
        length = LENGTHS[choice.length]
        summary.keys = key_sentences(document, summary.parts, length.words_per_sentence, length.most_sentences, choice.focus)
        asker = _Asker(reading, summary.choice, terminal)
        try:
            _summarize_parts(asker, summary, terminal)
            summary.merged = _merge(asker, summary, terminal)
        except BaseException:
            if summary.answers:
                terminal.note(f"stopped: {len(summary.answers)} of {len(summary.parts)} parts were summarised, and are printed")
                _show(reading, summary)
            raise
        _show(reading, summary)
        asker.finished.done()
        if not terminal.as_json:
            show_numbers(reading, summary.merged, terminal)
    check_complete(document, options)


class _Asker:
    """Puts a summary's requests to the model, but not those that an interrupted run of the same summary had answered."""

    def __init__(self, reading: Reading, choice: SummaryChoice, terminal: Terminal) -> None:
        options, self.reading = reading.options, reading
        # the session stands for document, model and attention; the rest of what an answer depends on is here
        work = digest(
            choice.length, choice.by, choice.focus, choice.spans, options.max_tokens, options.temperature, options.top_p, options.seed
        )
        self.finished = Unfinished(reading.session.folder if reading.session else None, work, terminal.warn)
        if self.finished.found:
            terminal.note(f"going on behind an interrupted run: {amount(self.finished.found, 'answers')} kept")

    def ask(self, question: str, limit: int) -> Answer:
        """A tidied answer of at most `limit` tokens; one from an earlier run took no time."""
        key = digest(question, limit)
        if kept := self.finished.get(key):
            return replace(Answer(**kept), seconds=0.0, wait_seconds=0.0)
        answer = _tidy(self.reading.answer(question, max_tokens=limit, enough=_repeats))
        self.finished.add(key, asdict(answer))
        return answer


def _show(reading: Reading, summary: Summary) -> None:
    if summary.choice.as_json:
        write_json(as_record(reading, summary))
    else:
        write_stdout((as_markdown if summary.choice.markdown else as_text)(reading.document, summary))


def _parts(document: Document, encoded: Any, summary: Summary) -> list[Part]:
    bounds = [*encoded.page_starts.tolist(), len(encoded.ids)]
    page_tokens = [high - low for low, high in zip(bounds, bounds[1:])]
    return make_parts(document, page_tokens, summary.division, summary.choice.spans or part_count(len(encoded.ids)))


def _room(summary: Summary, document: Document, prompt: Any, options: RunOptions) -> int:
    """Tokens of the longest question: about a part, or one that holds the notes to merge, which are not written yet."""
    asked = [_part_question(part, document, summary) for part in summary.parts]
    heads = sorted((_head(part, document) for part in summary.parts), key=len)[-_MERGED_AT_ONCE:]
    # a joint note is headed by the places of two parts
    merging = len(prompt.suffix_ids(_merge_question(summary, [f"{head} {head}: " for head in heads])))
    notes = len(heads) * min(LENGTHS[summary.choice.length].part_tokens, options.max_tokens)
    return max(*(len(prompt.suffix_ids(question)) for question in asked), merging + int(notes * _SLACK))


def _summarize_parts(asker: _Asker, summary: Summary, terminal: Terminal) -> None:
    reading = asker.reading
    alone = len(summary.parts) == 1
    limit = reading.options.max_tokens if alone else _part_limit(reading, summary)
    with terminal.phase("summarising", len(summary.parts), "parts", long=True) as phase:
        for part in summary.parts:
            question = _part_question(part, reading.document, summary)
            summary.answers.append(asker.ask(question, limit))
            phase.advance()


def _part_limit(reading: Reading, summary: Summary) -> int:
    return min(LENGTHS[summary.choice.length].part_tokens, reading.options.max_tokens)


def _part_question(part: Part, document: Document, summary: Summary) -> str:
    length = LENGTHS[summary.choice.length]
    if len(summary.parts) == 1:
        return f"Summarise the document above in {length.merged}.{_focus(summary)} Use only what it says."
    place = where(part.pages, document)
    named = f'the part "{part.title}" ({place})' if part.title else place
    asked = f'Summarise {named} of the document above, from "{part.opening}" on, in {length.part}.'
    return f"{asked}{_focus(summary)} Use only what that part says."


def _focus(summary: Summary) -> str:
    return f" Tell above all what it says about this: {' '.join(summary.choice.focus.split())}." if summary.choice.focus else ""


def _merge_question(summary: Summary, notes: Sequence[str]) -> str:
    asked = f"Using these notes, summarise the whole document in {LENGTHS[summary.choice.length].merged}."
    return "Notes on the document above:\n" + "\n".join(notes) + f"\n\n{asked}{_focus(summary)}"


def _merge(asker: _Asker, summary: Summary, terminal: Terminal) -> Answer:
    """One summary from those of the parts; a single part's is the whole already. Many notes become fewer, group by group, before."""
    if len(summary.parts) == 1:
        return summary.answers[0]
    notes = [(part.pages, said.text) for part, said in zip(summary.parts, summary.answers) if said.text]
    with terminal.phase("merging"):
        while len(notes) > _MERGED_AT_ONCE:
            groups = [notes[at : at + _MERGED_AT_ONCE] for at in range(0, len(notes), _MERGED_AT_ONCE)]
            notes = [(_joint(group), _merged(asker, summary, group, _part_limit(asker.reading, summary)).text) for group in groups]
        return _merged(asker, summary, notes, asker.reading.options.max_tokens)


def _joint(group: Sequence[tuple[tuple[int, ...], str]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(page for pages, _ in group for page in pages))


def _merged(asker: _Asker, summary: Summary, notes: Sequence[tuple[tuple[int, ...], str]], limit: int) -> Answer:
    lines = [f"{_sentence_case(where(pages, asker.reading.document))}: {' '.join(text.split())}" for pages, text in notes]
    return asker.ask(_merge_question(summary, lines), limit)


def _head(part: Part, document: Document) -> str:
    return _sentence_case(where(part.pages, document))


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def _repeats(text: str) -> bool:
    """Whether the last sentence, or the last words three times over, were said before: small models then go on for ever."""
    sentences = _split(text)
    again = len(sentences) > 1 and text.rstrip().endswith((".", "!", "?")) and sentences[-1] in sentences[:-1]
    return again or _LOOP.search(text[-_LOOP_CHARS:]) is not None


def _split(text: str) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text.strip()) if sentence]


def _tidy(said: Answer) -> Answer:
    """Without repeated sentences, and without a last one that the token limit or a loop cut."""
    loop = _LOOP.search(said.text, max(0, len(said.text) - _LOOP_CHARS))
    text = said.text[: loop.end(1)] if loop else said.text
    kept = list(dict.fromkeys(_split(text)))
    if (loop or said.finish_reason == "length") and len(kept) > 1 and not kept[-1].endswith((".", "!", "?")):
        kept.pop()
    return replace(said, text=" ".join(kept))
