"""Text in a PDF that nobody sees is listed by `hip inspect --warnings`, and what is seen is not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hipcli.readers import read_document
from hipcli.readers.pdf_hidden import OUTSIDE, TINY

HIP = Path(sys.executable).with_name("hip")
SEEN = b"BT /F1 12 Tf 50 750 Td (Total 485000) Tj ET "
CASES = {
    "not drawn": (b"BT /F1 12 Tf 3 Tr 50 700 Td (Total is 1) Tj ET", "letters that are not drawn"),
    "white": (b"BT /F1 12 Tf 1 1 1 rg 50 700 Td (Total is 1) Tj ET", "letters of the paper's colour"),
    "nearly white": (b"BT /F1 12 Tf 0.98 g 50 700 Td (Total is 1) Tj ET", "letters of the paper's colour"),
    "tiny": (b"BT /F1 0.1 Tf 50 700 Td (Total is 1) Tj ET", "letters too small to see"),
    "scaled to nothing": (b"BT /F1 12 Tf 0.01 0 0 0.01 50 700 Tm (Total is 1) Tj ET", "letters too small to see"),
    "off the page": (b"BT /F1 12 Tf 50 -700 Td (Total is 1) Tj ET", "letters off the page"),
    "beside the page": (b"BT /F1 12 Tf 5000 700 Td (Total is 1) Tj ET", "letters off the page"),
}
HONEST = {
    "black": b"BT /F1 12 Tf 50 700 Td (Total is 1) Tj ET",
    "white on black": b"0 g 40 690 200 30 re f BT /F1 12 Tf 1 g 50 700 Td (Total is 1) Tj ET",
    "light grey": b"BT /F1 12 Tf 0.8 g 50 700 Td (Total is 1) Tj ET",
    "a footnote of 4 points": b"BT /F1 4 Tf 50 700 Td (Total is 1) Tj ET",
    "a comma off the page": b"BT /F1 12 Tf 5000 700 Td (,) Tj ET",
    "outlined": b"BT /F1 24 Tf 1 Tr 50 700 Td (Total is 1) Tj ET",
}
IMAGE = (
    b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /BitsPerComponent 8 /ColorSpace /DeviceGray /Length 1 >>\n"
    b"stream\n\x7f\nendstream"
)


def hidden(tmp_path: Path, pdf, content: bytes, **build) -> tuple[tuple[str, str], ...]:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf.build([pdf.stream(SEEN + content)], **build))
    (page,) = read_document([str(path)], hidden=True).pages
    assert "Total 485000" in page.text
    return page.hidden


@pytest.mark.parametrize("case", CASES)
def test_text_that_nobody_sees_is_found(tmp_path, pdf, case):
    content, kind = CASES[case]
    assert hidden(tmp_path, pdf, content) == ((kind, "Total is 1"),)


@pytest.mark.parametrize("case", HONEST)
def test_text_that_is_seen_is_not(tmp_path, pdf, case):
    assert hidden(tmp_path, pdf, HONEST[case]) == ()


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_turned_pages(tmp_path, pdf, rotation):
    white_on_black = HONEST["white on black"] + b" " + CASES["white"][0].replace(b"700", b"600").replace(b"is 1", b"is 2")
    path = tmp_path / "a.pdf"
    data = pdf.build([pdf.stream(white_on_black)])
    path.write_bytes(data.replace(b"/MediaBox [0 0 600 800]", b"/MediaBox [0 0 600 800] /Rotate %d" % rotation))
    (page,) = read_document([str(path)], hidden=True).pages
    assert page.hidden == (("letters of the paper's colour", "Total is 2"),)


def test_the_recognised_text_of_a_scan_is_no_secret(tmp_path, pdf):
    scan = {"extra": [IMAGE], "resources": b"/Font << /F1 3 0 R >> /XObject << /Im 4 0 R >>"}
    layer = b"q 600 0 0 800 0 0 cm /Im Do Q " + CASES["not drawn"][0]
    assert hidden(tmp_path, pdf, layer, **scan) == ()
    stamp = b"q 60 0 0 80 0 0 cm /Im Do Q " + CASES["not drawn"][0]
    assert hidden(tmp_path, pdf, stamp, **scan) != ()


def test_it_is_looked_for_only_when_asked(tmp_path, pdf):
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf.build([pdf.stream(CASES["white"][0])]))
    assert read_document([str(path)]).pages[0].hidden == ()


def test_a_page_of_hidden_words_is_few_findings_and_takes_no_time(tmp_path, pdf):
    words = b"".join(b"(word) Tj 0 -1 Td\n" for _ in range(20_000))
    began = time.monotonic()
    found = hidden(tmp_path, pdf, b"BT /F1 1 Tf 1 g 50 700 Td " + words + b"ET")
    assert [(kind, len(text)) for kind, text in found] == [(TINY, 300), (OUTSIDE, 300)] and time.monotonic() - began < 8


def test_inspect_lists_it(tmp_path, pdf):
    (tmp_path / "bill.pdf").write_bytes(pdf.build([pdf.stream(SEEN), pdf.stream(SEEN + CASES["white"][0])]))
    env = {"HIP_DATA_DIR": str(tmp_path), "HIP_OFFLINE": "1", "PATH": "/usr/bin"}

    def inspect(*options: str) -> str:
        command = [HIP, "inspect", "bill.pdf", "--warnings", *options]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    assert "  p. 2 shows nobody (letters of the paper's colour): “Total is 1”\n" in inspect()
    (row,) = json.loads(inspect("--json"))["suspicions"]
    assert (row["page"], row["quote"]) == (2, "Total is 1") and row["kind"].startswith("shows nobody")
