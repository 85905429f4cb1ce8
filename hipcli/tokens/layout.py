"""The text of a document as the model reads it, and where in it each page begins.

Pages with text are joined by a blank line. Each source after the first begins with a header line; the first has none, so
that a document reads the same whether or not others follow it, and what was worked out for it can be kept.
Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hipcli.document import Document

PAGE_BREAK = "\n\n"


@dataclass(frozen=True)
class Layout:
    """Joined, parts are the document's text.

    parts: headers, page texts and page breaks in order.
    page_offsets: [pages] int64, the character at which each page begins (at its source's header, if one
        precedes it); an empty page begins where the next one with text does.
    chars: characters in all.
    """

    parts: tuple[str, ...]
    page_offsets: np.ndarray
    chars: int


def lay_out(document: Document, clean: Callable[[str], str]) -> Layout:
    """Joins a document's pages.

    Args:
        document: pages in order; those of white space only add nothing.
        clean: page text → the text to encode.
    """
    parts: list[str] = []
    offsets = np.zeros(len(document.pages), dtype=np.int64)
    end = 0
    headed = -1
    waiting = 0
    for index, page in enumerate(document.pages):
        if not page.text.strip():
            continue
        if parts:
            parts.append(PAGE_BREAK)
            end += len(PAGE_BREAK)
        offsets[waiting : index + 1] = end
        waiting = index + 1
        header = _header(document, page.source) if parts and page.source != headed else ""
        headed = page.source
        for part in (header, clean(page.text)):
            parts.append(part)
            end += len(part)
    offsets[waiting:] = end
    return Layout(tuple(parts), offsets, end)


def _header(document: Document, source: int) -> str:
    name = "".join(char for char in document.sources[source].name if char.isprintable())
    return f"=== {name} ===\n"
