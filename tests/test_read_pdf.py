"""PDF: pages, labels, scans, encryption, and files that are broken or hostile. The engines and their processes are the real ones."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hipcli.document import Document
from hipcli.errors import InputError
from hipcli.readers import read_document
from hipcli.readers.content import RawPage, ReadOptions
from hipcli.readers.pdf import ranges, read_pdf
from hipcli.readers.pdf_process import Limits, read_pages
from hipcli.readers.source import open_source

IMAGE = (
    b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /BitsPerComponent 8 /ColorSpace /DeviceGray /Length 1 >>\n"
    b"stream\n\x7f\nendstream"
)
SHOW_IMAGE = b"q 500 0 0 700 50 50 cm /Im Do Q"


def read(tmp_path: Path, data: bytes, name: str = "a.pdf", **options: Any) -> Document:
    path = tmp_path / name
    path.write_bytes(data)
    return read_document([str(path)], **options)


def read_raw(tmp_path: Path, data: bytes, limits: Limits) -> list[RawPage]:
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    return read_pdf(open_source(str(path)), ReadOptions(), limits).pages


def words(document: Document) -> list[str]:
    return [page.text.strip() for page in document.pages]


def encrypted(data: bytes, user: str, algorithm: str) -> bytes:
    import pypdf

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    writer.encrypt(user, "owner", algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def with_to_unicode(pdf: Any, mapping: bytes, shown: bytes) -> bytes:
    """One page in a font whose ToUnicode map is `mapping`."""
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap 1 begincodespacerange <00> <FF> endcodespacerange\n"
        b"%d beginbfchar\n%s\nendbfchar endcmap end end" % (mapping.count(b"\n") + 1, mapping)
    )
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 4 0 R >>"
    return pdf.build([pdf.stream(pdf.lines(shown))], extra=[pdf.stream(cmap), font], resources=b"/Font << /F1 5 0 R >>")


def test_pages_and_progress(tmp_path: Path, pdf: Any) -> None:
    calls: list[tuple[int, int | None]] = []
    document = read(tmp_path, pdf.book("one", "two", "three"), on_page=lambda *call: calls.append(call))
    assert words(document) == ["one", "two", "three"]
    assert [page.number for page in document.pages] == [1, 2, 3]
    assert [page.label for page in document.pages] == [None] * 3
    assert [done for done, _ in calls] == [1, 2, 3, 3] and calls[-1][1] == 3
    assert document.failed == () and document.warnings == ()
    assert document.sources[0].format == "pdf"


def test_printed_labels(tmp_path: Path, pdf: Any) -> None:
    pages = [pdf.stream(pdf.lines(b"text"))] * 5
    document = read(tmp_path, pdf.build(pages, root=b"/PageLabels << /Nums [0 << /S /r >> 3 << /S /D >>] >>"))
    assert [page.label for page in document.pages] == ["i", "ii", "iii", "1", "2"]


@pytest.mark.parametrize(
    "mapping, shown, expected",
    [
        (b"<01> <0000>", b"o\\001ce", "oce"),
        (b"<01> <D835>", b"a\\001b", "a\ufffdb"),
        (b"<01> <D835>\n<02> <DC00>", b"a\\001\\002b", "a\U0001d400b"),
        (b"<01> <001B>", b"a\\001b", "ab"),
        (b"<01> <FB03>", b"o\\001ce", "office"),
    ],
    ids=["P5 nul", "P7 lone", "P7 pair", "escape", "ligature"],
)
def test_font_maps(tmp_path: Path, pdf: Any, mapping: bytes, shown: bytes, expected: str) -> None:
    text = words(read(tmp_path, with_to_unicode(pdf, mapping, shown)))[0]
    assert text == expected


def test_garbled_text_is_read_again_by_the_other_engine(tmp_path: Path, pdf: Any) -> None:
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding << /Type /Encoding /Differences [1 /f_f_i] >> >>"
    content = pdf.stream(pdf.lines(b"o\\001ce"))
    assert words(read(tmp_path, pdf.build([content], extra=[font], resources=b"/Font << /F1 4 0 R >>"))) == ["office"]


def test_hyphens_at_line_ends(tmp_path: Path, pdf: Any) -> None:
    content = pdf.stream(pdf.lines(b"an exam-", b"ple of a well-", b"known thing,", b"a well-known one"))
    assert words(read(tmp_path, pdf.build([content])))[0] == "an example of a well-known thing,\na well-known one"


@pytest.mark.parametrize(
    "data, says",
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><title>login</title>", "this is HTML, not a PDF"),
        (b'{"err": 1}', "this is JSON, not a PDF"),
        (b"Just words.", "this is plain text, not a PDF"),
        (b"\x89PNG\r\n\x1a\n\0", "this is a PNG image, not a PDF"),
        (b"%PDF-1.7\nnothing more\n%%EOF\n", "is damaged"),
    ],
    ids=["S1", "S2 html", "S2 json", "text", "png", "no objects"],
)
def test_not_a_pdf(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(tmp_path, data)


def test_a_forced_type_must_fit(tmp_path: Path, pdf: Any) -> None:
    with pytest.raises(InputError, match="plain text, not a PDF"):
        read(tmp_path, b"Just words.", "a.txt", type="pdf")
    with pytest.raises(InputError, match="it is a PDF"):
        read(tmp_path, pdf.book("one"), type="text")
    assert words(read(tmp_path, b"<html>words", type="text")) == ["<html>words"]


def test_no_xref_table(tmp_path: Path, pdf: Any) -> None:
    assert words(read(tmp_path, pdf.build([pdf.stream(pdf.lines(b"still here"))], xref=False))) == ["still here"]


def test_truncated(tmp_path: Path, pdf: Any) -> None:
    data = pdf.book("one", "two", "three")
    with pytest.raises(InputError, match="cut off"):
        read(tmp_path, data[: len(data) * 6 // 10])


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_permissions_only_encryption_is_no_obstacle(tmp_path: Path, pdf: Any, algorithm: str) -> None:
    assert words(read(tmp_path, encrypted(pdf.book("secret"), "", algorithm))) == ["secret"]


def test_password(tmp_path: Path, pdf: Any) -> None:
    data = encrypted(pdf.book("secret"), "pässwort", "AES-256")
    with pytest.raises(InputError, match="needs a password") as fault:
        read(tmp_path, data)
    assert "qpdf" in fault.value.hint
    with pytest.raises(InputError, match="password is wrong"):
        read(tmp_path, data, password="guess")
    assert words(read(tmp_path, data, password="pässwort")) == ["secret"]


def test_a_damaged_stream_costs_its_page(tmp_path: Path, pdf: Any) -> None:
    content = pdf.lines(*(b"line %d speaks of the number %d" % (i, i * i) for i in range(40)))
    document = read(tmp_path, pdf.build([pdf.packed(content), pdf.packed(content, damaged=True), pdf.packed(content)]))
    assert [page.number for page in document.pages] == [1, 3]
    assert [fault.number for fault in document.failed] == [2] and "damaged" in document.failed[0].reason


def test_wrong_check_sums_are_damage_on_few_pages_and_a_habit_on_most(tmp_path: Path, pdf: Any) -> None:
    good = pdf.packed(pdf.lines(b"whole text"))
    wrong = good.replace(good[-14:-10], b"\0\0\0\0")
    few, most = read(tmp_path, pdf.build([good, wrong, good])), read(tmp_path, pdf.build([wrong, wrong, good]))
    assert [fault.number for fault in few.failed] == [2]
    assert words(most) == ["whole text"] * 3 and "2 of 3" in most.warnings[0]


def test_scanned_pages_are_named(tmp_path: Path, pdf: Any) -> None:
    pages = [pdf.stream(SHOW_IMAGE if 3 <= n <= 8 else pdf.lines(b"page %d" % n)) for n in range(1, 11)]
    document = read(tmp_path, pdf.build(pages, extra=[IMAGE], resources=b"/Font << /F1 3 0 R >> /XObject << /Im 4 0 R >>"))
    assert [page.number for page in document.pages if page.image_only] == [3, 4, 5, 6, 7, 8]
    assert len(document.pages) == 10 and "3–8 (6 of 10)" in document.warnings[0]


def test_scan_only_and_blank_only(tmp_path: Path, pdf: Any) -> None:
    scan = pdf.build([pdf.stream(SHOW_IMAGE)] * 3, extra=[IMAGE], resources=b"/XObject << /Im 4 0 R >>")
    with pytest.raises(InputError, match="is a scan") as fault:
        read(tmp_path, scan)
    assert "ocrmypdf in.pdf out.pdf" in fault.value.hint
    with pytest.raises(InputError, match="no text on any of its 2 pages"):
        read(tmp_path, pdf.build([pdf.stream(b"")] * 2))


def test_an_empty_page_among_others_is_no_fault(tmp_path: Path, pdf: Any) -> None:
    document = read(tmp_path, pdf.build([pdf.stream(b""), pdf.stream(pdf.lines(b"text"))]))
    assert words(document) == ["", "text"] and document.failed == () and not document.pages[0].image_only


def test_no_pages(tmp_path: Path, pdf: Any) -> None:
    with pytest.raises(InputError):
        read(tmp_path, pdf.build([]))


def test_slow_page_is_stopped_and_the_rest_read(tmp_path: Path, pdf: Any) -> None:
    slow = b"BT /F1 12 Tf 50 750 Td " + b"(some words here) Tj 0 -1 Td\n" * 600_000 + b"ET"
    pages = [pdf.stream(pdf.lines(b"first")), pdf.packed(slow), pdf.stream(pdf.lines(b"last"))]
    read_back = read_raw(tmp_path, pdf.build(pages), Limits(page_seconds=0.5))
    assert [page.text.strip() for page in read_back if not page.error] == ["first", "last"]
    assert "longer than 0.5 s" in read_back[1].error


def test_bomb_is_stopped_by_the_limits(tmp_path: Path, pdf: Any) -> None:
    forms = []
    for level in range(22):
        inside = b"/F%d Do /F%d Do" % (level + 1, level + 1) if level < 21 else pdf.lines(b"boom")
        resources = b"/XObject << /F%d %d 0 R >> /Font << /F1 3 0 R >>" % (level + 1, level + 5)
        forms.append(pdf.stream(inside, b"/Type /XObject /Subtype /Form /BBox [0 0 600 800] /Resources << %s >>" % resources))
    pages = [pdf.stream(pdf.lines(b"before")), pdf.stream(b"/F0 Do"), pdf.stream(pdf.lines(b"after"))]
    data = pdf.build(pages, extra=forms, resources=b"/Font << /F1 3 0 R >> /XObject << /F0 4 0 R >>")
    read_back = read_raw(tmp_path, data, Limits(page_seconds=2.0, memory_bytes=400 << 20))
    assert [read_back[i].text.strip() for i in (0, 2)] == ["before", "after"]
    assert read_back[1].error or "boom" in read_back[1].text


def test_a_dying_worker_costs_one_page(tmp_path: Path, pdf: Any) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf.book("one", "two", "three"))
    job = {"path": str(path), "password": "", "memory_bytes": 2 << 30, "pages": [0, 7, 2], "engine": "pdfium", "task": "text"}
    answers: list[dict[str, Any]] = []
    assert read_pages(job, Limits(), answers.append) == 3
    assert [("text" in answer, answer.get("page")) for answer in answers if "page" in answer] == [(True, 0), (False, 7), (True, 2)]


def test_the_time_for_a_document_ends(tmp_path: Path, pdf: Any) -> None:
    with pytest.raises(InputError, match="time for the whole document"):
        read_raw(tmp_path, pdf.book("one", "two"), Limits(document_seconds=-1.0))


def test_a_pipe_gives_what_the_file_gives(tmp_path: Path, pdf: Any) -> None:
    data = pdf.book("one", "two")
    by_path, by_stdin = read(tmp_path, data), read_document(["-"], stdin=io.BytesIO(data))
    assert by_path.pages == by_stdin.pages and by_path.sources[0].sha256 == by_stdin.sources[0].sha256
    pipe = tmp_path / "pipe.pdf"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes(data), daemon=True).start()
    assert read_document([str(pipe)]).pages == by_path.pages


def test_junk_around_and_odd_names(tmp_path: Path, pdf: Any) -> None:
    data = pdf.book("text")
    assert words(read(tmp_path, b"HTTP/1.1 200 OK\r\n\r\n" + data + b"\0" * 4096)) == ["text"]
    for name in ["-x.pdf", "a\n[b].pdf", "\udcff.pdf", "no suffix"]:
        document = read(tmp_path, data, name)
        assert words(document) == ["text"] and document.sources[0].name.isprintable()


def test_the_engines_write_nothing_and_import_nothing_of_the_folder(tmp_path: Path, pdf: Any) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf.book("text") + b"junk" * 300)
    (tmp_path / "json.py").write_text("raise SystemExit('the folder was searched for modules')")
    code = "import sys; sys.path[:] = [p for p in sys.path if p]; from hipcli.readers import read_document; read_document(['a.pdf'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_noise_never_escapes_as_another_error(tmp_path: Path, pdf: Any) -> None:
    data = pdf.build([pdf.packed(pdf.lines(b"some words")), pdf.stream(pdf.lines(b"more words"))])
    rng = random.Random(3)
    for _ in range(3):
        noisy = bytearray(data)
        for _ in range(12):
            noisy[rng.randrange(8, len(noisy))] = rng.randrange(256)
        try:
            document = read(tmp_path, bytes(noisy))
            assert len(document.pages) + len(document.failed) >= 1
        except InputError as fault:
            assert fault.message.isprintable()


def test_ranges() -> None:
    assert ranges([1, 3, 4, 5, 8, 9]) == "1, 3–5, 8–9"
