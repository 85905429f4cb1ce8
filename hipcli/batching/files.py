"""From arguments to files, each a document of its own: folders and patterns opened, each file once.

Knows paths and digests; nothing is read as a document yet.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hipcli.answers_file import run_id
from hipcli.console import Terminal
from hipcli.errors import HipError, InputError, UsageError
from hipcli.options import RunOptions


@dataclass(frozen=True)
class BatchFile:
    """One document of a batch.

    path: as it is opened. sha256: of its bytes; empty for an address, and for what cannot be opened, of which fault says why.
    """

    path: str
    sha256: str = ""
    fault: HipError | None = None


def find_files(sources: Sequence[str], terminal: Terminal) -> list[BatchFile]:
    """Every file that the sources name, in the order of the sources; raises UsageError and, when there is none, InputError."""
    from hipcli.readers.url import is_url

    if "-" in sources:
        raise UsageError("a batch cannot read standard input ('-'): it has to find its files again", "hip ask - answers about a pipe")
    found: dict[str, BatchFile] = {}
    again = 0
    with terminal.phase("looking at the files", unit="files") as phase:
        for path in _paths(sources, terminal):
            key = path if is_url(path) else os.path.realpath(path)
            if key in found:
                again += 1
            else:
                found[key] = BatchFile(path) if is_url(path) else _looked_at(path)
                phase.to(len(found))
    if again:
        terminal.note(f"{again:,} files are named more than once and are read once")
    if not found:
        raise InputError("there is no file to read")
    return list(found.values())


def runs_of(files: Sequence[BatchFile], digest: str, options: RunOptions) -> list[str]:
    """What identifies each file together with model and settings; digest: of what answers."""
    return [run_id([[file.path, file.sha256]], digest, options) for file in files]


def _paths(sources: Sequence[str], terminal: Terminal) -> Iterator[str]:
    from hipcli.readers.collection import Skipped, folder_members
    from hipcli.readers.source import show
    from hipcli.readers.url import is_url

    for source in sources:
        for spec in [source] if is_url(source) else _matching(source):
            if not os.path.isdir(spec):
                yield spec
                continue
            skipped = Skipped()
            yield from (path for path, _ in folder_members(spec, skipped))
            if skipped.sentence():
                terminal.note(f"{show(spec)}: {skipped.sentence()}")


def _matching(source: str) -> list[str]:
    """What a pattern matches, by name, where a shell left it as it was; else the source itself."""
    if os.path.lexists(source) or not glob.has_magic(source):
        return [source]
    found = sorted(glob.glob(source, recursive=True))
    if not found:
        raise UsageError(f"no file matches {source!r}")
    # a recursive pattern names folders beside the files in them
    return [path for path in found if not ("**" in source and os.path.isdir(path))]


def _looked_at(path: str) -> BatchFile:
    from hipcli.readers.source import open_source, show

    try:
        raw = open_source(path)
    except HipError as fault:
        return BatchFile(path, fault=fault)
    if raw.path is None:
        return BatchFile(path, fault=InputError(f"cannot read {show(path)}: it is no file that can be read again"))
    return BatchFile(path, raw.sha256)
