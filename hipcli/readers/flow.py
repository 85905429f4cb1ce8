"""Words, lines, paragraphs, table rows and headings written in order, out come sections of text. Knows no format."""

from __future__ import annotations

import io
import re

from hipcli.readers.content import RawPage, check_pages
from hipcli.readers.sections import DEEPEST, Mark, split_sections

_SPACE = re.compile(r"[ \t\n\r\f\v]+")
CELL = " | "
_BREAKS = ("", " ", "\n", "\n\n")
_SPACED, _LINE, _PARAGRAPH = 1, 2, 3


class FlowWriter:
    """Collects running text; what separates two pieces is written only when the second one comes."""

    def __init__(self) -> None:
        # one buffer, not a list of pieces: a file of tags with a letter each would cost a hundred times its size
        self._out = io.StringIO(newline="")
        self._length = 0
        self._gap = 0
        self._cell = False  # the next text begins a further cell of a row
        self._prefix = ""
        self._row_begun = False
        self._fresh = False  # nothing was written to the cell yet
        self._marks: list[Mark] = []
        self._heading: tuple[int, int] | None = None  # its level, and how long the text was before it

    def text(self, text: str) -> None:
        """Inline text; white space counts as one space."""
        if text.isspace() or not text:
            self._gap = max(self._gap, _SPACED if text else 0)
            return
        words = _SPACE.sub(" ", text)
        if words[0] == " ":
            self._gap = max(self._gap, _SPACED)
        self.verbatim(words.strip(" "))
        if words[-1] == " ":
            self._gap = _SPACED

    def verbatim(self, text: str) -> None:
        """Text whose white space counts."""
        if text:
            self._separate()
            self._put(text)

    def space(self) -> None:
        """The next text is a word of its own."""
        self._gap = max(self._gap, _SPACED)

    def line(self) -> None:
        """The next text begins a line."""
        if not self._fresh:
            self._gap = max(self._gap, _LINE)

    def paragraph(self) -> None:
        """The next text stands behind an empty line."""
        if not self._fresh:
            self._gap = _PARAGRAPH

    def item(self, mark: str) -> None:
        """The next text is an item of a list."""
        self.line()
        self._prefix = mark

    def row(self) -> None:
        """The next cell is the first one of a row."""
        self.end_row()
        self._gap = max(self._gap, _LINE)

    def end_row(self) -> None:
        """What follows stands on a line of its own, with no empty line between."""
        self._gap = _LINE if self._row_begun else self._gap
        self._cell = self._row_begun = self._fresh = False

    def cell(self) -> None:
        """The next text is a cell of the row; empty cells keep their place."""
        if self._row_begun:
            if self._cell:  # the cell before was empty
                self._put(CELL.rstrip())
                self._gap = 0
            self._cell = True
        self._row_begun = self._fresh = True

    def open_heading(self, level: int) -> None:
        self.paragraph()
        self._heading = (level, self._length)

    def close_heading(self) -> None:
        """The text since `open_heading` is a title."""
        if self._heading is None:
            return
        level, first = self._heading
        self._heading = None
        words = self._since(first)
        if level <= DEEPEST and words.strip():
            start = self._length - len(words.lstrip("\n"))
            self._mark(Mark(start, self._length, words.strip()))
        self.paragraph()

    def mark(self, *, title: str | None = None, label: str | None = None) -> None:
        """A section or a printed page begins here."""
        self._mark(Mark(self._length, self._length, title, label))

    @property
    def length(self) -> int:
        """Characters written so far, for `drop`."""
        return self._length

    def drop(self, length: int) -> str:
        """Take back everything written since `length`; returns it."""
        words = self._since(length)
        self._out.seek(length)
        self._out.truncate()
        self._length = length
        while self._marks and self._marks[-1].end > length:
            self._marks.pop()
        self._heading = None
        self._gap = max(self._gap, _LINE)
        return words

    def pages(self, title: str | None = None) -> list[RawPage]:
        """The sections so far; title: of what comes before the first heading."""
        return split_sections(self._out.getvalue(), self._marks, title)

    def _separate(self) -> None:
        if self._cell:
            self._put(CELL)
        elif self._length:
            self._put(_BREAKS[self._gap])
        if self._prefix:
            self._put(self._prefix)
        self._gap, self._cell, self._fresh, self._prefix = 0, False, False, ""

    def _put(self, text: str) -> None:
        self._out.write(text)
        self._length += len(text)

    def _since(self, length: int) -> str:
        self._out.seek(length)
        return self._out.read()

    def _mark(self, mark: Mark) -> None:
        check_pages(len(self._marks))
        self._marks.append(mark)
