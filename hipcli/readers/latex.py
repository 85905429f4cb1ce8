"""LaTeX sources to pages: commands kept, comments stripped, cut at the section titles."""

from __future__ import annotations

import re

from hipcli.readers.content import Content, Format, ReadOptions, check_pages
from hipcli.readers.sections import Mark, split_sections
from hipcli.readers.source import RawSource
from hipcli.readers.text import decode_source

_SECTION = re.compile(r"\\(part|chapter|section|subsection|frametitle|title)\*?[ \t]*(?:\[[^\]\n]{0,300}\])?[ \t\n]*\{")
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%[^\n]*(\n[ \t]*)?")
_VERBATIM = re.compile(r"\\begin\{(verbatim\*?|lstlisting|minted|Verbatim)\}|\\end\{(?:verbatim\*?|lstlisting|minted|Verbatim)\}")
_COMMAND = re.compile(r"\\[A-Za-z]+\*?[ \t]*|[{}$]")
_DOCUMENT = re.compile(rb"\\document(?:class|style)\b")
_LONGEST_TITLE = 500


def read_latex(source: RawSource, options: ReadOptions) -> Content:
    """Sections of LaTeX; files that it includes are sources of their own."""
    decoded = decode_source(source, options)
    text = _without_comments(decoded.text.replace("\r\n", "\n").replace("\r", "\n"))
    return Content(split_sections(text, _titles(text)), list(decoded.warnings), decoded.encoding)


def _without_comments(text: str) -> str:
    """Comments go with the line end and the indent behind them, as TeX reads them; listings stay as they are."""
    pieces: list[str] = []
    position = 0
    inside = False
    for match in [*_VERBATIM.finditer(text), None]:
        end = len(text) if match is None else match.start()
        piece = text[position:end]
        pieces.append(piece if inside else _COMMENT.sub(_uncommented, piece))
        if match is not None:
            inside = match[1] is not None
            position = end
    return "".join(pieces)


def _uncommented(match: re.Match[str]) -> str:
    """A comment on a line of its own takes the line with it; one behind text joins the next line, unless that is empty."""
    text = match.string
    line_start = text.rfind("\n", 0, match.start()) + 1
    alone = not match[1] and not text[line_start : match.start()].strip()
    before_blank = text[match.end() : match.end() + 1] == "\n"
    return match[1] + ("" if alone or not match[2] or not before_blank else "\n")


def _titles(text: str) -> list[Mark]:
    marks = []
    for match in _SECTION.finditer(text):
        end = _closing(text, match.end())
        if end is not None:
            title = " ".join(_COMMAND.sub("", text[match.end() : end]).replace("~", " ").split())
            check_pages(len(marks))
            marks.append(Mark(match.start(), end + 1, title or None))
    return marks


def _closing(text: str, start: int) -> int | None:
    """Where the brace that was open at `start` closes, if that is near."""
    depth = 1
    for position in range(start, min(len(text), start + _LONGEST_TITLE)):
        if text[position] in "{}" and text[position - 1] != "\\":
            depth += 1 if text[position] == "{" else -1
            if not depth:
                return position
    return None


def _is_latex(source: RawSource, promised: bool) -> bool:
    """Whether the first command that begins a line, comments apart, declares a class of document."""
    lines = [line.strip() for line in source.head.split(b"\n")]
    first = next((line for line in lines if line and not line.startswith((b"%", b"\\RequirePackage", b"\\PassOptionsToPackage"))), b"")
    return bool(_DOCUMENT.match(first))


LATEX = Format("latex", "LaTeX", read_latex, (".tex", ".latex", ".ltx"), _is_latex)
