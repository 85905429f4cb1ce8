"""The samples agree with themselves: PDFs with their Markdown, labels with the print, questions with the pages."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from pypdf import PdfReader

SAMPLES = Path(__file__).parent.parent / "samples"
SOURCES = sorted(path for path in SAMPLES.glob("*.md") if path.name != "README.md")
QUESTIONS = sorted(SAMPLES.glob("*.questions.jsonl"))
FIELDS = {"question": str, "answer": str, "accept": list, "page": int, "label": str, "quote": str}


def page_texts(path: Path) -> list[str]:
    """Each page's text with white space as single blanks."""
    return [" ".join(page.extract_text().split()) for page in PdfReader(path).pages]


def read_questions(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


@pytest.fixture(scope="module")
def builder():
    """samples/build.py as a module; it needs reportlab."""
    pytest.importorskip("reportlab")
    spec = importlib.util.spec_from_file_location("samples_build", SAMPLES / "build.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up while they are made
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def test_there_are_samples():
    assert SAMPLES / "lighthouse.md" in SOURCES
    assert [path.name.split(".")[0] for path in QUESTIONS] == [path.stem for path in SOURCES]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_pdf_matches_markdown(builder, source, tmp_path):
    builder.build(source, tmp_path / "fresh.pdf")
    builder.build(source, tmp_path / "again.pdf")
    assert (tmp_path / "fresh.pdf").read_bytes() == (tmp_path / "again.pdf").read_bytes()
    fresh, kept = PdfReader(tmp_path / "fresh.pdf"), PdfReader(source.with_suffix(".pdf"))
    assert page_texts(source.with_suffix(".pdf")) == page_texts(tmp_path / "fresh.pdf")
    assert kept.page_labels == fresh.page_labels
    assert kept.metadata.title == fresh.metadata.title


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_labels_are_printed(source):
    labels, texts = PdfReader(source.with_suffix(".pdf")).page_labels, page_texts(source.with_suffix(".pdf"))
    body = labels.index("1")
    assert body >= 1
    assert labels[:body] == ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"][:body]
    assert labels[body:] == [str(number) for number in range(1, len(labels) - body + 1)]
    for label, text in zip(labels[1:], texts[1:]):
        assert text.endswith(f" {label}")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_bookmarks_name_every_heading(source):
    reader = PdfReader(source.with_suffix(".pdf"))
    headings = re.findall(r"^###? +(.+)$", source.read_text(encoding="utf-8"), re.MULTILINE)
    entries = [entry for part in reader.outline for entry in (part if isinstance(part, list) else [part])]
    assert [entry.title for entry in entries] == [heading.replace("*", "") for heading in headings]
    texts = page_texts(source.with_suffix(".pdf"))
    for entry in entries:
        assert " ".join(entry.title.split()) in texts[reader.get_destination_page_number(entry)]


@pytest.mark.parametrize("path", QUESTIONS, ids=lambda path: path.stem)
def test_questions_stand_on_their_pages(path):
    pdf = path.with_name(path.name.replace(".questions.jsonl", ".pdf"))
    labels, texts, questions = PdfReader(pdf).page_labels, page_texts(pdf), read_questions(path)
    assert len(questions) >= 15
    assert len({question["question"] for question in questions}) == len(questions)
    for question in questions:
        for name, kind in FIELDS.items():
            assert isinstance(question[name], kind), (name, question)
        assert " ".join(question["quote"].split()) in texts[question["page"] - 1], question
        assert question["label"] == labels[question["page"] - 1], question
        assert any(word.lower() in question["answer"].lower() for word in question["accept"]), question


def test_the_short_sample_is_short():
    assert 10 <= len(PdfReader(SAMPLES / "lighthouse.pdf").pages) <= 15


@pytest.mark.parametrize(
    ("markdown", "complaint"),
    [
        ("## No title first\n\n# Title", "title"),
        ("# Title\n\nA snowman: \u2603", "\u2603"),
        ("# Title\n\n#### Too deep", "Too deep"),
        ("# Title\n\n| a | b |\n|---|---|\n| only one |", "cells"),
        ("# Title\n\n<!-- unknown -->", "unknown"),
    ],
)
def test_builder_refuses_what_it_would_misprint(builder, markdown, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        builder.parse(markdown)


def test_builder_keeps_escapes_and_breaks(builder, tmp_path):
    source = tmp_path / "small.md"
    one, two = "## One\n\n2 \\* 3 & **four** < 5", "## Two\n\n1. a\n   b\n2. c"
    source.write_text(f"# A *small* book\n\n{one}\n\n\\newpage\n\n<!-- body -->\n\n{two}\n", encoding="utf-8")
    builder.build(source, tmp_path / "small.pdf")
    reader = PdfReader(tmp_path / "small.pdf")
    assert reader.metadata.title == "A small book"
    assert reader.page_labels == ["i", "ii", "1"]
    _title, first, second = page_texts(tmp_path / "small.pdf")
    assert first == "One 2 * 3 & four < 5 A small book ii"
    assert second == "Two 1. a b 2. c A small book 1"
