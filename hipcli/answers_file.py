"""`hip ask --questions … --out FILE`: rows of JSON lines that a later run with the same question skips.

A row counts when document, model, settings and question are the same. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import Counter
from dataclasses import asdict
from typing import Any

from hipcli.document import Document
from hipcli.errors import DiskError, InputError
from hipcli.options import RunOptions

# options that change no answer
_WITHOUT_EFFECT = {"sources", "model", "strict", "stream", "offline", "session", "no_session"}


def run_id(document: Document, model_digest: str, options: RunOptions) -> str:
    """A digest of everything but the question that an answer depends on."""
    from hipcli.readers import READERS_VERSION
    from hipcli.readers.normalize import NORMALIZER_VERSION

    chosen = {name: value for name, value in asdict(options).items() if name not in _WITHOUT_EFFECT}
    # names of later sources are shown to the model
    sources = [[source.sha256, source.format, source.name if at else ""] for at, source in enumerate(document.sources)]
    return hashlib.sha256(
        json.dumps([sources, model_digest, chosen, READERS_VERSION, NORMALIZER_VERSION], sort_keys=True).encode()
    ).hexdigest()[:16]


class AnswersFile:
    """The rows of one file, to which more are added as they come, each on the disk before the next is begun."""

    def __init__(self, path: str, run: str) -> None:
        """Raises InputError when the file is something else, DiskError when it cannot be written."""
        self.path, self.run = path, run
        self.half_row = False
        self._done = Counter(row["question"] for row in self._rows() if row.get("run") == run)
        self.found = sum(self._done.values())

    def _rows(self) -> list[dict[str, Any]]:
        try:
            self._file = open(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0)
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise InputError(
                    f"{self.path} is not a file that rows can be kept in", "give a file's name, or use --json and standard output"
                )
            data = self._file.read()
        except OSError as fault:
            raise DiskError(f"cannot write {self.path}: {fault.strerror}") from None
        whole, _, rest = data.rpartition(b"\n")
        rows = [_row(self.path, number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip()]
        if rest:
            self._end_with(rest, len(data))
        return rows

    def _end_with(self, rest: bytes, size: int) -> None:
        """Deal with a last line that no newline ends: the beginning of a row that a killed run left, or something else."""
        if not rest.lstrip().startswith(b'{"schema_version"'):
            raise InputError(f"the last line of {self.path} is not one of hip's rows", "give another --out file")
        # it is ours and says nothing whole
        self._file.truncate(size - len(rest))
        self.half_row = True

    def skip(self, question: str) -> bool:
        """Whether a row answers this question; each row counts once."""
        if self._done[question] > 0:
            self._done[question] -= 1
            return True
        return False

    def add(self, record: dict[str, Any]) -> None:
        """Append one row and see it onto the disk. Raises DiskError."""
        line = (json.dumps({**record, "run": self.run}, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
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
        self._file.close()


def _row(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if isinstance(row, dict) and isinstance(row.get("question"), str):
            return row
    except (ValueError, RecursionError):
        pass
    raise InputError(f"line {number} of {path} is not one of hip's rows", "give another --out file")
