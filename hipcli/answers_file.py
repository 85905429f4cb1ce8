"""Rows of JSON lines in a file that a later run goes on with: `hip ask --questions … --out FILE` and `hip batch`.

A row is on the disk before the next is begun, and none is ever half there. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from hipcli.document import Document
from hipcli.errors import DiskError, InputError, UsageError
from hipcli.options import RunOptions

# options that change no answer
_WITHOUT_EFFECT = {"sources", "model", "strict", "stream", "offline", "session", "no_session"}


def run_id(sources: Sequence[Sequence[str]], model_digest: str, options: RunOptions) -> str:
    """A digest of everything but the question that an answer depends on. sources: what identifies each source."""
    from hipcli.readers import READERS_VERSION
    from hipcli.readers.normalize import NORMALIZER_VERSION

    chosen = {name: value for name, value in asdict(options).items() if name not in _WITHOUT_EFFECT}
    versions = [READERS_VERSION, NORMALIZER_VERSION]
    return hashlib.sha256(json.dumps([list(sources), model_digest, chosen, *versions], sort_keys=True).encode()).hexdigest()[:16]


def document_id(document: Document) -> list[list[str]]:
    """What identifies the sources of a document that was read; the names of later ones are shown to the model."""
    return [[source.sha256, source.format, source.name if at else ""] for at, source in enumerate(document.sources)]


class RowsFile:
    """The rows of one file, to which more are added as they come, each on the disk before the next is begun.

    take: is shown every row that is there; False says that it is none of ours. begins: the first characters of every row.
    half_row: whether the last row was cut short by a run that was killed; it is gone now.
    """

    def __init__(self, path: str, take: Callable[[dict[str, Any]], bool], begins: bytes = b'{"schema_version"') -> None:
        """Raises InputError when the file is something else, UsageError when another run adds to it, DiskError when it cannot be written."""
        self.path, self.half_row, self._begins = path, False, begins
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = open(handle, "r+b", buffering=0)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise InputError(f"{path} is not a file that rows can be kept in", "give a file's name, or use --json and standard output")
            self._lock()
            with open(os.dup(handle), "rb") as lines:
                for number, line in enumerate(lines, 1):
                    if not line.endswith(b"\n"):
                        self._cut(line)
                    elif line.strip() and not _is_row(line, take):
                        raise InputError(f"line {number} of {path} is not one of hip's rows", "give another --out file")
        except OSError as fault:
            raise DiskError(f"cannot write {path}: {fault.strerror}") from None

    def _lock(self) -> None:
        """Two runs at once would each do what the other does; the system unlocks the file of one that was killed."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another run is adding rows to {self.path}", "wait for it, or give another --out file") from None

    def _cut(self, rest: bytes) -> None:
        """Deal with a last line that no newline ends: the beginning of a row that a killed run left, or something else."""
        if not (rest.startswith(self._begins) or self._begins.startswith(rest)):
            raise InputError(f"the last line of {self.path} is not one of hip's rows", "give another --out file")
        # it is ours and says nothing whole
        self._file.truncate(os.fstat(self._file.fileno()).st_size - len(rest))
        self.half_row = True

    def add(self, record: dict[str, Any]) -> None:
        """Append one row and see it onto the disk. Raises DiskError."""
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        end = os.fstat(self._file.fileno()).st_size
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
            os.fsync(self._file.fileno())
        except OSError as fault:
            self._file.truncate(end)
            raise DiskError(f"cannot write {self.path}: {fault.strerror}", "rows written before are whole; run it again to go on") from None

    def close(self) -> None:
        """Let another run add rows."""
        self._file.close()


def _is_row(line: bytes, take: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and take(row)


class AnswersFile:
    """Answers as rows of a file, by the run and the question they answer."""

    def __init__(self, path: str) -> None:
        """Raises what RowsFile does."""
        self._done: Counter[tuple[str, str]] = Counter()
        self._rows = RowsFile(path, self._take)
        self.path, self.half_row = path, self._rows.half_row

    def _take(self, row: dict[str, Any]) -> bool:
        if not isinstance(row.get("question"), str):
            return False
        self._done[str(row.get("run")), row["question"]] += 1
        return True

    def skip(self, run: str, question: str) -> bool:
        """Whether a row of this run answers this question; each row counts once."""
        if self._done[run, question] > 0:
            self._done[run, question] -= 1
            return True
        return False

    def add(self, record: dict[str, Any], run: str) -> None:
        """Append one row and see it onto the disk. Raises DiskError."""
        self._rows.add({**record, "run": run})

    def close(self) -> None:
        """Let another run add answers."""
        self._rows.close()
