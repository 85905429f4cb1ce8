"""A worker process as its parent sees it: bytes go in, answers come out, one JSON object a line, and its death has a reason.

Knows nothing of what is asked or answered.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from typing import Any, BinaryIO

# the working directory must not be searched for modules: it belongs to the user's documents
_START = "import sys; sys.path[:] = [p for p in sys.path if p]; from hipcli.readers.{module} import main; main()"


class Died(Exception):
    """A worker ended, or was ended, before it was done."""


class TooLate(Died):
    """A worker did not answer in time."""


class WorkerPipe:
    """A fresh interpreter that runs `main` of a module of this package (`worker_side.py` has what they share)."""

    def __init__(self, module: str) -> None:
        self._errors = tempfile.TemporaryFile()
        start = [sys.executable, "-c", _START.format(module=module)]
        self._process = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, job: dict[str, Any], data: bytes = b"") -> None:
        """Hand over one JSON line, and bytes behind it."""
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; reading its answers will tell

    def answer(self, patience: float) -> dict[str, Any]:
        """The next answer. Raises TooLate if none comes in `patience` seconds, Died if the worker ended."""
        try:
            line = self._lines.get(timeout=max(patience, 0.0))
        except queue.Empty:
            raise TooLate(f"it took longer than {patience:g} s") from None
        if not line.endswith(b"\n"):
            raise Died(self._cause_of_death())
        return json.loads(line)

    def close(self) -> None:
        """End the worker, whatever it does."""
        self._process.kill()
        self._process.wait()
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # what it had not read yet
        self._errors.close()

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"it crashed its reader (signal {-code})"
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return f"its reader ended: {said[-1] if said else f'exit status {code}'}"


def _pump(stdout: BinaryIO, lines: queue.SimpleQueue[bytes]) -> None:
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put(b"")
