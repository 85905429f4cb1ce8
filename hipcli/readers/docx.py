"""Word documents (.docx) to pages: all text in its order, a section under each heading, notes where they are referred to.

Insertions are kept, deletions dropped; content controls, text boxes, tables, headers and footers are read.
"""

from __future__ import annotations

import posixpath
import re

from hipcli.errors import InputError
from hipcli.readers.container import BOOK_BYTES, Container, member_names, open_container
from hipcli.readers.content import Content, Format, RawPage, ReadOptions
from hipcli.readers.flow import FlowWriter
from hipcli.readers.source import RawSource
from hipcli.readers.xml import parse, tree

_TYPES = "[Content_Types].xml"
_DROPPED = frozenset({"del", "moveFrom", "Fallback"})  # what was deleted or moved away, and copies for old programs
_NOTES = {"footnotes": "footnote", "endnotes": "endnote"}


def read_docx(source: RawSource, options: ReadOptions) -> Content:
    """A page for each section. Raises InputError for a document that is damaged, protected or a bomb."""
    with open_container(source, BOOK_BYTES) as archive:
        main = _main_part(archive, source.name)
        folder = posixpath.dirname(main)
        levels = _heading_levels(archive, source.name, f"{folder}/styles.xml")
        notes = {}
        for plural, kind in _NOTES.items():
            notes.update(_notes(archive, source.name, f"{folder}/{plural}.xml", kind))
        body = _Body(levels, notes)
        body.read(archive.read(main), f"{source.name} ({main})")
        pages = body.writer.pages() + _margins(archive, source.name, folder)
        remarks = _left_out(archive, folder)
    return Content(pages, remarks)


class _Body:
    """Feeds the tags of one part to a FlowWriter. levels: {style: level}; notes: {(kind, id): text}."""

    def __init__(self, levels: dict[str, int] | None = None, notes: dict[tuple[str, str], str] | None = None) -> None:
        self.writer = FlowWriter()
        self._levels = levels or {}
        self._notes = notes or {}
        self._dropped = 0  # how many elements that are left out are open
        self._text = False
        self._paragraphs: list[str] = []  # the kind of each open one; text boxes stand within paragraphs
        self._waiting: list[str] = []  # notes of the paragraph

    def read(self, data: bytes, what: str) -> None:
        parse(data, what, self.start, self.end, self.data)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name in _DROPPED:
            self._dropped += 1
        if self._dropped:
            return
        writer = self.writer
        if name == "t":
            self._text = True
        elif name == "p":
            writer.paragraph()
            self._paragraphs.append("")
        elif name in ("pStyle", "outlineLvl", "numId"):
            self._style(name, attributes.get("val", ""))
        elif name == "tab" and "pos" not in attributes:
            writer.verbatim("\t")
        elif name in ("br", "cr"):
            writer.line()
        elif name == "noBreakHyphen":
            writer.verbatim("\u2011")
        elif name == "sym":
            writer.verbatim(_symbol(attributes.get("char", "")))
        elif name == "tr":
            writer.row()
        elif name == "tc":
            writer.cell()
        elif name == "tbl":
            writer.paragraph()
        elif name in ("footnoteReference", "endnoteReference"):
            self._refer(name.removesuffix("Reference"), attributes.get("id", ""))
        elif name == "docPr" and attributes.get("descr", "").strip():
            writer.text(f" [{attributes['descr']}] ")

    def end(self, name: str) -> None:
        if name in _DROPPED:
            self._dropped -= 1
        elif self._dropped:
            return
        elif name == "t":
            self._text = False
        elif name == "p" and self._paragraphs:
            if self._paragraphs.pop() == "heading":
                self.writer.close_heading()
            self.writer.paragraph()
            if not self._paragraphs:
                for note in self._waiting:
                    self.writer.verbatim(note)
                    self.writer.paragraph()
                self._waiting.clear()
        elif name == "tr":
            self.writer.end_row()
        elif name == "tbl":
            self.writer.paragraph()

    def data(self, text: str) -> None:
        if self._text and not self._dropped:
            self.writer.verbatim(text)

    def _style(self, name: str, value: str) -> None:
        """A heading's paragraph names its level before its text."""
        if not self._paragraphs or self._paragraphs[-1] == "heading":
            return
        if name == "numId":
            if value != "0":  # 0 takes a paragraph out of the list that its style puts it in
                self.writer.item("- ")
            return
        level = self._levels.get(value) if name == "pStyle" else int(value) + 1 if value.isdecimal() and int(value) < 9 else None
        if level:
            self._paragraphs[-1] = "heading"
            self.writer.item("")
            self.writer.open_heading(level)

    def _refer(self, kind: str, number: str) -> None:
        note = self._notes.pop((kind, number), "")  # once: a long note referred to a million times is a bomb
        if note:
            self.writer.verbatim(f"[{number}]")
            self._waiting.append(f"[{number}: {note}]")


