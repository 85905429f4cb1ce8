"""PDF outlines as titles of pages, and outlines and page counts that lie."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hipcli.document import Document
from hipcli.errors import InputError
from hipcli.readers import read_document


def read(tmp_path: Path, data: bytes) -> Document:
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    return read_document([str(path)])


def with_bookmarks(pdf: Any, entries: list[tuple[bytes, int, str]]) -> bytes:
    """Four pages; entries of one outline, each more of its dictionary, its page index and its title."""
    count, first = len(entries), 5
    outline = b"<< /Type /Outlines /First %d 0 R /Last %d 0 R >>" % (first, first + count - 1)
    # a page's object follows its content's, and both the outline's
    made = [
        b"<< /Title (%s) /Parent 4 0 R /Dest [%d 0 R /Fit] %s >>" % (title.encode(), first + count + 2 * page + 1, more)
        for more, page, title in entries
    ]
    pages = [pdf.stream(pdf.lines(b"page %d" % n)) for n in range(4)]
    return pdf.build(pages, extra=[outline, *made], root=b"/Outlines 4 0 R")


def test_bookmarks_are_titles(tmp_path: Path, pdf: Any) -> None:
    entries = [(b"/Next 6 0 R", 1, "One"), (b"/Next 7 0 R", 1, "One again"), (b"", 3, "Two")]
    document = read(tmp_path, with_bookmarks(pdf, entries))
    assert [page.title for page in document.pages] == [None, "One", "One again", "Two"]


def test_bookmarks_that_go_round_cost_nothing(tmp_path: Path, pdf: Any) -> None:
    began = time.monotonic()
    document = read(tmp_path, with_bookmarks(pdf, [(b"/Next 6 0 R", 0, "One"), (b"/Next 5 0 R /First 5 0 R", 2, "Two")]))
    assert [page.text.strip() for page in document.pages] == [f"page {n}" for n in range(4)] and time.monotonic() - began < 30


def test_a_million_pages_that_are_not_there_are_refused(tmp_path: Path, pdf: Any) -> None:
    with pytest.raises(InputError, match="more than 200,000 pages"):
        read(tmp_path, pdf.book("one").replace(b"/Count 1 ", b"/Count 1000000 "))
