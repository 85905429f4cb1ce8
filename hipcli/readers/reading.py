"""A document as it grows: each source read by the reader for its format, cleaned, numbered and reported on.

Decides what a fault costs: the run where the user named the source, one failed page where a folder or an archive did.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hipcli.document import Document, Page, PageFault, Source
from hipcli.errors import DoesNotFit, InputError
from hipcli.page_selection import PageSelection
from hipcli.readers.collection import Opener, Skipped
from hipcli.readers.container import TooMuch
from hipcli.readers.content import Format, ReadOptions
from hipcli.readers.cutting import number_pages
from hipcli.readers.formats import choose_format
from hipcli.readers.guarded import read_content
from hipcli.readers.isolation import IsolatedReader
from hipcli.readers.loader import loader_format
from hipcli.readers.source import RawSource, memory_limit, show
from hipcli.readers.text import TEXT

_REMARKS = {
    "nul": "NUL characters were removed",
    "long run": "runs of more than 10,000 white-space characters were shortened to that",
    "lone surrogate": "broken characters (lone surrogates) were replaced by U+FFFD",
    "private use": "characters are private to a font and may mean anything",
    "replacement": "characters are U+FFFD, the mark of an unreadable character",
    "bidi control": "invisible characters that turn the direction of writing were kept",
}


class Reading:
    """A document as it grows, source by source. type: a format for all of them, None finds out for each.

    loaders: commands of the user's for suffixes without the dot; they win over what hip knows itself, but not over type.
    """

    def __init__(self, type: str | None, options: ReadOptions, loaders: Mapping[str, str] | None = None) -> None:
        self._loaders = {} if type else loaders or {}
        self._type = type
        self._isolated = IsolatedReader()
        self._options = options
        self.sources: list[Source] = []
        self.pages: list[Page] = []
        self.failed: list[PageFault] = []
        self.warnings: list[str] = []
        self._text_bytes = 0
        self._most_bytes = memory_limit()

    def add(self, raw: RawSource) -> None:
        """Read one source to its end; raises InputError, DoesNotFit."""
        remarks = self._add(raw, self._format(raw))
        self.warnings += [f"{raw.name}: {remark}" for remark in remarks]

    def add_all(self, name: str, members: Iterable[tuple[str, Opener]], skipped: Skipped) -> None:
        """Read the members of a folder or an archive; one that should be readable and is not counts as a failed page.

        Raises InputError if there is no text in any of them.
        """
        before = len(self.pages)
        remarks: dict[str, list[str]] = {}
        for member, opener in members:
            for remark in self._add_member(member, opener, skipped):
                remarks.setdefault(remark, []).append(show(member))
        if skipped.sentence():
            self.warnings.append(f"{show(name)}: {skipped.sentence()}")
        if len(self.pages) == before:
            raise InputError(f"cannot read {show(name)}: no file in it can be read{_reasons(self.failed, skipped)}")
        for remark, names in remarks.items():
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            self.warnings.append(f"{names[0]}{more}: {remark}")

    def _add_member(self, name: str, opener: Opener, skipped: Skipped) -> list[str]:
        raw, format = None, None
        try:
            raw = opener()
        except TooMuch:
            raise
        except InputError as fault:
            self._add_failed(name, raw, format, fault.message)
            return []
        try:
            format = self._format(raw)
            return self._add(raw, format)
        except _NoText as fault:
            if not fault.failed:
                skipped["without text"] += 1
                return []
            reason = fault.message
        except InputError as fault:
            if self._type is None and format is TEXT:
                skipped.add_binary("an unknown kind")  # text by its beginning only
                return []
            reason = fault.message
        self._add_failed(name, raw, format, reason)
        return []

    def _add_failed(self, name: str, raw: RawSource | None, format: Format | None, reason: str) -> None:
        self.failed.append(PageFault(1, reason, len(self.sources)))
        known = (raw.size_bytes, raw.sha256) if raw else (0, "")
        self.sources.append(Source(show(name), format.name if format else "unknown", *known, total_pages=1))

    def _format(self, raw: RawSource) -> Format:
        command = self._loaders.get(raw.suffix.removeprefix("."))
        return loader_format(command) if command else choose_format(raw, self._type)

    def _add(self, raw: RawSource, format: Format) -> list[str]:
        options = self._options
        content = (read_content if format.own_workers else self._isolated.read)(raw, format, options)
        pages, failed, counts = number_pages(content.pages, len(self.sources))
        total = content.total_pages or len(pages) + len(failed)
        if options.pages:
            options.pages.check(total, raw.name)
            pages = [page for page in pages if page.number in options.pages]
            failed = [fault for fault in failed if fault.number in options.pages]
        if not any(page.text.strip() for page in pages):
            raise _without_text(raw, pages, failed, options.pages)
        self._text_bytes += sum(sys.getsizeof(page.text) for page in pages)
        if self._text_bytes > self._most_bytes:
            raise DoesNotFit(f"up to {raw.name}, the documents hold more text than half of the memory that is free", "Name fewer of them.")
        self.sources.append(Source(raw.name, format.name, raw.size_bytes, raw.sha256, content.encoding, total))
        self.pages += pages
        self.failed += failed
        if options.on_page:
            options.on_page(len(pages) + len(failed), len(pages) + len(failed))
        return [*content.remarks, *_remarks(counts)]

    def close(self) -> None:
        """End the worker process; whoever makes a Reading must."""
        self._isolated.close()

    def document(self) -> Document:
        return Document(
            tuple(self.sources),
            tuple(self.pages),
            tuple(self.failed),
            tuple(self.warnings),
            self._options.pages.text if self._options.pages else None,
        )


def _reasons(failed: Sequence[PageFault], skipped: Skipped) -> str:
    reasons = [failed[-1].reason] if failed else []
    return f" ({'; '.join([*reasons, skipped.sentence()]).strip('; ')})" if reasons or skipped.sentence() else ""


class _NoText(InputError):
    """A source without any text. failed: although there should be some."""

    failed = False


def _without_text(raw: RawSource, pages: Sequence[Page], failed: Sequence[PageFault], chosen: PageSelection | None) -> _NoText:
    if failed:
        fault = _NoText(f"cannot read {raw.name}: {failed[0].reason}")
    elif any(page.image_only for page in pages):
        fault = _NoText(f"cannot read {raw.name}: it shows pictures only, without text")
    elif chosen:
        return _NoText(f"pages {chosen.text} of {raw.name} hold no text")
    else:
        return _NoText(f"{raw.name} holds no text, only white space" if pages else f"cannot read {raw.name}: it has no pages")
    fault.failed = True
    return fault


def _remarks(counts: Counter[str]) -> Iterable[str]:
    return [f"{counts[name]:,} {sentence}" for name, sentence in _REMARKS.items() if counts[name]]