def _main_part(archive: Container, name: str) -> str:
    if "_rels/.rels" in archive:
        for relation in tree(archive.read("_rels/.rels"), name).iter("Relationship"):
            if relation.get("Type", "").endswith("/officeDocument"):
                return posixpath.normpath(relation.get("Target", "").lstrip("/"))
    return "word/document.xml"


def _heading_levels(archive: Container, name: str, part: str) -> dict[str, int]:
    """Styles that make headings, with their levels: by outline level, by name, or by the style they build on."""
    if part not in archive:
        return {}
    levels: dict[str, int] = {}
    bases: dict[str, str] = {}
    for style in tree(archive.read(part), f"{name} ({part})").iter("style"):
        key = style.get("styleId", "")
        title, base, outline = (style.find(path) for path in ("name", "basedOn", "pPr/outlineLvl"))
        words = (title.get("val", "") if title is not None else "").lower()
        if outline is not None and outline.get("val", "").isdecimal() and int(outline.get("val", "")) < 9:
            levels[key] = int(outline.get("val", "")) + 1
        elif match := re.fullmatch(r"heading ([1-9])|title", words):
            levels[key] = int(match[1] or 1)
        elif base is not None:
            bases[key] = base.get("val", "")
    for key in bases:
        base, seen = bases[key], {key}
        while base in bases and base not in seen and base not in levels:
            seen.add(base)
            base = bases[base]
        if base in levels:
            levels[key] = levels[base]
    return levels


def _notes(archive: Container, name: str, part: str, kind: str) -> dict[tuple[str, str], str]:
    """The texts of foot- or endnotes by kind and number."""
    if part not in archive:
        return {}
    found: dict[tuple[str, str], str] = {}
    body, number = _Body(), ""

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal body, number
        if tag == kind:
            body, number = _Body(), "" if attributes.get("type", "normal") != "normal" else attributes.get("id", "")
        body.start(tag, attributes)

    def end(tag: str) -> None:
        body.end(tag)
        if tag == kind and number:
            found[kind, number] = " ".join(_words(body).split())

    parse(archive.read(part), f"{name} ({part})", start, end, lambda text: body.data(text))
    return found


def _margins(archive: Container, name: str, folder: str) -> list[RawPage]:
    """Headers and footers as one page at the end, each text once."""
    texts: dict[str, None] = {}
    for part in sorted(archive.members):
        if re.fullmatch(rf"{re.escape(folder)}/(?:header|footer)\d*\.xml", part):
            body = _Body()
            body.read(archive.read(part), f"{name} ({part})")
            texts[_words(body).strip()] = None
    text = "\n\n".join(text for text in texts if text)
    return [RawPage(text, title="Headers and footers")] if text else []


def _words(body: _Body) -> str:
    return "".join(page.text for page in body.writer.pages())


def _left_out(archive: Container, folder: str) -> list[str]:
    parts = {
        "comments.xml": "comments were left out",
        "charts/": "charts were left out",
        "diagrams/": "diagrams were left out",
        "embeddings/": "embedded files were left out",
        "afchunk": "embedded documents were left out",
    }
    return [words for part, words in parts.items() if any(name.startswith(f"{folder}/{part}") for name in archive.members)]


def _symbol(code: str) -> str:
    try:
        return chr(int(code, 16))
    except (ValueError, OverflowError):
        return "\ufffd"


def _matches(source: RawSource, promised: bool) -> bool:
    names = member_names(source)
    if _TYPES not in names:
        return False
    try:
        with open_container(source) as archive:
            return b"wordprocessingml" in archive.read(_TYPES)
    except InputError:
        return False


DOCX = Format("docx", "a Word document (.docx)", read_docx, (".docx", ".docm"), _matches, binary=True)
