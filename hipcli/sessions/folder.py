"""The folder of one session: its manifest, its files, what they take and whether they are whole. Knows nothing of who uses it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.cache.files import file_checksum
from hipcli.sessions.manifest import MANIFEST, Chunk, Damaged, Manifest, load_manifest

UNFINISHED = "unfinished-"  # begins the names of files that keep what a long piece of work has finished


@dataclass(frozen=True)
class Session:
    """One session's folder. manifest: None when it is damaged, as `fault` says. used: seconds since 1970.

    foreign_fields: of a manifest that belongs to another key.
    """

    folder: Path
    manifest: Manifest | None
    fault: str | None
    used: float
    names: tuple[str, ...] = ()
    foreign_fields: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        return self.folder.name

    def files(self) -> list[os.stat_result]:
        """The files that are there."""
        return [stat for path in listed(self.folder) if (stat := stat_of(path))]

    @property
    def size_bytes(self) -> int:
        return sum(stat.st_size for stat in self.files())


@dataclass(frozen=True)
class Match:
    """A session that begins like a text: its first chunks, ending at `tokens`."""

    session: Session
    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        return self.chunks[-1].stop if self.chunks else 0


def open_session(folder: Path, names: tuple[str, ...]) -> Session | None:
    """The session in a folder, damaged or not; None when there is no such folder."""
    stat = stat_of(folder / MANIFEST) or stat_of(folder)
    if stat is None:
        return None
    try:
        return Session(folder, load_manifest(folder), None, stat.st_mtime, names)
    except FileNotFoundError:
        return Session(folder, None, "it has no manifest", stat.st_mtime, names)
    except Damaged as fault:
        return Session(folder, None, str(fault), stat.st_mtime, names, fault.fields)


def damage(session: Session) -> str | None:
    """What is wrong with a session, every byte of it read; None when nothing is."""
    if session.manifest is None:
        return session.fault
    for chunk in session.manifest.chunks:
        try:
            size, checksum = (session.folder / chunk.name).stat().st_size, file_checksum(session.folder / chunk.name)
        except OSError as fault:
            return f"{chunk.name}: {fault.strerror}"
        if (size, checksum) != (chunk.size_bytes, chunk.checksum):
            return f"{chunk.name} does not have the content it was written with"
    return None


def total_bytes(sessions: Iterable[Session]) -> int:
    """Bytes on the disk; a chunk that several sessions share counts once."""
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for session in sessions for stat in session.files()}.values())


def tree_bytes(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(tree_bytes(inner) for inner in listed(path))


def private_folder(path: Path) -> Path:
    """A folder for its owner alone, made with its parents. Raises OSError."""
    for part in [*reversed(path.parents), path]:
        if not part.exists():
            part.mkdir(exist_ok=True, mode=0o700)
    return path


def existing(path: Path) -> Path:
    """The nearest folder that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def listed(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:
        return []


def stat_of(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def share(chunk: Path, other: Path) -> None:
    """The same file under a second name, or a copy where the file system has no such thing."""
    other.unlink(missing_ok=True)
    try:
        os.link(chunk, other)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(chunk, other)
        other.chmod(0o600)


def clear(folder: Path, names: set[str]) -> None:
    """Remove what a killed run left half-written, and chunks that no longer count."""
    for path in folder.iterdir():
        if path.name != MANIFEST and path.name not in names and not path.name.startswith(UNFINISHED):
            path.unlink(missing_ok=True)
