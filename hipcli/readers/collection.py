"""Folders and ZIP archives to the sources inside them, one at a time, in an order that depends on names alone.

What is left out is counted by its reason. Links are not followed, nothing is unpacked to disk, archives inside are not opened.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from hipcli.errors import InputError
from hipcli.readers.container import member_names, open_container
from hipcli.readers.docx import DOCX
from hipcli.readers.epub import EPUB
from hipcli.readers.ignore import IgnoreRules, rules_of
from hipcli.readers.sniff import HEAD_BYTES, KINDS_OF_PACKED_FORMATS, looks_binary
from hipcli.readers.source import RawSource, from_bytes, open_source, show

MAX_FILES = 20_000
_MAX_ENTRIES = 500_000
_VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj"})
_PACKED_FORMATS = (EPUB, DOCX)

Opener = Callable[[], RawSource]  # raises InputError


class Skipped(Counter[str]):
    """How many entries were left out, by reason; kinds of binary files apart."""

    def __init__(self) -> None:
        super().__init__()
        self.binary: Counter[str] = Counter()

    def add_binary(self, kind: str) -> None:
        self.binary[kind.removeprefix("an ").removeprefix("a ")] += 1

    def sentence(self) -> str:
        """Skipped: 12 ignored by .gitignore, 3 binary (2 PNG image, 1 program (ELF)); or nothing."""
        parts = [f"{count:,} {reason}" for reason, count in sorted(self.items(), key=lambda item: (-item[1], item[0]))]
        if self.binary:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.binary.most_common(6))
            parts.append(f"{sum(self.binary.values()):,} binary ({kinds}{' and more' if len(self.binary) > 6 else ''})")
        return f"skipped: {', '.join(parts)}" if parts else ""


def is_archive(source: RawSource) -> bool:
    """Whether a source is a ZIP file of files, and not one of the formats that are ZIP files inside."""
    names = member_names(source)
    office = bool({"[Content_Types].xml", "mimetype"} & names)
    return bool(names) and not office and not any(format.matches(source, False) for format in _PACKED_FORMATS)


def folder_members(spec: str, skipped: Skipped, loaded: frozenset[str] = frozenset()) -> Iterator[tuple[str, Opener]]:
    """Name and opener of each file below a folder that may be text: a folder's files before its folders, by name.

    loaded: suffixes without the dot of files that are wanted whatever is in them.
    """
    root = Path(spec)
    above, parts = _rules_above(Path(os.path.realpath(root)))
    seen = count = 0
    for path, names in _walk(root, [], IgnoreRules(above, rules_of(root), len(parts)), parts, skipped):
        seen += 1
        if seen > _MAX_ENTRIES:
            raise InputError(f"cannot read {show(spec)}: it holds more than {_MAX_ENTRIES:,} files", "Name a smaller folder.")
        name = "/".join([spec.rstrip("/") or "/", *names])
        if _is_left_out(path, skipped, loaded):
            continue
        count += 1
        if count > MAX_FILES:
            raise InputError(f"cannot read {show(spec)}: it holds more than {MAX_FILES:,} readable files", "Name a smaller folder.")
        yield name, lambda name=name: open_source(name)


def archive_members(source: RawSource, skipped: Skipped, loaded: frozenset[str] = frozenset()) -> Iterator[tuple[str, Opener]]:
    """Name and opener of each member that may be text, in the order of a folder; an opener works until the next one is asked for."""
    with open_container(source) as container:
        for info in sorted(container.infos, key=lambda info: _order(info.filename)):
            reason = _reason_to_skip(info)
            if reason:
                skipped[reason] += 1
                continue
            name = f"{source.name}/{show(info.filename)}"
            head = b""
            try:
                head = container.head(info, HEAD_BYTES)
            except InputError:
                pass  # opening it will say why
            kind = _left_out_kind(head, Path(info.filename).suffix.lower(), loaded)
            if kind:
                skipped.add_binary(kind)
            else:
                yield name, lambda info=info, name=name: from_bytes(name, container.read_info(info))


def _walk(folder: Path, below: list[str], rules: IgnoreRules, parts: list[str], skipped: Skipped) -> Iterator[tuple[Path, list[str]]]:
    """Every regular file that no rule leaves out, as a path and its names below the root; without recursion, for deep folders."""
    waiting = [(folder, below, rules)]
    while waiting:
        folder, below, rules = waiting.pop()
        folders = []
        try:
            entries = _entries(folder)
        except InputError:
            if not below:
                raise
            skipped["folders that may not be read"] += 1
            continue
        for entry in entries:
            names = [*below, entry.name]
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in _VERSION_CONTROL:
                continue
            if entry.is_symlink():
                skipped["links"] += 1
            elif rules.ignores([*parts, *names], is_folder):
                skipped["ignored by .gitignore"] += 1
            elif entry.name.startswith("."):
                skipped["hidden"] += 1
            elif is_folder:
                path = Path(entry.path)
                folders.append((path, names, IgnoreRules(rules, rules_of(path), len(parts) + len(names))))
            elif not entry.is_file(follow_symlinks=False):
                skipped["pipes and devices"] += 1
            else:
                yield Path(entry.path), names
        waiting += reversed(folders)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as fault:
        raise InputError(f"cannot read {show(str(folder))}: {(os.strerror(fault.errno or 0)).lower()}") from None


def _rules_above(root: Path) -> tuple[IgnoreRules | None, list[str]]:
    """The rules of the repository that a folder lies in, and the folder's path in it."""
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    parts = list(root.relative_to(top).parts)
    rules: IgnoreRules | None = None
    folder = top
    for depth, part in enumerate(parts):
        rules = IgnoreRules(rules, rules_of(folder), depth)
        folder = folder / part
    return rules, parts


def _is_left_out(path: Path, skipped: Skipped, loaded: frozenset[str]) -> bool:
    """Whether a file is empty or binary by its beginning; one that cannot be opened is left to the reader, which says why."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    if not head:
        skipped["empty"] += 1
        return True
    kind = _left_out_kind(head, path.suffix.lower(), loaded)
    if kind:
        skipped.add_binary(kind)
    return kind is not None


def _left_out_kind(head: bytes, suffix: str, loaded: frozenset[str]) -> str | None:
    """What a file is that no reader wants; books and Word documents are wanted, whole or damaged."""
    if suffix.removeprefix(".") in loaded:
        return None
    kind = looks_binary(head, suffix)
    wanted = kind in KINDS_OF_PACKED_FORMATS or any(suffix in format.suffixes for format in _PACKED_FORMATS)
    return None if wanted and head.startswith(b"PK") else kind


def _reason_to_skip(info: zipfile.ZipInfo) -> str | None:
    parts = info.filename.replace("\\", "/").split("/")
    if stat.S_ISLNK(info.external_attr >> 16):
        return "links"
    if info.filename.startswith("/") or ".." in parts or ":" in parts[0]:
        return "with names that lead out of the archive"
    if parts[0] == "__MACOSX" or any(part.startswith(".") for part in parts):
        return "hidden"
    return None if info.file_size else "empty"


def _order(name: str) -> list[tuple[bool, str]]:
    """Sorts files before folders, each by name."""
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]
