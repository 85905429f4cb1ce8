"""Shows over a whole document where a question looked: a bar for the terminal, a drawing as SVG or HTML.

Knows shares and pages; no models.
"""

from __future__ import annotations

import os
import sys
from html import escape
from pathlib import Path

import numpy as np

from hipcli.citations import Citation
from hipcli.console import Terminal, amount, visible
from hipcli.document import Document
from hipcli.errors import DiskError, UsageError
from hipcli.evidence import Evidence

FORMATS = (".svg", ".html")
_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = " .:-=+*#@"
_COLUMNS = 72
_WIDTH, _HEIGHT, _MARGIN, _BARS = 960, 220, 24, 480


def require_map_file(path: str | None) -> None:
    """Refuse, before a document is read, a file that could not be written in the end. Raises UsageError, DiskError."""
    if path is None:
        return
    if Path(path).suffix.lower() not in FORMATS:
        raise UsageError(f"--map-file must end in {' or '.join(FORMATS)}, got {path}")
    folder = Path(path).parent
    if not folder.is_dir():
        raise DiskError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(path if Path(path).exists() else folder, os.W_OK) or Path(path).is_dir():
        raise DiskError(f"cannot write {path}: permission denied" if not Path(path).is_dir() else f"cannot write {path}: it is a folder")


def show_map(evidence: Evidence, document: Document, terminal: Terminal) -> None:
    """The bar, with the first and the last page under it and a mark under each page cited."""
    gaze = evidence.gaze
    if gaze is None or gaze.total <= 0:
        terminal.note("Map: the question drew nothing from the document that any question would not draw")
        return
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    terminal.note(f"Map of {amount(len(document.pages), 'pages')}: where the question looked")
    for line in map_lines(evidence, document, _levels(encoding)):
        terminal.note(line)


def _levels(encoding: str) -> str:
    try:
        _LEVELS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _PLAIN_LEVELS
    return _LEVELS


def map_lines(evidence: Evidence, document: Document, levels: str = _LEVELS, width: int = _COLUMNS) -> list[str]:
    """The bar, the number of each citation under its page, and the pages that drew most."""
    gaze = evidence.gaze
    columns = gaze.columns(width)
    # anything that drew at all is seen
    heights = np.ceil(columns / columns.max() * (len(levels) - 1)).astype(int)
    marks = [" "] * width
    inside = gaze.pages[gaze.pages >= 0]
    for number, index in enumerate(evidence.cited, 1):
        middle = np.flatnonzero(inside == index)
        if middle.size:
            marks[int(middle[middle.size // 2]) * width // inside.size] = str(number)
    shares = gaze.shares()
    most = [index for index in np.argsort(-shares, kind="stable")[:3] if shares[index] > 0]
    named = ", ".join(f"{page_name(document, index)} {shares[index]:.0%}" for index in most)
    return ["  |" + "".join(levels[height] for height in heights) + "|", "   " + "".join(marks).rstrip(), f"  most: {named}"]


def page_name(document: Document, index: int) -> str:
    """p. 12 (printed "iv"), with the source where there are several."""
    page = document.pages[index]
    name = f"{document.sources[page.source].name}, " if len(document.sources) > 1 else ""
    return name + Citation("", page.number, page.label, "", 0, 0).place


def write_map(path: str, evidence: Evidence, document: Document, question: str) -> None:
    """Write the drawing whole or not at all; raises DiskError."""
    if evidence.gaze is None:
        raise ValueError("a map needs a gaze")
    svg = draw(evidence, document, question)
    text = svg if Path(path).suffix.lower() == ".svg" else _page(svg, evidence, document, question)
    beside = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    try:
        beside.write_bytes(text.encode("utf-8", "replace"))
        os.replace(beside, path)
    except OSError as fault:
        beside.unlink(missing_ok=True)
        raise DiskError(f"cannot write {path}: {fault.strerror}") from fault


def draw(evidence: Evidence, document: Document, question: str) -> str:
    """An SVG: a bar for each stretch of the document, page borders below, the pages cited numbered."""
    gaze = evidence.gaze
    columns = gaze.columns(_BARS)
    inside = gaze.pages[gaze.pages >= 0]
    room, base = _WIDTH - 2 * _MARGIN, _HEIGHT - 60
    step, top = room / _BARS, max(float(columns.max()), 1e-12)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>{_text(question)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_MARGIN}" y="18" font-size="14">{_text(_shortened(question, 110))}</text>',
    ]
    for at, share in enumerate(columns):
        if share > 0:
            height = max(0.5, share / top * (base - 36))
            parts.append(
                f'<rect x="{_MARGIN + at * step:.1f}" y="{base - height:.1f}" width="{step:.2f}" height="{height:.1f}" fill="#2b6cb0"/>'
            )
    parts.append(f'<line x1="{_MARGIN}" y1="{base}" x2="{_WIDTH - _MARGIN}" y2="{base}" stroke="#444"/>')
    cited = {index: number for number, index in enumerate(evidence.cited, 1)}
    borders = np.flatnonzero(np.diff(inside, prepend=-1))
    for start, stop in zip(borders, [*borders[1:], inside.size]):
        index, x = int(inside[start]), _MARGIN + start / inside.size * room
        end = _MARGIN + stop / inside.size * room
        parts.append(f'<line x1="{x:.1f}" y1="{base}" x2="{x:.1f}" y2="{base + 5}" stroke="#444"/>')
        label = f"{page_name(document, index)}: {gaze.shares()[index]:.1%}"
        fill = "#dd6b20" if index in cited else "transparent"
        parts.append(
            f'<rect x="{x:.1f}" y="{base + 6}" width="{max(1.0, end - x):.1f}" height="8" fill="{fill}"><title>{_text(label)}</title></rect>'
        )
        if index in cited:
            parts.append(f'<text x="{(x + end) / 2:.1f}" y="{base + 28}" text-anchor="middle">{cited[index]}</text>')
    last = _text(page_name(document, len(document.pages) - 1))
    parts.append(f'<text x="{_MARGIN}" y="{_HEIGHT - 10}">{_text(page_name(document, 0))}</text>')
    parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 10}" text-anchor="end">{last}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _page(svg: str, evidence: Evidence, document: Document, question: str) -> str:
    """The drawing with the passages cited and a table of pages, as one HTML file that needs nothing else."""
    shares = evidence.gaze.shares()
    cited = "".join(f"<li>{_text(c.source)}, {_text(c.place)}: <q>{_text(c.quote)}</q></li>" for c in evidence.citations)
    rows = "".join(f"<tr><td>{_text(page_name(document, index))}</td><td>{share:.1%}</td></tr>" for index, share in enumerate(shares))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(question)}</title></head>\n'
        f'<body style="font-family:sans-serif;max-width:1000px;margin:2em auto">\n<h1>{_text(question)}</h1>\n{svg}'
        f"<ol>{cited}</ol>\n<table><tr><th>page</th><th>share of what was drawn</th></tr>{rows}</table>\n</body></html>\n"
    )


def _text(text: str) -> str:
    """Safe inside markup: XML knows no control characters, and markup in a name or question stays text."""
    return escape(visible(text).translate({10: " ", 0xFFFE: None, 0xFFFF: None}))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
