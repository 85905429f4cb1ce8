"""Turns the Markdown of a sample into a PDF book: page labels, bookmarks, contents, the same bytes every time.

Knows the small Markdown that README.md beside it describes, and refuses the rest; knows nothing of `hip`.

    python samples/build.py [FILE.md ...]     # no FILE: every samples/*.md but README.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from xml.sax.saxutils import escape

from reportlab.lib.colors import HexColor
from reportlab.lib.enums import TA_CENTER, TA_JUSTIFY, TA_LEFT, TA_RIGHT
from reportlab.lib.pagesizes import A5
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.platypus import BaseDocTemplate, Flowable, Frame, PageBreak, PageTemplate, Paragraph, Spacer, Table

MARGIN = 18 * mm
WIDTH = A5[0] - 2 * MARGIN
CELL_PADDING = 4
MARKS = {"\\newpage": "newpage", "<!-- body -->": "body", "<!-- contents -->": "contents"}
HEADINGS = {"#": "title", "##": "chapter", "###": "section"}
ITEM = re.compile(r"(-|\d+\.) +(.*)")
RULE = re.compile(r"\|( *:?-+:? *\|)+")
INK = HexColor("#22303c")
ALL = ((0, 0), (-1, -1))
GRID = [
    ("LINEABOVE", (0, 0), (-1, 0), 0.8, INK),
    ("LINEBELOW", (0, 0), (-1, 0), 0.4, INK),
    ("LINEBELOW", (0, -1), (-1, -1), 0.8, INK),
    ("VALIGN", *ALL, "TOP"),
    ("LEFTPADDING", *ALL, CELL_PADDING),
    ("RIGHTPADDING", *ALL, CELL_PADDING),
    ("TOPPADDING", *ALL, 2),
    ("BOTTOMPADDING", *ALL, 2.5),
]
BODY = ParagraphStyle(
    "body", fontName="Times-Roman", fontSize=10.5, leading=14.5, spaceAfter=6, alignment=TA_JUSTIFY, allowWidows=0, allowOrphans=0
)
CELL = ParagraphStyle("cell", BODY, fontSize=9.5, leading=12, spaceAfter=0, alignment=TA_LEFT)
TOP = ParagraphStyle("top", CELL, fontName="Times-Bold")
LABEL = ParagraphStyle("label", CELL, alignment=TA_RIGHT)
HEAD = ParagraphStyle("head", fontName="Helvetica-Bold", textColor=INK, keepWithNext=1)
STYLES = {
    "text": BODY,
    "item": ParagraphStyle("item", BODY, leftIndent=16, bulletIndent=3, spaceAfter=3),
    "chapter": ParagraphStyle("chapter", HEAD, fontSize=17, leading=21, spaceAfter=12),
    "section": ParagraphStyle("section", HEAD, fontSize=11, leading=14, spaceBefore=6, spaceAfter=4),
    "title": ParagraphStyle("title", HEAD, fontSize=28, leading=34, spaceAfter=14, alignment=TA_CENTER),
    "imprint": ParagraphStyle("imprint", BODY, alignment=TA_CENTER),
}


@dataclass(frozen=True)
class Block:
    """One piece of the document.

    kind: "title", "chapter", "section", "text", "item", "table", "newpage", "body" or "contents".
    text: the Markdown inside; sign: the bullet or number of an item; rows: the cells of a table, header first.
    """

    kind: str
    text: str = ""
    sign: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


def parse(markdown: str) -> list[Block]:
    """Cuts Markdown into blocks.

    Raises:
        ValueError: something that a PDF page would not show as it was meant; the message names it.
    """
    try:
        markdown.encode("cp1252")
    except UnicodeEncodeError as fault:
        raise ValueError(f"the standard PDF fonts have no {markdown[fault.start]!r}") from fault
    blocks = [block for part in re.split(r"\n\s*\n", markdown.strip()) for block in _parse_part(part.splitlines())]
    if [block.kind for block in blocks].count("title") != 1 or blocks[0].kind != "title":
        raise ValueError("one '# ' title is needed, on the first line")
    return blocks


def _parse_part(lines: list[str]) -> list[Block]:
    """Blocks of one run of lines without a blank line in it."""
    if lines[0].startswith("|"):
        return [Block("table", rows=_parse_table(lines))]
    blocks: list[Block] = []
    for line in map(str.strip, lines):
        item = ITEM.match(line)
        sign, _, rest = line.partition(" ")
        if line in MARKS:
            blocks.append(Block(MARKS[line]))
        elif sign in HEADINGS and rest:
            blocks.append(Block(HEADINGS[sign], rest.strip()))
        elif line.startswith(("#", "<!--", "|", "```", ">")):
            raise ValueError(f"not in the convention: {line!r}")
        elif item:
            # a dash in print too: readers do not agree on the letter code of the standard fonts' bullet
            blocks.append(Block("item", item[2], item[1].replace("-", "–")))
        elif blocks and blocks[-1].kind in ("text", "item"):
            blocks[-1] = replace(blocks[-1], text=f"{blocks[-1].text} {line}")
        else:
            blocks.append(Block("text", line))
    return blocks


def _parse_table(lines: list[str]) -> tuple[tuple[str, ...], ...]:
    rows = tuple(tuple(cell.strip() for cell in line.strip()[1:-1].split("|")) for line in lines[:1] + lines[2:])
    if len(lines) < 3 or not RULE.fullmatch(lines[1].strip()) or len({len(row) for row in rows}) > 1:
        raise ValueError(f"a table needs a header, a |---| line and rows of as many cells: {lines[0]!r}")
    return rows


def inline(text: str) -> str:
    """Markdown inside a line to the tags of reportlab's Paragraph."""
    kept = re.sub(r"\\([\\*|#-])", lambda found: f"&#{ord(found[1])};", escape(text))
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", kept)
    return re.sub(r"\*(.+?)\*", r"<i>\1</i>", bold)


