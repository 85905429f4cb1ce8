"""The text of small PDFs, letter for letter: what an upgrade of an engine changes shows here. Letters and numbers: docs/faults.md."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hipcli.readers import read_document


def text_page(content: bytes) -> bytes:
    return b"BT /F1 12 Tf 50 700 Td " + content + b" ET"


def with_letters(pdf, content: bytes, **letters: str) -> bytes:
    """A page in a font whose codes a, b, … stand for these characters."""
    lines = b"\n".join(b"<%02x> <%s>" % (ord(code), letter.encode("utf-16-be").hex().encode()) for code, letter in letters.items())
    head = b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap 1 begincodespacerange <00> <FF> endcodespacerange\n"
    cmap = head + b"%d beginbfchar\n%s\nendbfchar endcmap end end" % (len(letters), lines)
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 4 0 R >>"
    return pdf.build([pdf.stream(text_page(content))], extra=[pdf.stream(cmap), font], resources=b"/Font << /F1 5 0 R >>")


LINES = b"14 TL (first line) Tj T* (second line) Tj T* (third line) Tj"
GOLDEN = {
    # P1: nothing in the file tells where one word ends; a page of such words is warned of
    "P1 words side by side": (b"(Crude) Tj 32.68 0 Td (oil) Tj 12.0 0 Td ( leak) Tj", "Crudeoil leak"),
    "kerning and a gap": (b"[(W) 80 (ord) -300 (two)] TJ", "Word two"),
    # P9 and P10: the order of the file is kept
    "P9 title drawn last": (b"(The body.) Tj ET BT /F1 18 Tf 50 750 Td (The title) Tj", "The body.\nThe title"),
    "P10 columns drawn by rows": (
        b"(left one) Tj 300 0 Td (right one) Tj -300 -14 Td (left two) Tj 300 0 Td (right two) Tj",
        "left one right one\nleft two right two",
    ),
    "columns drawn one by one": (
        b"(left one) Tj 0 -14 Td (left two) Tj 300 14 Td (right one) Tj 0 -14 Td (right two) Tj",
        "left one\nleft two\nright one\nright two",
    ),
    "P12 hyphens": (b"14 TL (exam-) Tj T* (ple, well-) Tj T* (known and well-known) Tj", "example, well-known and well-known"),
    "P14 text not drawn": (b"(seen) Tj ET BT /F1 12 Tf 3 Tr 50 650 Td (unseen) Tj", "seen\nunseen"),
    "replacement text": (b"/Span << /ActualText (real words) >> BDC (glyphs) Tj EMC", "real words"),
}


def read(tmp_path: Path, data: bytes):
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    return read_document([str(path)])


@pytest.mark.parametrize("name", GOLDEN)
def test_text_is_the_same_letter_for_letter(tmp_path, pdf, name):
    content, text = GOLDEN[name]
    assert read(tmp_path, pdf.build([pdf.stream(text_page(content))])).pages[0].text == text


@pytest.mark.parametrize("matrix", [b"1 0 0 1 50 700", b"0 1 -1 0 100 100", b"-1 0 0 -1 500 700", b"0 -1 1 0 500 700"])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_turned_text_and_turned_pages_keep_the_order_of_lines(tmp_path, pdf, matrix, rotation):
    """P11, and its neighbours: level text on a turned page, turned text on a level page, upside down."""
    content = pdf.stream(b"BT /F1 12 Tf %s Tm %s ET" % (matrix, LINES))
    data = pdf.build([content], extra=[], resources=b"/Font << /F1 3 0 R >> >> /Rotate %d /Group << /S /Transparency" % rotation)
    assert read(tmp_path, data).pages[0].text == "first line\nsecond line\nthird line"


def test_right_to_left_glyphs_are_put_in_the_order_of_reading(tmp_path, pdf):
    """P16: drawn from left to right, alef is last and read first."""
    drawn = b"(a) Tj 8 0 Td (b) Tj 8 0 Td (c) Tj"
    for letters, text in (
        ({"a": "\u0633", "b": "\u0644", "c": "\u0627"}, "\u0627\u0644\u0633"),
        ({"a": "\u05dd", "b": "\u05d5", "c": "\u05e9"}, "שום"),
    ):
        assert read(tmp_path, with_letters(pdf, drawn, **letters)).pages[0].text == text


def test_characters_that_turn_the_direction_are_counted(tmp_path, pdf):
    document = read(tmp_path, with_letters(pdf, b"(xay) Tj", a="\u202e"))
    assert document.pages[0].text == "x\u202ey" and "1 invisible characters that turn the direction" in document.warnings[0]


def test_soft_hyphens_go(tmp_path, pdf):
    """P12."""
    document = read(tmp_path, with_letters(pdf, b"14 TL (Polia) Tj T* (tik) Tj", a="\u00ad"))
    assert document.pages[0].text == "Politik"


def test_pages_of_glued_words_are_named(tmp_path, pdf):
    """P1, as a whole page of it is found; a title of one long word, German and code are not."""
    glued = pdf.stream(pdf.lines(*[b"Reportingcrudeoilleakages andtheconsequencesofit in everyfollowingyear"] * 4))
    honest = [b"Geschwindigkeitsbegrenzungen", b"Words of a usual length, as they should be."]
    long = [
        b"Die Rechtsschutzversicherungsgesellschaften und die Donaudampfschiffahrtsgesellschaft haben es auch gelesen und gut gefunden."
    ]
    document = read(tmp_path, pdf.build([glued, pdf.stream(pdf.lines(*honest[:1])), pdf.stream(pdf.lines(*honest, *long)), glued]))
    assert len(document.warnings) == 1 and "words run together on pages 1, 4:" in document.warnings[0]


def test_a_stream_of_eighty_megabytes_costs_nothing(tmp_path, pdf):
    """S11: packed to 80 KB; pypdf alone refuses it at 75 MB."""
    large = pdf.packed(pdf.lines(b"large") + b" " * (80 << 20))
    document = read(tmp_path, pdf.build([pdf.stream(pdf.lines(b"before")), large, pdf.stream(pdf.lines(b"after"))]))
    assert [page.text for page in document.pages] == ["before", "large", "after"] and not document.failed


def test_two_threads_read_at_once(tmp_path, pdf):
    """S13: engines that are not safe for threads run in processes."""
    paths, found = [tmp_path / "a.pdf", tmp_path / "b.pdf"], {}
    for path in paths:
        path.write_bytes(pdf.book(*[f"{path.stem} {number}" for number in range(20)]))

    def work(path: Path) -> None:
        found[path] = [[page.text for page in read_document([str(path)]).pages] for _ in range(5)]

    threads = [threading.Thread(target=work, args=(path,)) for path in paths]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(found[path] == [[f"{path.stem} {number}" for number in range(20)]] * 5 for path in paths)
