"""One run's session: what can be reused is loaded, what is new is written behind the prefill.

A session that cannot be read or written costs time and a warning, never an answer. Knows ids, stores and folders; no
text, no terminal.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from hipcli.cache.base import KVStore
from hipcli.cache.files import file_bytes
from hipcli.errors import UsageError
from hipcli.sessions.fingerprint import Fingerprint, differences
from hipcli.sessions.folder import Match, clear, private_folder, share
from hipcli.sessions.library import Library, require_name
from hipcli.sessions.loading import load_chunks
from hipcli.sessions.manifest import MANIFEST, Manifest, chain
from hipcli.sessions.writer import ChunkWriter

if TYPE_CHECKING:
    from filelock import FileLock

_PATIENCE_S = 5.0


class SessionKeeper:
    """Loads, follows and ends the session of one text.

    ids: the whole prefix. name: what the user calls the session, None when nothing. about: "model" and "sources", for
    people. note, warn: get sentences for the user. check: asked while another process is waited for; what it raises ends that.
    reused: tokens that were loaded, not computed.
    """

    def __init__(
        self,
        library: Library,
        fingerprint: Fingerprint,
        ids: Sequence[int],
        *,
        name: str | None = None,
        about: Mapping[str, Any],
        note: Callable[[str], None],
        warn: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.key, self.name, self.reused, self.load_seconds = fingerprint.key, name, 0, 0.0
        self._library, self._fingerprint, self._about = library, fingerprint, about
        self._ids = np.asarray(ids, dtype=np.int64)
        self._note, self._warn, self._check = note, warn, check
        self._lock: FileLock | None = None
        self._writer: ChunkWriter | None = None
        self._warned = False
        if name is not None:
            self._check_name(require_name(name))

    @property
    def tokens(self) -> int:
        """Of the whole prefix."""
        return len(self._ids)

    @property
    def folder(self) -> Path | None:
        """Where the session lies, None while it lies nowhere."""
        folder = self._library.root / self.key
        return folder if folder.is_dir() else None

    @property
    def record(self) -> dict[str, Any]:
        """The session as JSON."""
        counts = {"tokens": len(self._ids), "reused_tokens": self.reused}
        return {"key": self.key, "name": self.name, **counts, "load_seconds": round(self.load_seconds, 4)}

    def _check_name(self, name: str) -> None:
        """Refuse a name that stands for a session of something else; one of fewer documents may grow."""
        session = self._library.get(self._library.names().get(name, ""))
        if session is None or session.manifest is None:
            return
        stored, now = dict(session.manifest.fields), self._fingerprint.fields
        for grows in ("document", "source types", "encoding", "file names"):
            if stored.get(grows) == now[grows][: len(stored.get(grows) or ())]:
                stored[grows] = now[grows]
        if (stored.get("readers") or {}).items() <= now["readers"].items():
            # the first PDF brings the versions of its readers
            stored["readers"] = now["readers"]
        if differing := differences(stored, now):
            raise UsageError(
                f"the session {name!r} was made of something else: {differing[0]}",
                f"another --session name, or first: hip sessions rm {name}",
            )

    # reading

    def find(self) -> Match | None:
        """The best match, after waiting for another process that is writing this very session."""
        match = self._best()
        if match is None or match.tokens < len(self._ids):
            self._take_lock()
            # what was waited for is there now
            match = self._best()
            own = self._library.get(self.key)
            if own is not None and own.fault and self._lock is not None and any(own.folder.glob("*.safetensors")):
                differing = differences(own.foreign_fields, self._fingerprint.fields) if own.foreign_fields else []
                why = f"is refused: {differing[0]}" if differing else f"is damaged: {own.fault}"
                self._warn(f"the session {self.key} {why}; the document is read again")
        return match

    def _best(self) -> Match | None:
        return self._library.best(self._fingerprint.computation, self._ids, self.key)

    def load(self, match: Match, store: KVStore, on_tokens: Callable[[int, int], None]) -> int:
        """Copy a match into an empty store, which has the room; returns the tokens that are there now.

        What follows a damaged chunk is left out, and said.
        """
        began = time.monotonic()
        self.reused, fault = load_chunks(match, store, on_tokens)
        if fault is not None:
            self._warn(f"the session {match.session.key} is damaged: {fault}; the document is read again from token {self.reused:,} on")
        self.load_seconds = time.monotonic() - began
        return self.reused

    # writing

    def _take_lock(self) -> None:
        from filelock import Timeout

        try:
            lock = self._library.lock(self.key)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self._note("another hip is reading this document: waiting for it (--no-session does not wait)")
                while not lock.is_locked:
                    try:
                        lock.acquire(timeout=0.5, poll_interval=0.05)
                    except Timeout:
                        self._check()
            self._lock = lock
        except (OSError, NotImplementedError) as fault:
            self._cannot_save(fault)

    def _cannot_save(self, fault: BaseException) -> None:
        """Say once that nothing is kept."""
        if not self._warned:
            reason = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
            self._warn(
                f"the session is not saved, so the next question reads the document again: {reason}"
                " (HIP_CACHE_DIR names another folder, hip sessions prune makes room)"
            )
        self._warned = True

    def follow(self, match: Match | None, store: KVStore, chunk_tokens: int) -> None:
        """Get ready to keep what comes to the store after the tokens that were loaded from `match`."""
        if self.reused == len(self._ids) and match is not None and match.session.key == self.key:
            self._library.touch(match.session)
            self._keep_name()
            self._release()
            return
        if self._lock is None and not self._warned:
            # a whole session turned out to be damaged, or belongs to another text that begins the same
            self._take_lock()
        if self._lock is None:
            return
        try:
            self._begin(match, store, chunk_tokens)
        except OSError as fault:
            self._cannot_save(fault)
            self._release()

    def _begin(self, match: Match | None, store: KVStore, chunk_tokens: int) -> None:
        library, folder = self._library, self._library.root / self.key
        library.sweep()
        kept = [chunk for chunk in (match.chunks if match else ()) if chunk.stop <= self.reused]
        need = file_bytes(store.shape, len(self._ids) - self.reused)
        library.make_room(need, {self.key, match.session.key if match else ""})
        fresh = not folder.exists()
        private_folder(folder)
        try:
            for chunk in kept if match and match.session.key != self.key else ():
                share(match.session.folder / chunk.name, folder / chunk.name)
            fields = self._fingerprint
            shape = asdict(store.shape) | {"dtype": str(store.shape.dtype).removeprefix("torch.")}
            about = {"model": self._about["model"], "sources": tuple(self._about["sources"])}
            manifest = Manifest(
                key=self.key,
                fields=fields.fields,
                computation=tuple(fields.computation),
                tokens=len(self._ids),
                chunk_tokens=chunk_tokens,
                shape=shape,
                created=time.time(),
                chunks=tuple(kept),
                **about,
            )
            if kept:
                manifest.save(folder)
            else:
                (folder / MANIFEST).unlink(missing_ok=True)
            clear(folder, {chunk.name for chunk in kept})
        except OSError:
            if fresh:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self._writer = ChunkWriter(store, folder, manifest, self._digest, self._ended)
        self._written_to = self.reused
        self._writer.start()

    def _digest(self, stop: int) -> str:
        return next(chain(self._ids, [stop]))

    def stored(self, stop: int) -> None:
        """The store now holds the tokens up to `stop`, for good."""
        if self._writer is None:
            return
        self._writer.add(self._written_to, stop)
        self._written_to = stop
        if self._writer.fault is not None:
            self._cannot_save(self._writer.fault)

    def read_whole(self) -> None:
        """Nothing more will be stored."""
        if self._writer is not None:
            self._writer.end()

    @property
    def waiting(self) -> bool:
        """Whether something is still being written."""
        return self._writer is not None and self._writer.is_alive()

    @property
    def saved_tokens(self) -> int:
        """Tokens that are on the disk."""
        return self._writer.manifest.saved_tokens if self._writer else self.reused

    def wait(self, seconds: float) -> bool:
        """Wait for the writing, at most so long; whether it is over."""
        if self._writer is not None:
            self._writer.join(seconds)
            if self._writer.fault is not None:
                self._cannot_save(self._writer.fault)
        return not self.waiting

    def abandon(self) -> None:
        """End in the middle: chunks that are on their way to the disk arrive, and the rest is for the next run."""
        if self.waiting:
            self._writer.end()
            self.wait(_PATIENCE_S)
            self._writer.give_up()
        self._release()

    def _ended(self) -> None:
        """The writer's last act."""
        writer = self._writer
        if writer is not None and writer.manifest.complete:
            self._keep_name()
        elif writer is not None and not writer.manifest.chunks:
            shutil.rmtree(self._library.root / self.key, ignore_errors=True)
        self._release()

    def _keep_name(self) -> None:
        if self.name is None:
            return
        try:
            self._library.name(self.name, self.key)
        except OSError as fault:
            self._cannot_save(fault)

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