def plain(text: str) -> str:
    """Markdown inside a line to bare text, for bookmarks and metadata."""
    return re.sub(r"\\([\\*|#-])", r"\1", re.sub(r"(?<!\\)\*", "", text))


class Book(BaseDocTemplate):
    """The page layout: a foot with the printed label, page labels and bookmarks."""

    def __init__(self, target: str | BytesIO, title: str) -> None:
        super().__init__(
            target, pagesize=A5, invariant=1, lang="en-GB", title=title, author="hip samples", subject="", creator="samples/build.py"
        )
        self.first_body_page: int | None = None
        self.labels: dict[str, str] = {}
        frame = Frame(MARGIN, MARGIN + 4 * mm, WIDTH, A5[1] - 2 * MARGIN - 4 * mm, 0, 0, 0, 0)
        self.addPageTemplates(PageTemplate("page", [frame], onPageEnd=self._draw_foot))

    def beforeDocument(self) -> None:
        self.canv.addPageLabel(0, style="ROMAN_LOWER", start=1)

    def afterFlowable(self, flowable: Flowable) -> None:
        block = getattr(flowable, "block", Block("none"))
        if block.kind == "body":
            self.first_body_page = self.page
            self.canv.addPageLabel(self.page - 1, style="ARABIC", start=1)
        elif block.kind in ("chapter", "section"):
            key = f"heading-{self.page}-{round(self.frame._y)}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(plain(block.text), key, level=int(block.kind == "section"), closed=True)
            if block.kind == "chapter":
                self.labels[block.text] = self._label()

    def _label(self) -> str:
        """What is printed on the present page."""
        return roman(self.page) if self.first_body_page is None else str(self.page - self.first_body_page + 1)

    def _draw_foot(self, canvas, _document) -> None:
        if self.page == 1:
            return
        canvas.setFont("Times-Italic", 9)
        canvas.drawString(MARGIN, MARGIN - 4 * mm, self.title)
        canvas.setFont("Times-Roman", 10)
        canvas.drawRightString(A5[0] - MARGIN, MARGIN - 4 * mm, self._label())


