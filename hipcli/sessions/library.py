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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hipcli.cache.files import write_whole
from hipcli.errors import UsageError
from hipcli.sessions.folder import Match, Session, existing, listed, open_session, private_folder, total_bytes
from hipcli.sessions.manifest import MANIFEST, Chunk, Manifest, chain, computed_alike

if TYPE_CHECKING:
    from filelock import FileLock

KEY_PATTERN = re.compile(r"[0-9a-f]{16}")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LARGEST_BUDGET = 64_000_000_000


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
        folders = [path for path in listed(self.root) if KEY_PATTERN.fullmatch(path.name)]
        found = [session for path in folders if (session := open_session(path, tuple(names.get(path.name, ()))))]
        return sorted(found, key=lambda session: session.used, reverse=True)

    def strays(self) -> list[Path]:
        """What else lies in the folder: remains of sessions on their way out, and what is not hip's."""
        ours = {"names", "locks"}
        return [path for path in listed(self.root) if path.name not in ours and not KEY_PATTERN.fullmatch(path.name)]

    def get(self, key: str) -> Session | None:
        """One session by its key."""
        return open_session(self.root / key, tuple(name for name, of in self.names().items() if of == key))

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
        for path in listed(self.root / "names"):
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
        for path in listed(self.root):
            if path.name.endswith(".gone"):
                shutil.rmtree(path, ignore_errors=True)
        for session in self.sessions():
            if session.manifest is None and not list(session.folder.glob("*.safetensors")) and time.time() - session.used > 60:
                self.remove(session)


def require_name(name: str) -> str:
    """A session's name as a user may choose it. Raises UsageError."""
    if not _NAME_PATTERN.fullmatch(name) or KEY_PATTERN.fullmatch(name):
        raise UsageError(
            f"a session cannot be called {name!r}", "letters, digits, '.', '_' and '-', at most 64; not 16 hex digits, as keys are"
        )
    return name


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
