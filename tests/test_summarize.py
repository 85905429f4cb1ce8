"""Summaries: every page belongs to a span, spans are even, and the table tells the truth about the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.document import Document, Page, PageFault, Source
from hipcli.inspection import missing_pages, page_ranges
from hipcli.pipeline import Answer
from hipcli.summarize import Span, coverage_lines, make_spans, span_count

HIP = Path(sys.executable).with_name("hip")


def document(texts: list[str], failed: tuple[PageFault, ...] = (), scans: tuple[int, ...] = ()) -> Document:
    """Pages are numbered in order, past those that failed."""
    lost = {fault.number for fault in failed}
    numbers = [number for number in range(1, len(texts) + len(lost) + 1) if number not in lost]
    pages = tuple(Page(number, text, image_only=number in scans) for number, text in zip(numbers, texts))
    return Document((Source("book.pdf", "pdf", 1, "0" * 64),), pages, failed)


def said(text: str) -> Answer:
    return Answer(text, "stop", 1, 1.0, 0.5)


@pytest.mark.parametrize("sizes", [[10], [10] * 7, [1, 500, 1], [0, 10, 0, 0, 10, 0], [3, 1, 4, 1, 5, 9, 2, 6], [5000]])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_every_page_with_text_is_in_a_span(sizes, count):
    book = document(["word " * size for size in sizes])
    spans = make_spans(book, sizes, count)
    covered = [page for span in spans for page in span.pages]
    assert sorted(set(covered)) == [index for index, size in enumerate(sizes) if size]
    assert covered == sorted(covered) and 1 <= len(spans) <= count
    assert abs(sum(span.tokens for span in spans) - sum(sizes)) <= len(spans)


def test_spans_are_even():
    sizes = [100 + 30 * (index % 5) for index in range(60)]
    spans = make_spans(document(["word " * size for size in sizes]), sizes, 8)
    assert len(spans) == 8
    assert max(span.tokens for span in spans) - min(span.tokens for span in spans) <= 2 * max(sizes)


def test_one_long_page_is_cut_inside():
    text = " ".join(f"line{number}\n" for number in range(5000))
    spans = make_spans(document([text]), [20_000], 5)
    assert len(spans) == 5 and all(span.pages == (0,) for span in spans)
    openings = [span.opening.split()[0] for span in spans]
    assert openings[0] == "line0" and len(set(openings)) == 5
    # a page without white space cannot be cut, and is not lost
    assert len(make_spans(document(["x" * 9000]), [3000], 4)) == 1


def test_the_number_of_spans_grows_with_the_document_and_ends():
    assert [span_count(tokens) for tokens in (0, 1, 4000, 4001, 40_000, 10**6)] == [1, 1, 1, 2, 10, 16]


def test_the_table_names_what_is_missing():
    book = document(["text", "", "", "text"], failed=(PageFault(4, "damaged"),), scans=(3,))
    parts = [Span((0,), "text", 10), Span((3,), "text", 12)]
    table = "\n".join(coverage_lines(book, parts, [said("It begins."), said("")]))
    assert "Coverage: 1 of 5 pages" in table
    assert "yes" in table and "no: the model said nothing" in table
    assert "empty: 2" in table and "scanned, without text: 3" in table and "not read: 4 (damaged)" in table
    assert missing_pages(book) == ["p. 3", "p. 4"]


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([4], "4"), ([3, 1, 2], "1-3"), ([1, 3, 4, 9], "1, 3-4, 9")])
def test_page_ranges(numbers, text):
    assert page_ranges(numbers) == text


def test_a_whole_run(tiny_model, tmp_path, pdf):
    (tmp_path / "book.pdf").write_bytes(pdf.book(*(f"Page {number} tells of boats" for number in range(1, 7)), ""))
    env = os.environ | {"HIP_MODEL": str(tiny_model), "HIP_OFFLINE": "1", "HIP_DATA_DIR": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}

    def hip(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([HIP, "summarize", "book.pdf", *arguments], cwd=tmp_path, env=env, capture_output=True, timeout=120)

    plain = hip("--spans", "3", "--max-tokens", "8", "--quiet")
    assert (plain.returncode, plain.stderr) == (0, b"")
    text = plain.stdout.decode()
    assert text.index("Pages 1 to 2") < text.index("Pages 3 to 4") < text.index("Pages 5 to 6") < text.index("Coverage: 6 of 7 pages")
    assert "empty: 7" in text
    record = json.loads(hip("--spans", "3", "--max-tokens", "8", "--json").stdout)
    assert len(record["spans"]) == 3 and record["summary"]
    assert [(row["page"], row["spans"], row["reason"]) for row in record["coverage"]] == [
        *((number, [(number + 1) // 2], None) for number in range(1, 7)),
        (7, [], "empty"),
    ]
    assert all(row["summarised"] for row in record["coverage"][:6])
