"""Markdown to pages, a section under each heading. The text stays as it is."""

from __future__ import annotations

import re

from hipcli.readers.content import Content, Format, ReadOptions, check_pages
from hipcli.readers.sections import DEEPEST, Mark, split_sections
from hipcli.readers.source import RawSource
from hipcli.readers.text import decode_source, text_pages

_LINES = re.compile(r"^ {0,3}(?:(?P<fence>`{3,}|~{3,})|(?P<level>#{1,6})[ \t]+(?P<title>[^\n]*)|(?P<rule>=+|-+)[ \t]*$)", re.M)

_LONGEST_TITLE = 500


def read_markdown(source: RawSource, options: ReadOptions) -> Content:
    """Sections of Markdown; form feeds, where there are any, are pages as in plain text."""
    decoded = decode_source(source, options)
    text = decoded.text.replace("\r\n", "\n").replace("\r", "\n")
    pages = text_pages(text) if "\f" in text else split_sections(text, headings(text))
    return Content(pages, list(decoded.warnings), decoded.encoding)


def headings(text: str) -> list[Mark]:
    """The headings of levels 1 to 3, none of them inside fenced code."""
    marks: list[Mark] = []
    fence = ""
    for match in _LINES.finditer(text):
        if match["fence"]:
            if not fence:
                fence = match["fence"]
            elif match["fence"].startswith(fence):
                fence = ""
        elif fence:
            continue
        elif match["level"]:
            if len(match["level"]) <= DEEPEST:
                title = re.sub(r"[ \t]+#+[ \t]*$", "", match["title"][:_LONGEST_TITLE]).strip()
                check_pages(len(marks))
                marks.append(Mark(match.start(), match.end(), _plain(title)))
        elif underlined := _underlined(text, match.start()):
            check_pages(len(marks))
            marks.append(Mark(underlined[0], match.end(), _plain(underlined[1])))
    return marks


def _underlined(text: str, rule: int) -> tuple[int, str] | None:
    """Start and words of the line above an underline, if that line stands alone."""
    start = text.rfind("\n", 0, max(0, rule - 1)) + 1
    title = text[start:rule][:_LONGEST_TITLE].strip()
    alone = start == 0 or text[max(0, start - 2) : start] == "\n\n"
    if not title or not alone or title[0] in "-*+>|#=`":
        return None
    return start, title


def _plain(title: str) -> str:
    """A title without links, emphasis and code marks."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("**", "").replace("`", "")


MARKDOWN = Format("markdown", "Markdown", read_markdown, (".md", ".markdown", ".mdown", ".mkd"))
