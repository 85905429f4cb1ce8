"""Plain text and Markdown to pages: decode, normalise, cut. Nothing of the text is lost by cutting.

A form feed ends a page. Where there is none, a page is a stretch of about 3,000 characters that ends at a heading
(Markdown), a paragraph, a line, a sentence or a word, so that a citation points at something a reader can find.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from hipcli.errors import InputError
from hipcli.readers.decode import decode
from hipcli.readers.normalize import normalize_pages
from hipcli.readers.sniff import binary_kind
from hipcli.readers.source import RawSource

PAGE_CHARS = 3000
_SHORTEST, _LONGEST = PAGE_CHARS // 2, PAGE_CHARS * 3 // 2
_LONGEST_OWN_PAGE = PAGE_CHARS * 10  # a page between form feeds longer than this is cut as well

# where a page may end, best first; the cut falls behind the match
_HEADING = re.compile(r"\n(?=#{1,6} )")
_BOUNDARIES = tuple(re.compile(p) for p in (r"\n[ \t]*\n+", r"\n", r"[.!?。！？]\s*", r"\s"))


@dataclass(frozen=True)
class Text:
    """pages: clean text each. encoding: as decoded. counts: of the normaliser. warnings: sentences without the file's name."""

    pages: list[str]
    encoding: str
    counts: Counter[str]
    warnings: list[str]


def read_text(source: RawSource, format: str, encoding: str | None = None) -> Text:
    """Read a source as text.

    format: "text" or "markdown". Raises InputError for binary files and for text that is only white space.
    """
    kind = binary_kind(source.head)
    if kind == "a PDF":
        raise InputError(f"cannot read {source.name} as text: it is a PDF", "Leave out --type.")
    if kind:
        raise InputError(f"cannot read {source.name}: it is {kind}, which is not supported yet", "Convert it to PDF or text first.")
    try:
        decoded = decode(source.read(), encoding)
    except InputError as fault:
        raise InputError(f"cannot read {source.name}: {fault.message}", fault.hint) from None
    pages, counts = pages_of(decoded.text, format == "markdown")
    if not any(page.strip() for page in pages):
        raise InputError(f"{source.name} holds no text, only white space")
    return Text(pages, decoded.encoding, counts, list(decoded.warnings))


def pages_of(raw: str, markdown: bool = False) -> tuple[list[str], Counter[str]]:
    """Normalised pages, and what the normaliser counted. Joined they are the normalised text; form feeds are in none of them."""
    parts = raw.split("\f")
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    counts: Counter[str] = Counter()
    pages: list[str] = []
    for part in normalize_pages(parts):
        counts += part.counts
        if len(parts) > 1 and len(part.text) <= _LONGEST_OWN_PAGE:
            pages.append(part.text)
        else:
            pages.extend(part.text[start:end] for start, end in cut(part.text, markdown))
    return pages, counts


def cut(text: str, markdown: bool = False) -> list[tuple[int, int]]:
    """Page borders (start, end) that cover `text` without a gap."""
    borders = []
    start = 0
    while len(text) - start > _LONGEST:
        end = _page_end(text, start, markdown)
        borders.append((start, end))
        start = end
    borders.append((start, len(text)))
    return borders


def _page_end(text: str, start: int, markdown: bool) -> int:
    low, high = start + _SHORTEST, start + _LONGEST
    for boundary in (_HEADING, *_BOUNDARIES) if markdown else _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(text, low, high)]
        if ends:
            return min(ends, key=lambda end: abs(end - start - PAGE_CHARS))
    return start + PAGE_CHARS
