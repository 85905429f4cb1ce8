"""What a reader hands on: pages of clean text, and an account of what could not be read.

Knows nothing of file formats, tokens or terminals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TIME = re.compile(r"\d+:\d\d:\d\d")


@dataclass(frozen=True)
class Page:
    """One page of normalised text.

    number: 1-based physical index in its own source.
    label: the number printed on the page ("iv", "12") or the time at which it begins ("0:12:31"), None where the source has none.
    text: normalised (readers/normalize.py); may be empty.
    source: index into Document.sources.
    image_only: the page shows pictures but holds no text, as a scan does.
    title: of the section that the page belongs to, None where the source has none.
    hidden: what hides parts of the text from who looks at the page, with these parts; empty unless it was looked for.
    """

    number: int
    text: str
    label: str | None = None
    source: int = 0
    image_only: bool = False
    title: str | None = None
    hidden: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        """What a citation says beside the page's number: ' (printed "iv"), The Lamp', or nothing."""
        return place(self.number, self.label, self.title)


def place(number: int, label: str | None, title: str | None) -> str:
    """The words of `Page.place`."""
    if label in (None, str(number)):
        beside = ""
    elif _TIME.fullmatch(label):
        beside = f", at {label}"
    else:
        beside = f' (printed "{label}")'
    return f"{beside}, {title}" if title else beside


@dataclass(frozen=True)
class PageFault:
    """A page that could not be read; it is reported, never dropped silently."""

    number: int
    reason: str
    source: int = 0


@dataclass(frozen=True)
class Source:
    """One input: its display name, format (a name of readers/formats.py), size and digest of the raw bytes.

    total_pages: that it has, of which a selection may have been read.
    """

    name: str
    format: str
    size_bytes: int
    sha256: str
    encoding: str | None = None
    total_pages: int = 0


@dataclass(frozen=True)
class Document:
    """One or more sources read in order.

    pages: every page that was read, in order, including empty ones.
    failed: pages that could not be read.
    warnings: one sentence each, for the user.
    pages_chosen: as the user asked for them, None for all.
    """

    sources: tuple[Source, ...]
    pages: tuple[Page, ...]
    failed: tuple[PageFault, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    pages_chosen: str | None = None

    @property
    def chars(self) -> int:
        return sum(len(page.text) for page in self.pages)

    @property
    def empty_pages(self) -> tuple[Page, ...]:
        return tuple(page for page in self.pages if not page.text.strip())
