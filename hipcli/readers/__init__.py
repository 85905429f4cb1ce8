"""Documents in, clean pages out: `read_document` is the one way from a path or standard input to text.

Each source is sniffed, read by the reader for its format, normalised, and reported on: what was guessed, what could
not be read. Knows nothing of tokens, models or terminals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import BinaryIO

from hipcli.document import Document, Page, PageFault, Source
from hipcli.errors import InputError, UsageError
from hipcli.readers.decode import check_encoding
from hipcli.readers.normalize import normalize_pages
from hipcli.readers.pdf import read_pdf
from hipcli.readers.sniff import is_pdf, kind
from hipcli.readers.source import RawSource, open_source, show
from hipcli.readers.text import read_text

READERS_VERSION = 1  # raised when the same file would give other text
FORMATS = ("pdf", "text", "markdown")
OnPage = Callable[[int, "int | None"], None]

_MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".mdown", ".mkd"})
_REMARKS = {
    "nul": "NUL characters were removed",
    "long run": "runs of more than 10,000 white-space characters were shortened to that",
    "lone surrogate": "broken characters (lone surrogates) were replaced by U+FFFD",
    "private use": "characters are private to a font and may mean anything",
    "replacement": "characters are U+FFFD, the mark of an unreadable character",
    "bidi control": "invisible characters that turn the direction of writing were kept",
}


def read_document(
    sources: Sequence[str],
    *,
    encoding: str | None = None,
    type: str | None = None,
    password: str | None = None,
    on_page: OnPage | None = None,
    stdin: BinaryIO | None = None,
) -> Document:
    """Read paths, or "-" for standard input, as one document in the order given.

    encoding: of text sources; None finds out. type: "pdf", "text" or "markdown" for all sources; None finds out for each.
    password: for encrypted PDFs. on_page(done, total or None): called as the pages of a source are read.
    stdin: in place of the process's own.
    Raises UsageError for arguments that make no sense, InputError for a source that cannot be used, DoesNotFit for a too large text.
    """
    _check_arguments(sources, encoding, type)
    read: list[Source] = []
    pages: list[Page] = []
    failed: list[PageFault] = []
    repeated = [(spec, times) for spec, times in Counter(sources).items() if times > 1]
    warnings = [f"{show(spec)} is given {times} times and is read each time" for spec, times in repeated]
    for index, spec in enumerate(sources):
        raw = open_source(spec, stdin)
        format = _format(spec, raw, type)
        if format == "pdf":
            remarks = _add_pdf(raw, index, pages, failed, password, on_page)
            found = None
        else:
            remarks, found = _add_text(raw, index, pages, format, encoding, on_page)
        warnings.extend(f"{raw.name}: {remark}" for remark in remarks)
        read.append(Source(raw.name, format, raw.size_bytes, raw.sha256, found))
    return Document(tuple(read), tuple(pages), tuple(failed), tuple(warnings))


def _check_arguments(sources: Sequence[str], encoding: str | None, type: str | None) -> None:
    if not sources:
        raise UsageError("no document was named", 'Give a file, or "-" for standard input.')
    if sources.count("-") > 1:
        raise UsageError('"-" stands for standard input, which can be read only once')
    if type is not None and type not in FORMATS:
        raise UsageError(f"unknown type {type!r}", f"One of: {', '.join(FORMATS)}.")
    if encoding is not None:
        check_encoding(encoding)


def _format(spec: str, raw: RawSource, type: str | None) -> str:
    """By `type`, else by content; a name ending in .pdf is a promise that the content must keep."""
    suffix = PurePath(spec).suffix.lower()
    if type in ("text", "markdown"):
        return type
    promised = type == "pdf" or suffix == ".pdf"
    if is_pdf(raw.head, anywhere=promised):
        return "pdf"
    if promised:
        found = kind(raw.head)
        hint = "Read it as it is with --type text." if found in ("plain text", "HTML", "JSON") else None
        raise InputError(f"cannot read {raw.name}: this is {found}, not a PDF", hint)
    return "markdown" if suffix in _MARKDOWN_SUFFIXES else "text"


def _add_pdf(
    raw: RawSource, index: int, pages: list[Page], failed: list[PageFault], password: str | None, on_page: OnPage | None
) -> list[str]:
    raw_pages, remarks = read_pdf(raw, password=password, on_page=on_page)
    clean = normalize_pages(page.text for page in raw_pages)
    for page, normalized in zip(raw_pages, clean):
        if page.error:
            failed.append(PageFault(page.index + 1, page.error, index))
        else:
            pages.append(Page(page.index + 1, normalized.text, page.label, index, page.image_only))
    return remarks + _remarks(sum((page.counts for page in clean), Counter()))


def _add_text(
    raw: RawSource, index: int, pages: list[Page], format: str, encoding: str | None, on_page: OnPage | None
) -> tuple[list[str], str]:
    text = read_text(raw, format, encoding)
    pages.extend(Page(number, page, None, index) for number, page in enumerate(text.pages, 1))
    if on_page:
        on_page(len(text.pages), len(text.pages))
    return text.warnings + _remarks(text.counts), text.encoding


def _remarks(counts: Counter[str]) -> list[str]:
    return [f"{counts[name]:,} {sentence}" for name, sentence in _REMARKS.items() if counts[name]]
