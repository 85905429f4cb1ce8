"""EPUB and Word documents: all their text, in order, with titles; and files of these kinds that are broken or hostile."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from hipcli.document import Document
from hipcli.errors import DoesNotFit, InputError
from hipcli.readers import container, epub, read_document


def read(tmp_path: Path, data: bytes, name: str = "book", **options: Any) -> Document:
    path = tmp_path / name
    path.write_bytes(data)
    return read_document([str(path)], **options)


def text(document: Document) -> str:
    return "\n".join(page.text.strip() for page in document.pages)


CHAPTERS = {
    "b%20c.xhtml": "<p>Before.</p><h1>First</h1><p>One &amp; two</p><h2 id='s'>Inner</h2><p>three</p>",
    "a.xhtml": "<p>goes on</p>",
    "z.xhtml": "<title/><script/><p>last<br/>line</p>",
}
TOC = '<li><a href="b%20c.xhtml">Chapter <b>one</b></a><ol><li><a href="b%20c.xhtml#s">Part</a></li></ol></li><li><a href="z.xhtml">End</a></li>'


def renamed(zips: Any, **more: Any) -> bytes:
    """The book above; members have spaces where links have %20."""
    chapters = {name: text for name, text in CHAPTERS.items()}
    return zips.epub(chapters, TOC, **{"OEBPS/b c.xhtml": f"<html><body>{CHAPTERS['b%20c.xhtml']}</body></html>", **more})


def test_epub_follows_the_spine_and_the_table_of_contents(tmp_path, zips):
    document = read(tmp_path, renamed(zips))
    assert document.sources[0].format == "epub"
    assert [page.title for page in document.pages] == ["Chapter one", "Part", "Part", "End"]
    assert text(document) == "Before.\n\nFirst\n\nOne & two\nInner\n\nthree\ngoes on\nlast\nline"


def test_epub_without_contents_takes_its_headings(tmp_path, zips):
    document = read(tmp_path, zips.epub({"a.xhtml": "<h1>One</h1><p>x</p>", "b.xhtml": "<p>y</p>", "c.xhtml": "<h2>Two</h2>z"}))
    assert [page.title for page in document.pages] == ["One", "One", "Two"]


def test_epub_2_navigation_file(tmp_path, zips):
    package = '<package><manifest><item id="n" href="t/toc.ncx"/><item id="c" href="c.htm"/></manifest><spine toc="n"><itemref idref="c"/></spine></package>'
    ncx = (
        '<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd"><ncx><navMap>'
        '<navPoint><navLabel><text>Part\n I</text></navLabel><content src="../c.htm"/></navPoint></navMap></ncx>'
    )
    more = {"OEBPS/book.opf": package, "OEBPS/t/toc.ncx": ncx, "OEBPS/c.htm": "<p>words"}
    assert read(tmp_path, zips.epub({}, **more)).pages[0].title == "Part I"


def test_epub_printed_pages_are_labels(tmp_path, zips):
    body = "<p>a</p><p>b <span epub:type='pagebreak' id='page_xii'/> c</p><div role='doc-pagebreak' title='13'></div><p>d</p>"
    document = read(tmp_path, zips.epub({"a.xhtml": body}))
    assert [page.label for page in document.pages] == [None, "xii", "13"]
    assert document.pages[1].place == ' (printed "xii")'


def test_epub_covers_are_empty_pages_and_books_of_pictures_are_refused(tmp_path, zips):
    cover = "<svg><image href='c.jpg'/></svg>"
    document = read(tmp_path, zips.epub({"a.xhtml": cover, "b.xhtml": "<p>x</p>"}))
    assert [(page.text, page.image_only) for page in document.pages] == [("", False), ("x", False)]
    with pytest.raises(InputError, match="pictures only"):
        read(tmp_path, zips.epub({"a.xhtml": cover, "b.xhtml": "<img src='d.jpg'/>"}))


def test_epub_missing_and_damaged_chapters_are_failed_pages(tmp_path, zips):
    data = renamed(zips).replace(b"OEBPS/a.xhtml", b"OEBPS/q.xhtml")
    document = read(tmp_path, data)
    assert [(fault.number, "not in it" in fault.reason) for fault in document.failed] == [(3, True)] and len(document.pages) == 3


def test_epub_with_protected_chapters_is_refused_and_with_protected_fonts_read(tmp_path, zips):
    def book(uri: str) -> bytes:
        cipher = f'<encryption><EncryptedData><CipherData><CipherReference URI="{uri}"/></CipherData></EncryptedData></encryption>'
        return zips.epub({"a.xhtml": "<p>x</p>"}, **{"META-INF/encryption.xml": cipher})

    assert text(read(tmp_path, book("OEBPS/font.otf"))) == "x"
    with pytest.raises(InputError, match="DRM"):
        read(tmp_path, book("OEBPS/a.xhtml"))


def p(text: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


E12 = (
    p("Before")
    + f"<w:tbl><w:tr><w:tc>{p('CELL')}</w:tc><w:tc>{p('two')}{p('more')}</w:tc></w:tr><w:tr><w:tc>{p('next')}</w:tc></w:tr></w:tbl>"
    + p("After")
    + '<w:p><w:r><w:t xml:space="preserve">State of </w:t></w:r><w:ins><w:r><w:t>Delaware</w:t></w:r></w:ins>'
    + "<w:del><w:r><w:delText>Nevada</w:delText></w:r></w:del><w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom></w:p>"
    + f"<w:sdt><w:sdtContent>{p('InControl')}</w:sdtContent></w:sdt>"
    + "<w:p><w:r><mc:AlternateContent><mc:Choice><w:txbxContent>" + p("In a box") + "</w:txbxContent></mc:Choice>"
    + f"<mc:Fallback>{p('In a box')}</mc:Fallback></mc:AlternateContent></w:r></w:p>"
    + '<w:p><w:r><w:t>Noted</w:t><w:footnoteReference w:id="2"/><w:tab/><w:t>on</w:t><w:br/><w:t>line</w:t></w:r></w:p>'
    + '<w:p><w:pPr><w:numPr><w:numId w:val="3"/></w:numPr></w:pPr><w:r><w:t>item</w:t></w:r></w:p>'
    + '<w:p><w:pPr><w:numPr><w:numId w:val="0"/></w:numPr></w:pPr><w:r><w:t>none</w:t></w:r></w:p>'
)  # fmt: skip
FOOTNOTES = (
    '<w:footnotes SPACE><w:footnote w:type="separator" w:id="0"><w:p/></w:footnote>'
    f'<w:footnote w:id="2">{p("See")}{p("below.")}</w:footnote></w:footnotes>'
)


def test_word_keeps_all_text_in_order(tmp_path, zips):
    """E12."""
    margin = f"<w:hdr SPACE>{p('Confidential')}</w:hdr>"
    data = zips.docx(E12, **{"footnotes.xml": FOOTNOTES, "header1.xml": margin, "header2.xml": margin, "comments.xml": "<x/>"})
    document = read(tmp_path, data)
    assert document.sources[0].format == "docx"
    assert document.pages[0].text == (
        "Before\n\nCELL | two\n\nmore\nnext\n\nAfter\n\nState of Delaware\n\nInControl\n\nIn a box\n\nNoted[2]\ton\nline\n\n[2: See below.]\n\n- item\n\nnone"
    )
    assert (document.pages[1].text, document.pages[1].title) == ("Confidential", "Headers and footers")
    assert "comments were left out" in document.warnings[0]


STYLES = """<w:styles SPACE>
<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>
<w:style w:styleId="Mine"><w:name w:val="mine"/><w:basedOn w:val="berschrift1"/></w:style>
<w:style w:styleId="Deep"><w:name w:val="x"/><w:pPr><w:outlineLvl w:val="5"/></w:pPr></w:style>
<w:style w:styleId="A"><w:name w:val="a"/><w:basedOn w:val="B"/></w:style>
<w:style w:styleId="B"><w:name w:val="b"/><w:basedOn w:val="A"/></w:style>
</w:styles>"""


def test_word_headings_are_titles(tmp_path, zips):
    body = p("intro") + p("One", "berschrift1") + p("x") + p("Two", "Mine") + p("y", "A") + p("Deep", "Deep") + p("z")
    document = read(tmp_path, zips.docx(body, **{"styles.xml": STYLES}))
    assert [page.title for page in document.pages] == [None, "One", "Two"]
    assert document.pages[2].text == "Two\n\ny\n\nDeep\n\nz"


def bomb(zips: Any, name: str, megabytes: int = 300) -> bytes:
    return zips.zip({name: b"A" * (megabytes << 20)})


@pytest.mark.parametrize("kind", ["epub", "docx"])
def test_zip_bombs_are_refused(tmp_path, zips, kind):
    """E10: counted while it is read, whatever the headers say."""
    member = b"A" * (100 << 20)
    data = zips.epub({"a.xhtml": ""}, **{"OEBPS/a.xhtml": member}) if kind == "epub" else zips.docx("", **{"document.xml": member})
    assert len(data) < 200_000
    began = time.monotonic()
    with pytest.raises(InputError, match="zip bomb"):
        read(tmp_path, data)
    assert time.monotonic() - began < 5


def test_members_that_together_are_too_much_are_refused(tmp_path, zips, read_here, monkeypatch):
    monkeypatch.setattr(epub, "BOOK_BYTES", 100_000)
    chapters = {f"{n}.xhtml": f"<p>{random.Random(n).randbytes(20_000).hex()}</p>" for n in range(4)}
    path = tmp_path / "a.epub"
    path.write_bytes(zips.epub(chapters))
    with pytest.raises(InputError, match="unpacks to more than"):
        read_here(path)


def test_what_is_repeated_by_reference_is_read_once(tmp_path, zips):
    """A megabyte named a hundred thousand times would be a hundred gigabytes."""
    note = f'<w:footnotes SPACE><w:footnote w:id="2">{p("long " * 200_000)}</w:footnote></w:footnotes>'
    references = '<w:p><w:r><w:t>x</w:t><w:footnoteReference w:id="2"/></w:r></w:p>' * 10_000
    assert len(text(read(tmp_path, zips.docx(references, **{"footnotes.xml": note})))) < 1_100_000
    chapter = "<p>" + "long " * 200_000
    spine = '<item id="c" href="a.xhtml"/></manifest><spine>' + '<itemref idref="c"/>' * 10_000
    package = f"<package><manifest>{spine}</spine></package>"
    assert len(text(read(tmp_path, zips.epub({"a.xhtml": chapter}, **{"OEBPS/book.opf": package})))) < 1_100_000


def test_too_many_members_are_refused_before_they_are_listed(tmp_path, zips, monkeypatch):
    monkeypatch.setattr(container, "_DIRECTORY_BYTES", 5_000)
    with pytest.raises(InputError, match="more than 20,000 files|ZIP"):
        read(tmp_path, zips.epub({f"{n}.xhtml": "x" for n in range(100)}), "a.epub")


LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("doctype", [LAUGHS, OUTSIDE], ids=["bomb", "file"])
def test_entities_are_refused(tmp_path, zips, doctype):
    with pytest.raises(InputError, match="entities"):
        read(tmp_path, zips.docx("", **{"document.xml": f"{doctype}<w:document SPACE><w:body>&a;</w:body></w:document>"}))
    with pytest.raises(InputError, match="entities"):
        read(tmp_path, zips.epub({"a.xhtml": "x"}, **{"META-INF/container.xml": f"{doctype}<container>&a;</container>"}))


def test_external_files_of_chapters_are_not_read(tmp_path, zips):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    body = f'<p>x &a; <img src="file://{secret}"/><object data="../../secret"/></p>'
    chapters = {"a.xhtml": body, "../../../secret": "y"}
    document = read(tmp_path, zips.epub(chapters))
    assert "SECRET" not in text(document)


def test_nesting_is_capped(tmp_path, zips):
    deep = "<w:sdt>" * 50_000 + "</w:sdt>" * 50_000
    with pytest.raises(InputError, match="nested"):
        read(tmp_path, zips.docx(deep))
    assert "x" in text(read(tmp_path, zips.epub({"a.xhtml": "<div>" * 50_000 + "x"})))


@pytest.mark.parametrize("kind", ["epub", "docx"])
def test_cut_off_and_noisy_files_end_in_one_sentence(tmp_path, zips, read_here, kind):
    whole = renamed(zips) if kind == "epub" else zips.docx(E12, **{"footnotes.xml": FOOTNOTES, "styles.xml": STYLES})
    with pytest.raises(InputError, match="damaged|ZIP"):
        read(tmp_path, whole[: len(whole) // 2], f"a.{kind}")
    rng = random.Random(5)
    for _ in range(60):
        noisy = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            noisy[rng.randrange(len(noisy))] = rng.randrange(256)
        path = tmp_path / f"a.{kind}"
        path.write_bytes(noisy)
        try:
            read_here(path)
        except (InputError, DoesNotFit) as fault:
            assert fault.message.isprintable()


def test_a_name_must_keep_its_promise(tmp_path, zips):
    for name, data, says in [("a.epub", b"<html>", "HTML, not an EPUB"), ("a.docx", b"words", "plain text, not a Word document")]:
        with pytest.raises(InputError, match=says):
            read(tmp_path, data, name)
    for data in (zips.docx(p("x")), zips.epub({"a.xhtml": "x"})):
        with pytest.raises(InputError, match="as text: it is an? (EPUB|Word)") as fault:
            read(tmp_path, data, type="text")
        assert fault.value.hint == "Leave out --type."
    assert read(tmp_path, zips.docx(p("x")), "a.epub").sources[0].format == "docx"
