"""`hip extract`: the clean text of documents on stdout, exactly as a model would be given it, with page marks.

Needs no model. Knows nothing of tokens.
"""

from __future__ import annotations

import sys

from hipcli import __version__
from hipcli.console import Terminal, visible, without_controls, write_json, write_stdout
from hipcli.document import Document, Page
from hipcli.input import read
from hipcli.inspection import check_complete, document_record
from hipcli.options import RunOptions


def extract(options: RunOptions, terminal: Terminal, *, marks: bool = True) -> None:
    """Write the text of every page; a mark before each names its source and numbers."""
    document = read(options, terminal)
    if terminal.as_json:
        write_json(_record(document))
    else:
        clean = visible if sys.stdout is not None and sys.stdout.isatty() else without_controls
        for page in document.pages:
            mark = f"{page_mark(page, document)}\n" if marks else ""
            write_stdout(clean(f"{mark}{page.text.rstrip()}\n" + ("\n" if marks else "")))
        for fault in document.failed:
            terminal.warn(f"page {fault.number} of {document.sources[fault.source].name} could not be read: {fault.reason}")
    check_complete(document, options)


def page_mark(page: Page, document: Document) -> str:
    """--- book.pdf, page 12 (printed "iv"), The Lamp ---"""
    return f"--- {document.sources[page.source].name}, page {page.number}{page.place} ---"


def _record(document: Document) -> dict:
    pages = [
        {
            "source": document.sources[page.source].name,
            "page": page.number,
            "label": page.label,
            "title": page.title,
            "image_only": page.image_only,
            "text": page.text,
        }
        for page in document.pages
    ]
    return {
        "schema_version": 1,
        "pages": pages,
        "document": document_record(document),
        "warnings": list(document.warnings),
        "hip_version": __version__,
    }
