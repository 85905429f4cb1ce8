"""What a long piece of work has finished so far, kept beside its session until all is done, so that an interruption loses nothing.

Knows records and a file; nothing of what the work is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hipcli.sessions.folder import UNFINISHED


def digest(*values: Any) -> str:
    """16 hex digits for values that JSON can say."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


class Unfinished:
    """Records by key, each on the disk before the next is begun; a last one that a kill cut short does not count.

    folder: of the session, None keeps nothing. work: what tells this work from others on the same session. warn: gets one
    sentence when nothing can be kept.
    """

    def __init__(self, folder: Path | None, work: str, warn: Callable[[str], None]) -> None:
        self._path, self._warn = folder and folder / f"{UNFINISHED}{work}.jsonl", warn
        self._records = dict(self._read())
        self.found = len(self._records)

    def _read(self) -> list[tuple[str, Any]]:
        try:
            lines = self._path.read_bytes().split(b"\n") if self._path else []
        except OSError:
            return []
        rows = []
        for line in lines:
            try:
                key, record, check = json.loads(line)
            except (TypeError, ValueError):
                continue
            if check == digest(key, record):
                rows.append((key, record))
        return rows

    def get(self, key: str) -> Any:
        """What was kept under a key, None when nothing was."""
        return self._records.get(key)

    def add(self, key: str, record: Any) -> None:
        """Keep one more."""
        self._records[key] = record
        if self._path is None:
            return
        try:
            out = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                # on a line of its own, whatever a killed run left before it
                os.write(out, b"\n" + json.dumps([key, record, digest(key, record)]).encode())
                os.fsync(out)
            finally:
                os.close(out)
        except OSError as fault:
            self._path = None
            self._warn(f"what is finished is not kept, so an interruption loses it: {fault.strerror}")

    def done(self) -> None:
        """All is finished: nothing has to be kept."""
        try:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
        except OSError:
            pass
