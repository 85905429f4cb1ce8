"""Running text cut into sections at its headings, each with its title. Knows nothing of what a heading looks like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hipcli.readers.content import RawPage, check_pages

_BLANK = re.compile(r"\n*")

DEEPEST = 3  # headings below this level do not begin a section


@dataclass(frozen=True)
class Mark:
    """A place where a section or a printed page begins.

    start, end: the heading's characters in the text (equal where it has none). title, label: what holds from here on, None changes nothing.
    """

    start: int
    end: int
    title: str | None = None
    label: str | None = None


def split_sections(text: str, marks: Sequence[Mark], title: str | None = None) -> list[RawPage]:
    """Raw pages that joined are `text`, one for each mark; a heading with nothing below it stays with the next section.

    marks: ascending. title: of what comes before the first one.
    """
    check_pages(len(marks))
    pages: list[RawPage] = []
    start, body, label = 0, 0, None
    for mark in [*marks, None]:
        end = len(text) if mark is None else _BLANK.match(text, mark.start).end()
        if mark is None or text[body:end].strip():
            pages.append(RawPage(text[start:end], label, title))
            start = end
        if mark is not None:
            body = mark.end
            title = mark.title or title
            label = mark.label or label
    if len(pages) > 1 and not pages[-1].text.strip():
        last = pages.pop()
        pages[-1] = RawPage(pages[-1].text + last.text, pages[-1].label, pages[-1].title)
    return pages
