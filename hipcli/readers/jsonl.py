"""JSON lines to pages: each record as readable "key: value" lines, as many records to a page as fit, named by their lines."""

from __future__ import annotations

import json
from typing import Any

from hipcli.readers.content import PAGE_CHARS, Content, Format, RawPage, ReadOptions
from hipcli.readers.source import RawSource
from hipcli.readers.text import decode_source

_DEEPEST = 20
_COST = 10  # bytes of memory for each byte


def read_jsonl(source: RawSource, options: ReadOptions) -> Content:
    """Records in order; a line that is not JSON is kept as it is, with a remark."""
    decoded = decode_source(source, options, _COST)
    pages: list[RawPage] = []
    parts: list[str] = []
    length, first, broken = 0, 1, 0
    # only "\n" ends a line: other line ends may stand inside a string
    for number, line in enumerate(decoded.text.lstrip("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        words = _readable(line)
        if words is None:
            broken += 1
            words = line.strip()
        if parts and length + len(words) > PAGE_CHARS:
            pages.append(_page(parts, first, number - 1))
            parts, length = [], 0
        if not parts:
            first = number
        parts.append(words)
        length += len(words) + 2
        last = number
    if parts:
        pages.append(_page(parts, first, last))
    remarks = [f"{broken:,} lines are not JSON and were kept as they are"] if broken else []
    return Content(pages, [*decoded.warnings, *remarks], decoded.encoding)


def _page(parts: list[str], first: int, last: int) -> RawPage:
    return RawPage("\n\n".join(parts), title=f"line {first:,}" if first == last else f"lines {first:,}–{last:,}")


def _readable(line: str) -> str | None:
    try:
        value = json.loads(line)
        if isinstance(value, str):
            return value
        return "\n".join(_lines(value, 0)) if isinstance(value, (dict, list)) else json.dumps(value)
    except (ValueError, RecursionError):
        return None


def _lines(value: Any, depth: int) -> list[str]:
    """Keys and items one a line, what is inside them two spaces further in."""
    lines: list[str] = []
    pairs = value.items() if isinstance(value, dict) else [("-", item) for item in value]
    indent = "  " * depth
    for key, item in pairs:
        name = "-" if isinstance(value, list) else f"{key}:"
        if isinstance(item, (dict, list)) and item:
            inner = _lines(item, depth + 1) if depth < _DEEPEST else [indent + "  " + json.dumps(item, ensure_ascii=False)]
            lines += [f"{indent}{name}", *inner]
        else:
            words = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            lines.append(f"{indent}{name} {words}")
    return lines


JSONL = Format("jsonl", "JSON lines", read_jsonl, (".jsonl", ".ndjson"))
