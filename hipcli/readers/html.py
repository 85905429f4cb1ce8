"""HTML to pages: the readable text, a section under each heading. Scripts and styles go, closed navigation menus too."""

from __future__ import annotations

import re

from hipcli.readers.content import Content, Format, ReadOptions
from hipcli.readers.cutting import clean_title
from hipcli.readers.decode import Decoded, decode
from hipcli.readers.flow import FlowWriter
from hipcli.readers.markup import Token, tokens
from hipcli.readers.sniff import binary_kind, is_html
from hipcli.readers.source import RawSource
from hipcli.readers.text import decode_source

_PARAGRAPHS = frozenset(
    "p div section article main header footer aside figure figcaption blockquote table ul ol dl pre form fieldset address details "
    "body center hgroup".split()
)
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_LINES = frozenset("dt dd option legend summary caption tbody thead tfoot optgroup".split())
_HIDDEN = frozenset({"script", "style", "iframe", "noembed", "noframes"})
_DROPPED = frozenset({"nav", "template"})  # only when they are closed: an open one must not swallow the text
_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})|<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([^\"']{1,40})", re.I
)
_PAGE_ID = re.compile(r"^(?:page|pg|p)?[\W_]*", re.I)
_HEAD_BYTES = 4096
_COST = 8  # bytes of memory for each byte
_NAVIGATION = "navigation menus were left out (--type text keeps everything)"
_ENDLESS = "a script or style in it never ends, and all that follows was left out (--type text keeps everything)"


def read_html(source: RawSource, options: ReadOptions) -> Content:
    """The text of an HTML file. Raises InputError for binary files."""
    if options.encoding is None and not binary_kind(source.head):
        decoded = decode_html(source.read(_COST), source.charset)
    else:
        decoded = decode_source(source, options)
    reader = HtmlReader()
    reader.feed(decoded.text)
    pages = reader.pages()
    if not any(page.text.strip() for page in pages):  # a page of menus only
        reader = HtmlReader(keep_navigation=True)
        reader.feed(decoded.text)
        pages = reader.pages()
    remarks = [_NAVIGATION] * bool(reader.left_out) + [_ENDLESS] * bool(reader.hidden)
    return Content(pages, [*decoded.warnings, *remarks], decoded.encoding)


def decode_html(data: bytes, charset: str | None = None) -> Decoded:
    """Characters of HTML: UTF-8 when it is that, else what the server (charset) or the file says of itself, else a guess."""
    found = _CHARSET.search(data[:_HEAD_BYTES])
    name = charset or ((found[1] or found[2]).decode("ascii", "replace") if found else None)
    if name and name.lower().startswith(("iso-2022", "hz-gb")):  # seven bits: it would pass for UTF-8
        try:
            return Decoded(data.decode(name), name.lower())
        except (LookupError, UnicodeError):
            pass
    return decode(data, declared=name)


class HtmlReader:
    """Feeds the tokens of HTML to a FlowWriter.

    targets: {id: title} where sections begin by the word of a table of contents; headings do not then. left_out: words of menus. images: how many it shows.
    hidden: the script or style that is not closed yet.
    """

    def __init__(self, *, keep_navigation: bool = False, targets: dict[str, str] | None = None, xhtml: bool = False) -> None:
        self.writer = FlowWriter()
        self.title: str | None = None
        self.left_out = self.images = 0
        self.anchors: dict[str, str] = targets or {}
        self._headings = targets is None
        self._keep_navigation = keep_navigation
        self._xhtml = xhtml
        self.hidden = ""
        self._element = ""  # the last that began
        self._dropped: list[tuple[str, int]] = []
        self._lists: list[int | None] = []
        self._pre = 0

    def feed(self, text: str) -> None:
        """Read a whole file."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        for token in tokens(text, self._xhtml or text.lstrip("\ufeff \n").startswith("<?xml")):
            if token.kind == "text":
                self._text(token)
            elif token.kind == "start":
                self._start(token.value, token.attributes)
            else:
                self._end(token.value)

    def pages(self, title: str | None = None):
        """The sections; title: of what comes before the first heading, by default the file's own."""
        return self.writer.pages(title or clean_title(self.title))

    def _text(self, token: Token) -> None:
        if token.raw and self._element in _HIDDEN:
            return
        if token.raw and self._element == "title":
            self.title = self.title or token.value.strip()
        elif self._pre:
            self.writer.verbatim(token.value)
        else:
            self.writer.text(token.value)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        writer = self.writer
        self._element = name
        if attributes:
            self._note_target(attributes)
        if name in _HIDDEN:
            self.hidden = name
        elif name in _DROPPED and not self._keep_navigation:
            writer.paragraph()
            self._dropped.append((name, writer.length))
        elif name in _PARAGRAPHS:
            self._paragraph(name, attributes)
        elif name in _HEADINGS:
            writer.open_heading(int(name[1])) if self._headings else writer.paragraph()
        elif name == "br" or name in _LINES:
            writer.line()
        elif name == "hr":
            writer.paragraph()
        elif name == "li":
            self._item()
        elif name == "tr":
            writer.row()
        elif name in ("td", "th"):
            writer.cell()
        elif name == "rt":
            writer.verbatim("(")
        elif name in ("img", "image"):
            self.images += 1
            if attributes.get("alt", "").strip():
                writer.text(f" [{attributes['alt']}] ")
        elif name in ("button", "input", "select", "textarea"):
            writer.space()

    def _paragraph(self, name: str, attributes: dict[str, str]) -> None:
        nested = name in ("ul", "ol") and self._lists
        self.writer.line() if nested else self.writer.paragraph()
        if name in ("ul", "ol"):
            start = attributes.get("start", "1")
            number = int(start) if re.fullmatch(r"-?\d{1,9}", start) else 1
            self._lists.append(number - 1 if name == "ol" else None)
        elif name == "pre":
            self._pre += 1

    def _item(self) -> None:
        number = self._lists[-1] if self._lists else None
        if number is not None:
            self._lists[-1] = number + 1
        indent = "  " * min(len(self._lists) - 1, 8)
        self.writer.item(indent + ("- " if number is None else f"{number + 1}. "))

    def _end(self, name: str) -> None:
        writer = self.writer
        if name in _HIDDEN:
            self.hidden = ""
        elif name in _DROPPED:
            if any(name == open for open, _ in self._dropped):
                self._drop(name)
        elif name in _HEADINGS:
            writer.close_heading() if self._headings else writer.paragraph()
        elif name in ("ul", "ol"):
            if self._lists:
                self._lists.pop()
            writer.line() if self._lists else writer.paragraph()
        elif name in _PARAGRAPHS:
            if name == "pre":
                self._pre = max(0, self._pre - 1)
            writer.paragraph()
        elif name == "tr":
            writer.end_row()
        elif name in _LINES or name == "li":
            writer.line()
        elif name == "rt":
            writer.verbatim(")")

    def _drop(self, name: str) -> None:
        while True:
            opened, first = self._dropped.pop()
            if opened == name:
                words = self.writer.drop(first).split()
                self.left_out += len(words) if name == "nav" else 0
                return

    def _note_target(self, attributes: dict[str, str]) -> None:
        """Printed page numbers of e-books, and places that a table of contents names."""
        if "pagebreak" in attributes.get("epub:type", "") or "pagebreak" in attributes.get("role", ""):
            label = attributes.get("title") or attributes.get("aria-label") or _PAGE_ID.sub("", attributes.get("id", ""))
            self.writer.mark(label=clean_title(label))
        for name in ("id", "name"):
            place = attributes.get(name)
            if place and place in self.anchors:
                self.writer.mark(title=self.anchors[place])


def _matches(source: RawSource, promised: bool) -> bool:
    return is_html(source.head, weakly=promised or not source.suffix)


HTML = Format("html", "HTML", read_html, (".html", ".htm", ".xhtml", ".xht"), _matches)
