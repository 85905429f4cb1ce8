"""Documents in, clean pages out: `read_document` is the one way from a path or standard input to text.

Each source is read by the reader for its format, normalised, and reported on: what was guessed, what could not be
read. Knows nothing of tokens, models or terminals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from hipcli.document import Document, Page, PageFault, Source
from hipcli.errors import DoesNotFit, HipError, InputError, UsageError
from hipcli.readers.content import Content, OnPage, ReadOptions
from hipcli.readers.cutting import number_pages
from hipcli.readers.decode import check_encoding
from hipcli.readers.formats import FORMAT_NAMES, choose_format, require_format
from hipcli.readers.source import RawSource, open_source, show

__all__ = ["FORMAT_NAMES", "read_document"]

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

    encoding: of text sources; None finds out. type: a name of FORMAT_NAMES for all sources; None finds out for each.
    password: for encrypted PDFs. on_page(done, total or None): called as the pages of a source are read.
    stdin: in place of the process's own.
    Raises UsageError for arguments that make no sense, InputError for a source that cannot be used, DoesNotFit for a too large text.
    """
    _check_arguments(sources, encoding, type)
    options = ReadOptions(encoding, password, on_page)
    reading = _Reading()
    for spec, times in Counter(sources).items():
        if times > 1:
            reading.warnings.append(f"{show(spec)} is given {times} times and is read each time")
    for spec in sources:
        reading.add(open_source(spec, stdin), type, options)
    return reading.document()


class _Reading:
    """A document as it grows, source by source."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.pages: list[Page] = []
        self.failed: list[PageFault] = []
        self.warnings: list[str] = []

    def add(self, raw: RawSource, type: str | None, options: ReadOptions) -> None:
        """Read one source to its end; raises InputError, DoesNotFit."""
        format = choose_format(raw, type)
        content = _read(raw, format.read, format.noun, options)
        pages, failed, counts = number_pages(content.pages, len(self.sources))
        if not any(page.text.strip() for page in pages):
            raise _without_text(raw, pages, failed)
        self.sources.append(Source(raw.name, format.name, raw.size_bytes, raw.sha256, content.encoding))
        self.pages += pages
        self.failed += failed
        self.warnings += [f"{raw.name}: {remark}" for remark in [*content.remarks, *_remarks(counts)]]
        if options.on_page:
            options.on_page(len(pages) + len(failed), len(pages) + len(failed))

    def document(self) -> Document:
        return Document(tuple(self.sources), tuple(self.pages), tuple(self.failed), tuple(self.warnings))


def _read(raw: RawSource, read, noun: str, options: ReadOptions) -> Content:
    """Run a reader; whatever hostile bytes make it stumble over is a fault of the source."""
    try:
        return read(raw, options)
    except HipError:
        raise
    except MemoryError:
        raise DoesNotFit(f"{raw.name} needs more memory than there is", "Close other programs, or split the document.") from None
    except Exception as fault:  # a reader's slip on a broken file must not look like a fault of the program
        raise InputError(f"cannot read {raw.name}: it is damaged, or not {noun} ({type(fault).__name__}: {str(fault)[:200]})") from fault


def _without_text(raw: RawSource, pages: Sequence[Page], failed: Sequence[PageFault]) -> InputError:
    if failed:
        return InputError(f"cannot read {raw.name}: {failed[0].reason}")
    if not pages:
        return InputError(f"cannot read {raw.name}: it has no pages")
    return InputError(f"{raw.name} holds no text, only white space")


def _check_arguments(sources: Sequence[str], encoding: str | None, type: str | None) -> None:
    if not sources:
        raise UsageError("no document was named", 'Give a file, or "-" for standard input.')
    if sources.count("-") > 1:
        raise UsageError('"-" stands for standard input, which can be read only once')
    require_format(type)
    if encoding is not None:
        check_encoding(encoding)


def _remarks(counts: Counter[str]) -> Iterable[str]:
    return [f"{counts[name]:,} {sentence}" for name, sentence in _REMARKS.items() if counts[name]]
