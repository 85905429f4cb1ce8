"""reStructuredText to pages: the text as it is written, cut at its section titles."""

from __future__ import annotations

import re

from hipcli.readers.content import Content, Format, ReadOptions, check_pages
from hipcli.readers.sections import DEEPEST, Mark, split_sections
from hipcli.readers.source import RawSource
from hipcli.readers.text import decode_source

_RULE = re.compile(r"^([!-/:-@\[-`{-~])\1{2,}[ \t]*$")


def read_rst(source: RawSource, options: ReadOptions) -> Content:
    """Sections, found by their underlines."""
    decoded = decode_source(source, options)
    text = decoded.text.replace("\r\n", "\n").replace("\r", "\n")
    return Content(split_sections(text, _titles(text)), list(decoded.warnings), decoded.encoding)


def _titles(text: str) -> list[Mark]:
    """A line of text with a line of one punctuation mark below it that is as long; the order of first use gives the levels."""
    marks: list[Mark] = []
    levels: list[str] = []
    before, start, over, before_start = "", 0, "", 0
    position = 0
    for line in text.split("\n"):
        rule = _RULE.match(line)
        title = before.strip()
        if rule and title and not _RULE.match(before) and len(line.rstrip()) >= min(len(before.rstrip()), 20):
            boxed = over[:1] == line[:1] and bool(over)
            if boxed or not before[0].isspace():
                style = line[0] * (2 if boxed else 1)
                if style not in levels:
                    levels.append(style)
                if levels.index(style) < DEEPEST:
                    check_pages(len(marks))
                    marks.append(Mark(before_start if boxed else start, position + len(line), title))
        over = before if _RULE.match(before) else ""
        before_start, start, before = start, position, line
        position += len(line) + 1
    return marks


RST = Format("rst", "reStructuredText", read_rst, (".rst", ".rest"))
