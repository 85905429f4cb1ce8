"""`hip summarize`: a summary that provably rests on the whole document.

The document is read into the model once; even spans of it are summarised one by one on that one prefill,
then their summaries are merged. The coverage table names every page. Knows nothing of how models work.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hipcli.ask import memory_record, run_record, show_numbers
from hipcli.console import Terminal, visible, without_controls, write_json, write_stdout
from hipcli.document import Document
from hipcli.errors import UsageError
from hipcli.input import read
from hipcli.inspection import check_complete, page_ranges
from hipcli.options import RunOptions
from hipcli.pipeline import Answer, Reading, open_reading

_TOKENS_PER_SPAN = 4000
_MAX_SPANS = 16
_MOST_SPANS = 1000
_SPAN_SUMMARY_TOKENS = 128
_QUOTED_WORDS = 12
# what a span's number and pages add to its summary in the merging question
_SPAN_OVERHEAD_TOKENS = 24
_MERGE_PROMPT_TOKENS = 120


@dataclass(frozen=True)
class Span:
    """A stretch of the document. pages: indices into Document.pages; opening: its first words."""

    pages: tuple[int, ...]
    opening: str
    tokens: int


@dataclass(frozen=True)
class _Piece:
    page: int
    text: str
    tokens: float


def summarize(options: RunOptions, spans: int | None, terminal: Terminal) -> None:
    """Print the summary, the spans' own summaries and the coverage on stdout; raises every HipError."""
    if spans is not None and not 1 <= spans <= _MOST_SPANS:
        raise UsageError(f"--spans must be within 1 and {_MOST_SPANS}, got {spans}")
    began = time.monotonic()
    document = read(options, terminal)
    read_seconds = time.monotonic() - began

    def room(prompt: Any, encoded: Any) -> int:
        count = spans or span_count(len(encoded.ids))
        return count * (_SPAN_SUMMARY_TOKENS + _SPAN_OVERHEAD_TOKENS) + _MERGE_PROMPT_TOKENS

    with open_reading(document, options, terminal, room) as reading:
        reading.timing["read_seconds"] = read_seconds
        parts = make_spans(document, _page_tokens(reading), spans or span_count(len(reading.encoded.ids)))
        summaries = _summarize_spans(reading, parts, terminal)
        final = _merge(reading, parts, summaries, terminal)
        if terminal.as_json:
            write_json(_record(reading, parts, summaries, final))
        else:
            write_stdout(_clean(final.text) + "\n")
            _show_parts(document, parts, summaries)
            show_numbers(reading, final, terminal)
    check_complete(document, options)


def span_count(tokens: int) -> int:
    """How many spans a document of so many tokens is cut into."""
    return max(1, min(_MAX_SPANS, math.ceil(tokens / _TOKENS_PER_SPAN)))


def make_spans(document: Document, page_tokens: Sequence[int], count: int) -> list[Span]:
    """Cut into at most `count` spans of about equal tokens, between pages where pages are short enough.

    Every page with text is in at least one span.
    """
    target = sum(page_tokens) / count
    pieces = [piece for index, page in enumerate(document.pages) for piece in _pieces(index, page.text, page_tokens[index], target)]
    total = sum(piece.tokens for piece in pieces)
    groups: dict[int, list[_Piece]] = {}
    passed = 0.0
    for piece in pieces:
        place = int((passed + piece.tokens / 2) / max(total, 1e-9) * count)
        groups.setdefault(min(place, count - 1), []).append(piece)
        passed += piece.tokens
    return [_span(groups[place]) for place in sorted(groups)]


def _pieces(index: int, text: str, tokens: int, target: float) -> list[_Piece]:
    """A page, or parts of it cut at white space where it is longer than a span should be."""
    if not text.strip():
        return []
    parts = max(1, round(tokens / target)) if target else 1
    bounds = [0]
    for number in range(1, parts):
        cut = text.find("\n", number * len(text) // parts)
        space = text.find(" ", number * len(text) // parts)
        cut = cut if 0 <= cut <= space + 200 else space
        bounds.append(max(cut, bounds[-1]))
    bounds.append(len(text))
    texts = [text[low:high] for low, high in zip(bounds, bounds[1:])]
    return [_Piece(index, part, tokens * len(part) / len(text)) for part in texts if part.strip()]


def _span(pieces: Sequence[_Piece]) -> Span:
    pages = tuple(dict.fromkeys(piece.page for piece in pieces))
    opening = " ".join(pieces[0].text.split()[:_QUOTED_WORDS])[:160]
    return Span(pages, opening, round(sum(piece.tokens for piece in pieces)))


def _page_tokens(reading: Reading) -> list[int]:
    bounds = [*reading.encoded.page_starts.tolist(), len(reading.encoded.ids)]
    return [high - low for low, high in zip(bounds, bounds[1:])]


def _summarize_spans(reading: Reading, parts: Sequence[Span], terminal: Terminal) -> list[Answer]:
    limit = _SPAN_SUMMARY_TOKENS if len(parts) > 1 else reading.options.max_tokens
    summaries = []
    with terminal.phase("summarising", len(parts), "parts", long=True) as phase:
        for span in parts:
            question = _span_question(span, reading.document, len(parts) == 1)
            summaries.append(_tidy(reading.answer(question, max_tokens=limit, enough=_repeats)))
            phase.advance()
    return summaries


def _span_question(span: Span, document: Document, whole: bool) -> str:
    if whole:
        return "Summarise the document above in a few sentences. Use only what it says."
    where = _where(span, document)
    return f'Summarise {where} of the document above, from "{span.opening}" on, in three sentences. Use only what that part says.'


def _where(span: Span, document: Document) -> str:
    """pages 4 to 7, naming sources where there are several"""
    several = len(document.sources) > 1
    first, last = (document.pages[span.pages[at]] for at in (0, -1))
    if several and first.source != last.source:
        names = [document.sources[page.source].name for page in (first, last)]
        return f"page {first.number} of {names[0]} to page {last.number} of {names[1]}"
    name = f" of {document.sources[first.source].name}" if several else ""
    return (f"page {first.number}" if first == last else f"pages {first.number} to {last.number}") + name


def _merge(reading: Reading, parts: Sequence[Span], summaries: Sequence[Answer], terminal: Terminal) -> Answer:
    """One summary from those of the spans; a single span's is the whole already."""
    if len(parts) == 1:
        return summaries[0]
    notes = "\n".join(f"{_title(_where(span, reading.document))}: {_one_line(said.text)}" for span, said in zip(parts, summaries))
    question = f"Notes on the document above:\n{notes}\n\nUsing these notes, summarise the whole document in one paragraph."
    with terminal.phase("merging"):
        return _tidy(reading.answer(question, enough=_repeats))


def _repeats(text: str) -> bool:
    """Whether the last sentence was said before: small models then go on for ever."""
    sentences = _sentences(text)
    return len(sentences) > 1 and text.rstrip().endswith((".", "!", "?")) and sentences[-1] in sentences[:-1]


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text.strip()) if sentence]


