"""A summary as text, Markdown or JSON, each with the table that says of every page whether it was summarised.

Knows nothing of how it was made; escapes what a document could slip into a terminal or into Markdown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hipcli.ask import memory_record, run_record
from hipcli.console import visible, without_controls
from hipcli.document import Document
from hipcli.inspection import page_ranges
from hipcli.outline import Part

if TYPE_CHECKING:
    from hipcli.key_sentences import KeySentence
    from hipcli.pipeline import Answer, Reading
    from hipcli.summarize import Summary

_NOT_REACHED = "no: not reached"
_NOTHING_SAID = "no: the model said nothing"
_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~&])")


def where(pages: Sequence[int], document: Document) -> str:
    """pages 4 to 7, naming sources where there are several. pages: indices into Document.pages, in order."""
    several = len(document.sources) > 1
    first, last = (document.pages[pages[at]] for at in (0, -1))
    if several and first.source != last.source:
        names = [document.sources[page.source].name for page in (first, last)]
        return f"page {first.number} of {names[0]} to page {last.number} of {names[1]}"
    name = f" of {document.sources[first.source].name}" if several else ""
    return (f"page {first.number}" if first == last else f"pages {first.number} to {last.number}") + name


def as_text(document: Document, summary: Summary) -> str:
    """For a terminal or a pipe."""
    lines = [summary.merged.text if summary.merged else _unfinished(summary)]
    alone = len(summary.parts) == 1
    for part, said, keys in zip(summary.parts, summary.answers, summary.keys):
        lines += ["", *([] if alone else [_heading(part, document), said.text])]
        lines += [f"  {_place(key, document)}: “{key.quote}”" for key in keys]
    lines += ["", *coverage_lines(document, summary.parts, summary.answers)]
    text = "\n".join(lines) + "\n"
    return visible(text) if sys.stdout is not None and sys.stdout.isatty() else without_controls(text)


def as_markdown(document: Document, summary: Summary) -> str:
    """A document of its own: headings, quotes and a table."""
    alone = len(summary.parts) == 1
    names = ", ".join(source.name for source in document.sources)
    lines = [f"# Summary of {_escape(names)}", "", _escape(summary.merged.text) if summary.merged else f"*{_unfinished(summary)}*"]
    for part, said, keys in zip(summary.parts, summary.answers, summary.keys):
        lines += [] if alone else ["", f"## {_escape(_heading(part, document))}", "", _escape(said.text)]
        lines += ["", *(f"- “{_escape(key.quote)}” ({_escape(_place(key, document))})" for key in keys)]
    rows = [(str(number), *row) for number, row in enumerate(_rows(document, summary.parts, summary.answers), 1)]
    lines += ["", "## Coverage", "", _total(document, summary.parts, summary.answers), "", "| part | pages | tokens | summarised |"]
    lines += ["| ---: | --- | ---: | --- |", *(f"| {' | '.join(_escape(cell) for cell in row)} |" for row in rows)]
    missing = [f"- {_escape(line)}" for line in _missing(document, summary.parts, summary.answers)]
    lines += ["", *missing] if missing else []
    return without_controls("\n".join(lines) + "\n")


def _escape(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _unfinished(summary: Summary) -> str:
    return f"Unfinished: {len(summary.answers)} of {len(summary.parts)} parts were summarised, and not merged."


def _heading(part: Part, document: Document) -> str:
    place = where(part.pages, document)
    return f"{part.title} ({place})" if part.title else place[0].upper() + place[1:]


def _place(key: KeySentence, document: Document) -> str:
    """p. 12 (printed "8"), naming the source where there are several."""
    page = document.pages[key.page]
    name = f"{document.sources[page.source].name}, " if len(document.sources) > 1 else ""
    printed = f' (printed "{page.label}")' if page.label not in (None, str(page.number)) else ""
    return f"{name}p. {page.number}{printed}"


def coverage_lines(document: Document, parts: Sequence[Part], answers: Sequence[Answer]) -> list[str]:
    """The table of parts, and below it every page that was not summarised. answers: of the first parts."""
    rows = list(_rows(document, parts, answers))
    width = max([5, *(len(pages) for pages, _, _ in rows)])
    lines = [f"Coverage: {_total(document, parts, answers)}", f"  {'part':<5} {'pages':<{width}} {'tokens':>9}  summarised"]
    lines += [f"  {number:<5} {pages:<{width}} {tokens:>9}  {said}" for number, (pages, tokens, said) in enumerate(rows, 1)]
    return lines + [f"  {line}" for line in _missing(document, parts, answers)]


def _states(parts: Sequence[Part], answers: Sequence[Answer]) -> list[str]:
    """Of each part, whether it was summarised, else why not."""
    said = ["yes" if answer.text else _NOTHING_SAID for answer in answers]
    return said + [_NOT_REACHED] * (len(parts) - len(answers))


def _covered(parts: Sequence[Part], answers: Sequence[Answer]) -> set[int]:
    """Pages all of whose parts were summarised."""
    states = list(zip(parts, _states(parts, answers)))
    left = {page for part, state in states if state != "yes" for page in part.pages}
    return {page for part, _ in states for page in part.pages} - left


def _total(document: Document, parts: Sequence[Part], answers: Sequence[Answer]) -> str:
    return f"{len(_covered(parts, answers))} of {len(document.pages) + len(document.failed)} pages"


def _rows(document: Document, parts: Sequence[Part], answers: Sequence[Answer]) -> Iterator[tuple[str, str, str]]:
    for part, state in zip(parts, _states(parts, answers)):
        yield _by_source(part.pages, document), f"{part.tokens:,}", state


def _by_source(pages: Sequence[int], document: Document) -> str:
    """1-3, 5; a.txt: 1, b.txt: 1-2 where there are several sources."""
    numbers: dict[int, list[int]] = {}
    for index in pages:
        numbers.setdefault(document.pages[index].source, []).append(document.pages[index].number)
    if len(document.sources) == 1:
        return page_ranges(numbers.get(0, []))
    return "; ".join(f"{document.sources[source].name}: {page_ranges(found)}" for source, found in numbers.items())


def _missing(document: Document, parts: Sequence[Part], answers: Sequence[Answer]) -> list[str]:
    """Every page that was not summarised, by reason."""
    covered = _covered(parts, answers)
    left = [index for index, page in enumerate(document.pages) if page.text.strip() and index not in covered]
    lines = [f"not summarised: {_by_source(left, document)}"] if left else []
    for kind, scanned in (("empty", False), ("scanned, without text", True)):
        empty = [index for index, page in enumerate(document.pages) if not page.text.strip() and page.image_only is scanned]
        lines += [f"{kind}: {_by_source(empty, document)}"] if empty else []
    for fault in document.failed:
        name = f"{document.sources[fault.source].name}: " if len(document.sources) > 1 else ""
        lines.append(f"not read: {name}{fault.number} ({fault.reason})")
    return lines


def as_record(reading: Reading, summary: Summary) -> dict[str, Any]:
    """The JSON object; docs/summaries.md names its keys, which are stable within a schema_version."""
    document, merged = reading.document, summary.merged
    seconds = sum(said.seconds for said in summary.answers) + (merged.seconds if merged and len(summary.parts) > 1 else 0.0)
    timing = reading.timing | {"summary_seconds": seconds}
    return {
        "schema_version": 2,
        "complete": merged is not None,
        "summary": merged.text if merged else None,
        "finish_reason": merged.finish_reason if merged else None,
        "length": summary.choice.length,
        "by": summary.division,
        "focus": summary.choice.focus,
        "parts": list(_part_records(document, summary)),
        "coverage": _coverage_records(document, summary),
        **run_record(reading),
        "timing": {name: round(value, 4) for name, value in timing.items()} | memory_record(reading),
    }


def _part_records(document: Document, summary: Summary) -> Iterator[dict[str, Any]]:
    """One record a part, in order; summary is null where it was not reached."""
    said = [*summary.answers, *[None] * (len(summary.parts) - len(summary.answers))]
    for part, answer, keys in zip(summary.parts, said, summary.keys):
        yield {
            "title": part.title,
            "where": where(part.pages, document),
            "pages": [_page(document, page) for page in part.pages],
            "opening": part.opening,
            "tokens": part.tokens,
            "summary": answer.text if answer else None,
            "finish_reason": answer.finish_reason if answer else None,
            "key_sentences": [
                _page(document, key.page) | {"quote": key.quote, "start": key.start, "end": key.end, "score": key.score} for key in keys
            ],
        }


def _page(document: Document, index: int) -> dict[str, Any]:
    page = document.pages[index]
    return {"source": document.sources[page.source].name, "page": page.number, "label": page.label}


def _coverage_records(document: Document, summary: Summary) -> list[dict[str, Any]]:
    """One record a page, in order; parts count from 1, reason says why a page was not summarised."""
    covered, states, rows = _covered(summary.parts, summary.answers), _states(summary.parts, summary.answers), []
    numbers: dict[int, list[int]] = {}
    for number, part in enumerate(summary.parts, 1):
        for page in part.pages:
            numbers.setdefault(page, []).append(number)
    for index, page in enumerate(document.pages):
        found = numbers.get(index, [])
        reason = next((states[number - 1].removeprefix("no: ") for number in found if states[number - 1] != "yes"), None)
        if not found:
            reason = "scanned, without text" if page.image_only else "empty"
        tokens = sum(piece.tokens for number in found for piece in summary.parts[number - 1].pieces if piece.page == index)
        rows.append((page.source, page.number, page.label, page.title, round(tokens), found, index in covered, reason))
    rows += [(fault.source, fault.number, None, None, 0, [], False, fault.reason) for fault in document.failed]
    rows.sort(key=lambda row: row[:2])
    names = ("source", "page", "label", "title", "tokens", "parts", "summarised", "reason")
    return [dict(zip(names, (document.sources[row[0]].name, *row[1:]))) for row in rows]
