"""Documents in, clean pages out: `read_document` is the one way from a path, an address or standard input to text.

A folder or an archive is as many sources as there are readable files in it. Knows nothing of tokens, models or terminals.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import BinaryIO

from hipcli.document import Document
from hipcli.errors import UsageError
from hipcli.page_selection import PageSelection
from hipcli.readers.collection import Skipped, archive_members, folder_members, is_archive
from hipcli.readers.content import OnPage, ReadOptions
from hipcli.readers.decode import check_encoding
from hipcli.readers.formats import FORMAT_NAMES, require_format
from hipcli.readers.reading import Reading
from hipcli.readers.source import open_source, show
from hipcli.readers.url import fetch, is_url

__all__ = ["FORMAT_NAMES", "read_document"]

READERS_VERSION = 2  # raised when the same file would give other text


def read_document(
    sources: Sequence[str],
    *,
    encoding: str | None = None,
    type: str | None = None,
    password: str | None = None,
    pages: PageSelection | None = None,
    offline: bool = False,
    hidden: bool = False,
    loaders: Mapping[str, str] | None = None,
    on_page: OnPage | None = None,
    stdin: BinaryIO | None = None,
) -> Document:
    """Read files, folders, archives, addresses, or "-" for standard input, as one document in the order given.

    encoding: of text sources; None finds out. type: a name of FORMAT_NAMES for all sources; None finds out for each.
    password: for encrypted PDFs. pages: of each source, None for all. offline: refuse addresses.
    loaders: commands of the user's that read files of a suffix (readers/loader.py), for sources without a type.
    hidden: also look for text that nobody sees (Page.hidden). on_page(done, total or None): called as the pages of a source are read.
    stdin: in place of the process's own.
    Raises UsageError for arguments that make no sense, InputError for a source that cannot be used, DoesNotFit for a too large text.
    """
    _check_arguments(sources, encoding, type)
    with closing(Reading(type, ReadOptions(encoding, password, on_page, pages, hidden), loaders)) as reading:
        for spec, times in Counter(sources).items():
            if times > 1:
                reading.warnings.append(f"{show(spec)} is given {times} times and is read each time")
        for spec in sources:
            _read_source(reading, spec, offline, stdin, frozenset(loaders or ()) if type is None else frozenset())
        return reading.document()


def _read_source(reading: Reading, spec: str, offline: bool, stdin: BinaryIO | None, loaded: frozenset[str]) -> None:
    """loaded: suffixes without the dot that loaders read."""
    skipped = Skipped()
    if spec != "-" and os.path.isdir(spec):
        reading.add_all(spec, folder_members(spec, skipped, loaded), skipped)
        return
    raw = fetch(spec, offline) if is_url(spec) else open_source(spec, stdin)
    if raw.suffix.removeprefix(".") not in loaded and is_archive(raw):
        reading.add_all(raw.name, archive_members(raw, skipped, loaded), skipped)
    else:
        reading.add(raw)


def _check_arguments(sources: Sequence[str], encoding: str | None, type: str | None) -> None:
    if not sources:
        raise UsageError("no document was named", 'Give a file, or "-" for standard input.')
    if sources.count("-") > 1:
        raise UsageError('"-" stands for standard input, which can be read only once')
    require_format(type)
    if encoding is not None:
        check_encoding(encoding)
