"""The folder of all sessions: what is there, what fits a run, who may write, and what has to go.

    CACHE/sessions/KEY/            one session: manifest.json and its chunk files
    CACHE/sessions/names/NAME      the key that a user's name stands for
    CACHE/sessions/locks/KEY.lock  held by whoever writes that session

A session's files are only ever added or replaced whole. Knows nothing of models or terminals.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hipcli.cache.files import file_checksum, write_whole
from hipcli.errors import UsageError
from hipcli.sessions.manifest import MANIFEST, Chunk, Damaged, Manifest, chain, computed_alike, load_manifest

if TYPE_CHECKING:
    from filelock import FileLock

KEY_PATTERN = re.compile(r"[0-9a-f]{16}")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LARGEST_BUDGET = 64_000_000_000


@dataclass(frozen=True)
class Session:
    """One session's folder. manifest: None when it is damaged, as `fault` says. used: seconds since 1970."""

    folder: Path
    manifest: Manifest | None
    fault: str | None
    used: float
    names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.folder.name

    def files(self) -> list[os.stat_result]:
        """The files that are there."""
        return [stat for path in _listed(self.folder) if (stat := _stat(path))]

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


class Library:
    """All sessions of a cache directory. budget_bytes: None is the default budget."""

    def __init__(self, cache_dir: Path, budget_bytes: int | None = None) -> None:
        self.root = cache_dir / "sessions"
        self._budget = budget_bytes

    def sessions(self) -> list[Session]:
        """Every session, damaged ones too, last used first."""
        names: dict[str, list[str]] = {}
        for name, key in self.names().items():
            names.setdefault(key, []).append(name)
        folders = [path for path in _listed(self.root) if KEY_PATTERN.fullmatch(path.name)]
        found = [session for path in folders if (session := self._open(path, tuple(names.get(path.name, ()))))]
        return sorted(found, key=lambda session: session.used, reverse=True)

    def get(self, key: str) -> Session | None:
        """One session by its key."""
        return self._open(self.root / key, tuple(name for name, of in self.names().items() if of == key))

    def _open(self, folder: Path, names: tuple[str, ...]) -> Session | None:
        stat = _stat(folder / MANIFEST) or _stat(folder)
        if stat is None:
            return None
        try:
            return Session(folder, load_manifest(folder), None, stat.st_mtime, names)
        except FileNotFoundError:
            return Session(folder, None, "it has no manifest", stat.st_mtime, names)
        except Damaged as fault:
            return Session(folder, None, str(fault), stat.st_mtime, names)

    def best(self, computation: Mapping[str, Any], ids: np.ndarray, key: str = "") -> Match | None:
        """The session with the most whole chunks in common with ids, its last one only when it ends the text too.

        computation: fields that must agree. key: of this very text's own session, which wins a tie.
        """
        found = None
        for session in sorted(self.sessions(), key=lambda session: session.key != key):
            if session.manifest is None or not computed_alike(session.manifest, computation):
                continue
            match = Match(session, _common(session.manifest, ids, session.key == key))
            if match.tokens > (found.tokens if found else 0):
                found = match
        return found

    def touch(self, session: Session) -> None:
        """Count as used now, as far as the folder allows."""
        try:
            os.utime(session.folder / MANIFEST)
        except OSError:
            pass

    # names

    def names(self) -> dict[str, str]:
        """What users call sessions: name → key."""
        found = {}
        for path in _listed(self.root / "names"):
            try:
                key = path.read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                continue
            if KEY_PATTERN.fullmatch(key) and _NAME_PATTERN.fullmatch(path.name):
                found[path.name] = key
        return found

    def name(self, name: str, key: str) -> None:
        """Let a name stand for a session. Raises OSError."""
        private_folder(self.root / "names")
        write_whole(self.root / "names" / name, lambda out: out.write(key.encode()))

    def find(self, wanted: str) -> Session:
        """The session that a name, a key or the beginning of a key stands for. Raises UsageError."""
        if key := self.names().get(wanted):
            if session := self.get(key):
                return session
        found = [session for session in self.sessions() if session.key.startswith(wanted)] if wanted else []
        if len(found) != 1:
            what = "no session is" if not found else f"{len(found)} sessions are"
            raise UsageError(f"{what} called {wanted!r}", "hip sessions ls")
        return found[0]

    # writing

    def lock(self, key: str) -> FileLock:
        """The lock of a session, not yet taken. Raises OSError when there can be none."""
        from filelock import FileLock

        private_folder(self.root / "locks")
        # released by the thread that ends the writing
        return FileLock(self.root / "locks" / f"{key}.lock", thread_local=False, mode=0o600)

    @contextmanager
    def unused(self, key: str) -> Iterator[bool]:
        """Whether nobody writes a session; nobody can while this is open."""
        from filelock import Timeout

        lock = self.lock(key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def remove(self, session: Session) -> bool:
        """Remove a session and its names; False when another process is writing it. Raises OSError."""
        with self.unused(session.key) as free:
            if not free:
                return False
            away = session.folder.with_name(f"{session.key}.{os.getpid()}.gone")
            os.replace(session.folder, away)
            for name in session.names:
                (self.root / "names" / name).unlink(missing_ok=True)
            shutil.rmtree(away, ignore_errors=True)
            return True

    @property
    def budget_bytes(self) -> int:
        """Bytes that sessions may take: a quarter of what they have and what is free, so that they never fill a disk, at
        most 64 GB, which is a million tokens of a 7B model (Qwen2.5: 56 KiB a token) once."""
        if self._budget is not None:
            return self._budget
        free = shutil.disk_usage(existing(self.root)).free
        return min(_LARGEST_BUDGET, (free + total_bytes(self.sessions())) // 4)

    def expendable(self, max_bytes: int, keep: Collection[str] = (), without: Collection[str] = ()) -> list[Session]:
        """Sessions to remove, least recently used first, until the others take at most max_bytes; named ones stay.

        keep: keys of sessions that stay too. without: keys of those that do not count.
        """
        left, going = [session for session in self.sessions() if session.key not in without], []
        while left and total_bytes(left) > max_bytes:
            oldest = next((session for session in reversed(left) if not session.names and session.key not in keep), None)
            if oldest is None:
                break
            left.remove(oldest)
            going.append(oldest)
        return going

    def make_room(self, need_bytes: int, keep: Collection[str]) -> None:
        """Remove old sessions so that `need_bytes` more stay within the budget. Raises OSError when they cannot."""
        budget = self.budget_bytes
        if need_bytes <= budget:
            for session in self.expendable(budget - need_bytes, keep):
                self.remove(session)
        taken = total_bytes(self.sessions())
        if taken + need_bytes > budget:
            raise OSError(
                f"it would take {need_bytes / 1e9:,.2f} GB beside {taken / 1e9:,.2f} GB, and the budget is {budget / 1e9:,.2f} GB"
            )

    def sweep(self) -> None:
        """Remove what killed processes left: folders on their way out, and sessions that hold no chunk, unless someone writes them."""
        for path in _listed(self.root):
            if path.name.endswith(".gone"):
                shutil.rmtree(path, ignore_errors=True)
        for session in self.sessions():
            if session.manifest is None and not list(session.folder.glob("*.safetensors")) and time.time() - session.used > 60:
                self.remove(session)


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


def require_name(name: str) -> str:
    """A session's name as a user may choose it. Raises UsageError."""
    if not _NAME_PATTERN.fullmatch(name) or KEY_PATTERN.fullmatch(name):
        raise UsageError(
            f"a session cannot be called {name!r}", "letters, digits, '.', '_' and '-', at most 64; not 16 hex digits, as keys are"
        )
    return name


def total_bytes(sessions: Iterable[Session]) -> int:
    """Bytes on the disk; a chunk that several sessions share counts once."""
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for session in sessions for stat in session.files()}.values())


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


def _common(manifest: Manifest, ids: np.ndarray, same: bool) -> tuple[Chunk, ...]:
    """The first chunks that a run over ids would compute bit for bit alike. same: the session is of this very text."""
    chunks = [chunk for chunk in manifest.chunks if chunk.stop <= len(ids)]
    found = []
    for chunk, digest in zip(chunks, chain(ids, [chunk.stop for chunk in chunks])):
        # with more text behind it, a shorter chunk would be computed in other pieces, which round otherwise
        if chunk.ids != digest or (chunk.stop % manifest.chunk_tokens and chunk.stop != len(ids) and not same):
            break
        found.append(chunk)
    return tuple(found)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:
        return []


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
