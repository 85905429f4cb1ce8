"""The files of a batch that failed, listed beside the answers until a later run answers them.

Knows nothing of why files fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hipcli.answers_file import RowsFile
from hipcli.errors import DiskError, HipError


class Failures:
    """The failures that a file lists; the file is there only while it lists any."""

    def __init__(self, path: str) -> None:
        """Raises InputError when the file is something else, DiskError when it cannot be read."""
        self.path, self.rows = path, []
        self._file: RowsFile | None = None
        if os.path.lexists(path):
            RowsFile(path, self._take).close()

    def _take(self, row: dict[str, Any]) -> bool:
        self.rows.append(row)
        return isinstance(row.get("error"), dict) and isinstance(row.get("path"), str)

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Forget the others. Raises DiskError."""
        kept = [row for row in self.rows if wanted(row)]
        if len(kept) == len(self.rows):
            return
        self.close()
        self.rows = []
        try:
            # one that a killed run left
            if os.path.lexists(self.path + ".new"):
                os.unlink(self.path + ".new")
            if not kept:
                os.unlink(self.path)
                return
            fresh = RowsFile(self.path + ".new", lambda row: False)
            for row in kept:
                fresh.add(row)
            fresh.close()
            os.replace(self.path + ".new", self.path)
        except OSError as fault:
            raise DiskError(f"cannot write {self.path}: {fault.strerror}") from None
        self.rows = kept

    def add(self, path: str, run: str, fault: HipError) -> None:
        """List one more file. Raises DiskError."""
        if self._file is None:
            self._file = RowsFile(self.path, lambda row: True)
        error = {"code": fault.exit_code, "message": fault.message, "hint": fault.hint}
        self.rows.append({"schema_version": 1, "path": path, "error": error, "run": run})
        self._file.add(self.rows[-1])

    def of(self, run: str) -> bool:
        """Whether this run failed before."""
        return any(row.get("run") == run for row in self.rows)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
