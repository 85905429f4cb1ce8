"""A document cut into the parts that a summary is made of: its sections, neighbouring ones joined, or even spans.

Every page with text is in at least one part. Knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hipcli.document import Document
from hipcli.errors import UsageError

TOKENS_PER_PART = 500
MAX_PARTS = 16
# a section of fewer tokens, a bare heading or a list of contents, goes with the next one
_LEAST_TOKENS = 100
# a section longer than so many even parts is cut between its pages
_LONGEST_SECTION = 1.5
_QUOTED_WORDS = 12
_MOST_TITLE_CHARS = 80


@dataclass(frozen=True)
class Piece:
    """Text of one page, or a stretch of it from `start` on. page: index into Document.pages."""

    page: int
    text: str
    tokens: float
    start: int = 0


@dataclass(frozen=True)
class Part:
    """A stretch of the document. pages: indices into Document.pages; titles: of its first and last section, where they have one."""

    pieces: tuple[Piece, ...]
    titles: tuple[str, ...] = ()

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(piece.page for piece in self.pieces))

    @property
    def tokens(self) -> int:
        return round(sum(piece.tokens for piece in self.pieces))

    @property
    def opening(self) -> str:
        """Its first words."""
        return " ".join(self.pieces[0].text.split()[:_QUOTED_WORDS])[:160]

    @property
    def title(self) -> str | None:
        return " … ".join(self.titles) or None


def part_count(tokens: int) -> int:
    """How many parts a document of so many tokens is cut into."""
    return max(1, min(MAX_PARTS, math.ceil(tokens / TOKENS_PER_PART)))


def settle_division(document: Document, by: str) -> str:
    """What "auto" comes to: "joined" sections where the document names them, even "pages" otherwise.

    Raises UsageError for "section" where it names none.
    """
    sections = _sections(document)
    titled = [pages for pages in sections if document.pages[pages[0]].title]
    if by == "auto":
        chars = sum(len(document.pages[page].text) for pages in titled for page in pages)
        return "joined" if len(titled) > 1 and 2 * chars >= document.chars else "pages"
    if by == "section" and not titled:
        raise UsageError(
            "--by section: the document has neither bookmarks nor headings that name sections", "hip summarize FILE --by pages"
        )
    return by


def make_parts(document: Document, page_tokens: Sequence[int], division: str, count: int) -> list[Part]:
    """Cut as `settle_division` says; "joined" and "pages" make at most `count` parts of about equal tokens.

    Even parts begin and end between pages where pages are short enough, joined ones between sections.
    """
    if division == "section":
        groups = _whole_sections(document, page_tokens)
    else:
        target = sum(page_tokens) / count
        groups = _even(
            [unit for pages in _units(document, division) for unit in _cut(document, page_tokens, pages, target, division)], count
        )
    return [Part(tuple(pieces), _titles(document, pieces)) for pieces in groups]


def _sections(document: Document) -> list[list[int]]:
    """Pages with text, by runs of one source and title."""
    pages = [index for index, page in enumerate(document.pages) if page.text.strip()]
    return [list(run) for _, run in groupby(pages, key=lambda index: (document.pages[index].source, document.pages[index].title))]


def _units(document: Document, division: str) -> list[list[int]]:
    sections = _sections(document)
    return sections if division == "joined" else [[page] for pages in sections for page in pages]


def _whole_sections(document: Document, page_tokens: Sequence[int]) -> list[list[Piece]]:
    """Each section as it is; one that is too short to be summarised joins the next of its source, the last one the one before."""
    groups: list[list[Piece]] = []
    for pages in _sections(document):
        pieces = [Piece(page, document.pages[page].text, page_tokens[page]) for page in pages]
        before = groups[-1] if groups else []
        same = bool(before) and document.pages[before[-1].page].source == document.pages[pages[0]].source
        if same and _tokens(before) < _LEAST_TOKENS:
            before.extend(pieces)
        else:
            groups.append(pieces)
    if len(groups) > 1 and _tokens(groups[-1]) < _LEAST_TOKENS:
        groups[-2].extend(groups.pop())
    return groups


def _tokens(pieces: Sequence[Piece]) -> float:
    return sum(piece.tokens for piece in pieces)


def _cut(document: Document, page_tokens: Sequence[int], pages: Sequence[int], target: float, division: str) -> list[list[Piece]]:
    """A unit as what must stay together: a section of fair length whole, else page by page, long pages cut."""
    if division == "joined" and sum(page_tokens[page] for page in pages) <= _LONGEST_SECTION * target:
        return [[Piece(page, document.pages[page].text, page_tokens[page]) for page in pages]]
    return [[piece] for page in pages for piece in _pieces(page, document.pages[page].text, page_tokens[page], target)]


def _pieces(page: int, text: str, tokens: int, target: float) -> list[Piece]:
    """A page, or parts of it cut at white space where it is longer than a part should be."""
    parts = max(1, round(tokens / target)) if target else 1
    bounds = [0]
    for number in range(1, parts):
        cut = text.find("\n", number * len(text) // parts)
        space = text.find(" ", number * len(text) // parts)
        cut = cut if 0 <= cut <= space + 200 else space
        bounds.append(max(cut, bounds[-1]))
    bounds.append(len(text))
    cuts = [(low, text[low:high]) for low, high in zip(bounds, bounds[1:])]
    return [Piece(page, part, tokens * len(part) / len(text), low) for low, part in cuts if part.strip()]


def _even(units: Sequence[Sequence[Piece]], count: int) -> list[list[Piece]]:
    """Units in order, in at most `count` groups of about equal tokens."""
    total, passed = sum(_tokens(unit) for unit in units), 0.0
    groups: dict[int, list[Piece]] = {}
    for unit in units:
        size = _tokens(unit)
        place = int((passed + size / 2) / max(total, 1e-9) * count)
        groups.setdefault(min(place, count - 1), []).extend(unit)
        passed += size
    return [groups[place] for place in sorted(groups)]


def _titles(document: Document, pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Of the first and the last section that have one, on one line each."""
    titles = [" ".join(title.split()) for piece in pieces if (title := document.pages[piece.page].title)]
    ends = dict.fromkeys([titles[0], titles[-1]] if titles else [])
    return tuple(title if len(title) <= _MOST_TITLE_CHARS else title[: _MOST_TITLE_CHARS - 1] + "…" for title in ends)