def _tidy(said: Answer) -> Answer:
    """Without repeated sentences, and without a last one that the token limit cut."""
    kept = list(dict.fromkeys(_sentences(said.text)))
    if said.finish_reason == "length" and len(kept) > 1 and not kept[-1].endswith((".", "!", "?")):
        kept.pop()
    return replace(said, text=" ".join(kept))


def _title(where: str) -> str:
    return where[0].upper() + where[1:]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clean(text: str) -> str:
    return visible(text) if sys.stdout is not None and sys.stdout.isatty() else without_controls(text)


def _show_parts(document: Document, parts: Sequence[Span], summaries: Sequence[Answer]) -> None:
    lines = []
    if len(parts) > 1:
        for span, said in zip(parts, summaries):
            lines += ["", _title(_where(span, document)), said.text]
    lines += ["", *coverage_lines(document, parts, summaries)]
    write_stdout(_clean("\n".join(lines)) + "\n")


def coverage_lines(document: Document, parts: Sequence[Span], summaries: Sequence[Answer]) -> list[str]:
    """The table of spans, and below it every page that is in none."""
    covered = {page for span, said in zip(parts, summaries) if said.text for page in span.pages}
    total = len(document.pages) + len(document.failed)
    lines = [f"Coverage: {len(covered)} of {total} pages", f"  {'part':<5} {'pages':<28} {'tokens':>9}  summarised"]
    for number, (span, said) in enumerate(zip(parts, summaries), 1):
        pages = _where(span, document).removeprefix("pages ").removeprefix("page ")
        lines.append(f"  {number:<5} {pages:<28} {span.tokens:>9,}  {'yes' if said.text else 'no: the model said nothing'}")
    for index, source in enumerate(document.sources):
        name = f" of {source.name}" if len(document.sources) > 1 else ""
        empty = [page for page in document.empty_pages if page.source == index]
        for kind, scanned in (("empty", False), ("scanned, without text", True)):
            numbers = [page.number for page in empty if page.image_only is scanned]
            if numbers:
                lines.append(f"  {kind}: {page_ranges(numbers)}{name}")
        lines += [f"  not read: {fault.number}{name} ({fault.reason})" for fault in document.failed if fault.source == index]
    return lines


def _record(reading: Reading, parts: Sequence[Span], summaries: Sequence[Answer], final: Answer) -> dict[str, Any]:
    document = reading.document
    spans = [
        {"where": _where(span, document), "opening": span.opening, "tokens": span.tokens, "summary": said.text}
        for span, said in zip(parts, summaries)
    ]
    timing = reading.timing | {"summary_seconds": sum(said.seconds for said in summaries) + (final.seconds if len(parts) > 1 else 0.0)}
    return {
        "schema_version": 1,
        "summary": final.text,
        "finish_reason": final.finish_reason,
        "spans": spans,
        "coverage": _coverage_records(reading, parts, summaries),
        **run_record(reading),
        "timing": {name: round(value, 4) for name, value in timing.items()} | memory_record(reading),
    }


def _coverage_records(reading: Reading, parts: Sequence[Span], summaries: Sequence[Answer]) -> list[dict[str, Any]]:
    """One record a page, in order; span counts from 1, reason says why a page is in none."""
    document, tokens = reading.document, _page_tokens(reading)
    rows = []
    for index, page in enumerate(document.pages):
        numbers = [number for number, span in enumerate(parts, 1) if index in span.pages]
        said = bool(numbers) and all(summaries[number - 1].text for number in numbers)
        reason = None if numbers else "scanned, without text" if page.image_only else "empty"
        rows.append((page.source, page.number, page.label, page.title, tokens[index], numbers, said, reason))
    rows += [(fault.source, fault.number, None, None, 0, [], False, fault.reason) for fault in document.failed]
    rows.sort(key=lambda row: row[:2])
    names = ("source", "page", "label", "title", "tokens", "spans", "summarised", "reason")
    return [dict(zip(names, (document.sources[row[0]].name, *row[1:]))) for row in rows]
