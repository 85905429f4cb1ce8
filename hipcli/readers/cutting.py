"""Clean, numbered pages from raw ones: normalised together, and running text cut where a reader can find the place.

Nothing of the text is lost by cutting: a page ends at a paragraph, a line, a sentence or a word, and the next begins there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hipcli.document import Page, PageFault
from hipcli.readers.content import FLOW_CHARS, PAGE_CHARS, RawPage
from hipcli.readers.normalize import normalize, normalize_pages

_SHORTEST = PAGE_CHARS // 2
_LONGEST_TITLE = 100
_DIRECTIONS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # would turn the words around a title too

# where a page may end, best first; the cut falls behind the match
_BOUNDARIES = tuple(re.compile(p) for p in (r"\n[ \t]*\n+", r"\n", r"[.!?。！？]\s*", r"\s"))


def number_pages(raw_pages: Sequence[RawPage], source: int) -> tuple[list[Page], list[PageFault], Counter[str]]:
    """Pages and faults of one source, numbered from 1, and what the normaliser counted."""
    pages: list[Page] = []
    faults: list[PageFault] = []
    counts: Counter[str] = Counter()
    number = 0
    for raw, clean in zip(raw_pages, normalize_pages(page.text for page in raw_pages)):
        counts += clean.counts
        number = number if raw.number is None else raw.number - 1
        if raw.error is not None:
            number += 1
            faults.append(PageFault(number, raw.error, source))
            continue
        title = clean_title(raw.title)
        for start, end in cut(clean.text, raw.longest):
            number += 1
            hidden = raw.hidden if end == len(clean.text) else ()
            pages.append(Page(number, clean.text[start:end], raw.label, source, raw.image_only, title, hidden))
    return pages, faults, counts


def clean_title(title: str | None) -> str | None:
    """One line that fits beside a page number; None for nothing."""
    if not title:
        return None
    line = _DIRECTIONS.sub("", " ".join(normalize(title[: 10 * _LONGEST_TITLE]).text.split()))
    if len(line) > _LONGEST_TITLE:
        line = line[: _LONGEST_TITLE - 1].rsplit(" ", 1)[0] + "…"
    return line or None


def cut(text: str, longest: int | None = FLOW_CHARS) -> list[tuple[int, int]]:
    """Page borders (start, end) that cover `text` without a gap; a text of up to `longest` characters is one page."""
    if longest is None or len(text) <= longest:
        return [(0, len(text))]
    borders = []
    start = 0
    while len(text) - start > FLOW_CHARS:
        end = _page_end(text, start)
        borders.append((start, end))
        start = end
    borders.append((start, len(text)))
    return borders


def _page_end(text: str, start: int) -> int:
    low, high = start + _SHORTEST, start + FLOW_CHARS
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(text, low, high)]
        if ends:
            return min(ends, key=lambda end: abs(end - start - PAGE_CHARS))
    return start + PAGE_CHARS