def roman(number: int) -> str:
    """A number from 1 to 39 in small roman numerals."""
    units = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
    return "x" * (number // 10) + units[number % 10]


def flow(blocks: list[Block], labels: dict[str, str]) -> Iterator[Flowable]:
    """The blocks as flowables; two page breaks in a row count as one.

    labels: the printed label of each chapter by its heading, for the contents; empty while it is not known.
    """
    at_top, on_title_page = True, True
    for block, follower in zip(blocks, [*blocks[1:], Block("end")]):
        if block.kind in ("chapter", "newpage", "body"):
            on_title_page = False
            if not at_top:
                yield PageBreak()
        at_top = block.kind in ("newpage", "body")
        if block.kind == "contents":
            yield _contents(blocks, labels)
        elif block.kind == "table":
            yield from (_table(block.rows), Spacer(1, 9))
        elif block.kind != "newpage":
            if block.kind == "title":
                yield Spacer(1, 46 * mm)
            yield _paragraph(block, on_title_page)
            if block.kind == "item" and follower.kind != "item":
                yield Spacer(1, 4)


def _paragraph(block: Block, on_title_page: bool) -> Flowable:
    """A flowable that still knows its block; the mark of the body's start takes no room."""
    style = STYLES.get("imprint" if on_title_page and block.kind == "text" else block.kind)
    flowable = Spacer(0, 0) if style is None else Paragraph(inline(block.text), style, bulletText=block.sign or None)
    flowable.block = block
    return flowable


def _contents(blocks: list[Block], labels: dict[str, str]) -> Table:
    """The chapters after the contents, each with its label."""
    chapters = [block.text for block in blocks[blocks.index(Block("contents")) :] if block.kind == "chapter"]
    rows = [[Paragraph(inline(text), CELL), Paragraph(labels.get(text, ""), LABEL)] for text in chapters]
    return Table(rows, [WIDTH - 40, 40], style=[("LEFTPADDING", *ALL, 0), ("RIGHTPADDING", *ALL, 0)])


def _table(rows: tuple[tuple[str, ...], ...]) -> Table:
    """A ruled table; where the page is too narrow for it, no column gets narrower than its longest word."""
    columns = [[plain(cell) for cell in column] for column in zip(*rows)]
    widest = [max(map(_width, column)) for column in columns]
    least = [max(_width(word) for cell in column for word in cell.split() or [""]) for column in columns]
    share = (WIDTH - sum(least)) / max(1.0, sum(widest) - sum(least))
    widths = [low + (high - low) * share for low, high in zip(least, widest)] if sum(widest) > WIDTH else widest
    cells = [[Paragraph(inline(cell), CELL if number else TOP) for cell in row] for number, row in enumerate(rows)]
    return Table(cells, widths, repeatRows=1, hAlign="LEFT", style=GRID)


def _width(text: str) -> float:
    """Points that a cell needs for a text, its padding included."""
    return stringWidth(text, "Times-Bold", CELL.fontSize) + 2 * CELL_PADDING + 2


def build(source: Path, target: Path) -> None:
    """Writes the PDF of one Markdown file.

    Raises:
        ValueError: the Markdown leaves the convention; the message quotes the place.
    """
    blocks = parse(source.read_text(encoding="utf-8"))
    title = plain(blocks[0].text)
    # the first pass finds the labels that the second one prints in the contents
    draft = Book(BytesIO(), title)
    draft.build(list(flow(blocks, {})))
    Book(str(target), title).build(list(flow(blocks, draft.labels)))


def main(arguments: list[str]) -> None:
    """Builds the named files, or every sample."""
    samples = sorted(path for path in Path(__file__).parent.glob("*.md") if path.name != "README.md")
    for source in [Path(name) for name in arguments] or samples:
        build(source, source.with_suffix(".pdf"))
        print(source.with_suffix(".pdf"))


if __name__ == "__main__":
    main(sys.argv[1:])
