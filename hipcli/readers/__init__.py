"""Documents in, clean pages out: `read_document` is the one way from a path or standard input to text.

A folder or an archive is as many sources as there are readable files in it. Each source is read by the reader for its format, normalised, and reported on: what was guessed, what could not be
read. Knows nothing of tokens, models or terminals.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from hipcli.document import Document, Page, PageFault, Source
from hipcli.errors import DoesNotFit, HipError, InputError, UsageError
from hipcli.readers.collection import Opener, Skipped, archive_members, folder_members, is_archive
from hipcli.readers.container import TooMuch
from hipcli.readers.content import Content, Format, OnPage, ReadOptions
from hipcli.readers.cutting import number_pages
from hipcli.readers.decode import check_encoding
from hipcli.readers.formats import FORMAT_NAMES, choose_format, require_format
from hipcli.readers.source import RawSource, memory_limit, open_source, show
from hipcli.readers.text import TEXT

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
        if spec != "-" and os.path.isdir(spec):
            skipped = Skipped()
            reading.add_all(spec, folder_members(spec, skipped), skipped, type, options)
            continue
        raw = open_source(spec, stdin)
        if is_archive(raw):
            skipped = Skipped()
            reading.add_all(raw.name, archive_members(raw, skipped), skipped, type, options)
        else:
            reading.add(raw, type, options)
    return reading.document()


class _Reading:
    """A document as it grows, source by source."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.pages: list[Page] = []
        self.failed: list[PageFault] = []
        self.warnings: list[str] = []
        self._text_bytes = 0
        self._most_bytes = memory_limit()

    def add(self, raw: RawSource, type: str | None, options: ReadOptions) -> None:
        """Read one source to its end; raises InputError, DoesNotFit."""
        remarks = self._add(raw, choose_format(raw, type), options)
        self.warnings += [f"{raw.name}: {remark}" for remark in remarks]

    def add_all(self, name: str, members: Iterable[tuple[str, Opener]], skipped: Skipped, type: str | None, options: ReadOptions) -> None:
        """Read the members of a folder or an archive; one that should be readable and is not counts as a failed page.

        Raises InputError if there is no text in any of them.
        """
        before = len(self.pages)
        remarks: dict[str, list[str]] = {}
        for member, opener in members:
            for remark in self._add_member(member, opener, skipped, type, options):
                remarks.setdefault(remark, []).append(show(member))
        if skipped.sentence():
            self.warnings.append(f"{show(name)}: {skipped.sentence()}")
        if len(self.pages) == before:
            raise InputError(f"cannot read {show(name)}: no file in it can be read{_reasons(self.failed, skipped)}")
        for remark, names in remarks.items():
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            self.warnings.append(f"{names[0]}{more}: {remark}")

    def _add_member(self, name: str, opener: Opener, skipped: Skipped, type: str | None, options: ReadOptions) -> list[str]:
        raw, format = None, None
        try:
            raw = opener()
        except TooMuch:
            raise
        except InputError as fault:
            self._add_failed(name, raw, format, fault.message)
            return []
        try:
            format = choose_format(raw, type)
            return self._add(raw, format, options)
        except _NoText as fault:
            if not fault.failed:
                skipped["without text"] += 1
                return []
            reason = fault.message
        except InputError as fault:
            if type is None and format is TEXT:
                skipped.add_binary("an unknown kind")  # text by its beginning only
                return []
            reason = fault.message
        self._add_failed(name, raw, format, reason)
        return []

    def _add_failed(self, name: str, raw: RawSource | None, format: Format | None, reason: str) -> None:
        self.failed.append(PageFault(1, reason, len(self.sources)))
        known = (raw.size_bytes, raw.sha256) if raw else (0, "")
        self.sources.append(Source(show(name), format.name if format else "unknown", *known))

    def _add(self, raw: RawSource, format: Format, options: ReadOptions) -> list[str]:
        content = _read(raw, format, options)
        pages, failed, counts = number_pages(content.pages, len(self.sources))
        if not any(page.text.strip() for page in pages):
            raise _without_text(raw, pages, failed)
        self._text_bytes += sum(sys.getsizeof(page.text) for page in pages)
        if self._text_bytes > self._most_bytes:
            raise DoesNotFit(f"up to {raw.name}, the documents hold more text than half of the memory that is free", "Name fewer of them.")
        self.sources.append(Source(raw.name, format.name, raw.size_bytes, raw.sha256, content.encoding))
        self.pages += pages
        self.failed += failed
        if options.on_page:
            options.on_page(len(pages) + len(failed), len(pages) + len(failed))
        return [*content.remarks, *_remarks(counts)]

    def document(self) -> Document:
        return Document(tuple(self.sources), tuple(self.pages), tuple(self.failed), tuple(self.warnings))


def _read(raw: RawSource, format: Format, options: ReadOptions) -> Content:
    """Run a reader; whatever hostile bytes make it stumble over is a fault of the source."""
    try:
        return format.read(raw, options)
    except HipError:
        raise
    except MemoryError:
        raise DoesNotFit(f"{raw.name} needs more memory than there is", "Close other programs, or split the document.") from None
    except Exception as fault:  # a reader's slip on a broken file must not look like a fault of the program
        raise InputError(
            f"cannot read {raw.name}: it is damaged, or not {format.noun} ({type(fault).__name__}: {str(fault)[:200]})"
        ) from fault


def _reasons(failed: Sequence[PageFault], skipped: Skipped) -> str:
    reasons = [failed[-1].reason] if failed else []
    return f" ({'; '.join([*reasons, skipped.sentence()]).strip('; ')})" if reasons or skipped.sentence() else ""


class _NoText(InputError):
    """A source without any text. failed: pages of it could not be read."""

    failed = False


def _without_text(raw: RawSource, pages: Sequence[Page], failed: Sequence[PageFault]) -> _NoText:
    if failed:
        fault = _NoText(f"cannot read {raw.name}: {failed[0].reason}")
        fault.failed = True
        return fault
    return _NoText(f"{raw.name} holds no text, only white space" if pages else f"cannot read {raw.name}: it has no pages")


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
