"""The books of a batch: what is left to do, rows and failures as they come, the report.

Knows nothing of models; both engines write here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from hipcli import __version__
from hipcli.batching.failures import Failures
from hipcli.batching.files import BatchFile
from hipcli.batching.job import BatchJob, Task
from hipcli.console import Terminal, duration, write_json
from hipcli.errors import HipError, IncompleteError
from hipcli.readers.source import show

_MOST_LISTED = 20


class Rows(Protocol):
    """Where rows go: answers_file.AnswersFile, or one with its methods."""

    path: str
    half_row: bool

    def skip(self, run: str, question: str) -> bool: ...
    def add(self, record: dict[str, Any], run: str) -> None: ...


class Ledger:
    """What a batch has done and has to do. kind: what rows are called."""

    def __init__(self, job: BatchJob, rows: Rows, failures: Failures, terminal: Terminal, kind: str = "answers") -> None:
        self._job, self._rows, self._failures, self._terminal, self._kind = job, rows, failures, terminal, kind
        self._began = time.monotonic()
        self._runs: dict[str, str] = {}
        self.before = self.answered = self.rows_added = 0

    def plan(self, files: Sequence[BatchFile], runs: Sequence[str]) -> list[Task]:
        """The work that is left. runs: of each file, what identifies file, model and settings."""
        if self._rows.half_row:
            self._terminal.warn(f"the last row of {self._rows.path} was cut short by a run that was killed; it is made again")
        self._runs = {run: file.path for file, run in zip(files, runs)}
        paths = {file.path for file in files}
        # the last verdict on a file counts: one that has changed, or is read with other settings, is tried again
        self._failures.keep(lambda row: row["path"] not in paths or (row.get("run") in self._runs and not self._job.retry_failed))
        tasks = []
        for file, run in zip(files, runs):
            left = tuple(question for question in self._job.questions if not self._rows.skip(run, question.text))
            if not left:
                self.before += 1
            elif self._failures.of(run):
                continue
            elif file.fault is not None:
                self._failures.add(file.path, run, file.fault)
            else:
                tasks.append(Task(file.path, file.sha256, run, left))
        if self.before:
            self._terminal.note(f"{self.before:,} of {len(files):,} files are in {self._job.out} already")
        return tasks

    def row(self, task: Task, record: dict[str, Any]) -> None:
        """Keep one row. Raises DiskError."""
        self._rows.add(record, task.run)
        self.rows_added += 1

    def done(self, task: Task, fault: HipError | None) -> None:
        """Count a file that all is known of. Raises DiskError."""
        if fault is None:
            self.answered += 1
            return
        self._failures.add(task.path, task.run, fault)
        self._terminal.warn(f"{show(task.path)} failed: {fault.message}")

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Say what an interruption leaves."""
        try:
            yield
        except BaseException:
            if self._runs:
                count = f"{self.before + self.answered:,} of {len(self._runs):,}"
                self._terminal.note(f"stopped: {count} files are done, and their rows are kept; the same command goes on")
            raise
        finally:
            self._failures.close()

    def report(self) -> None:
        """Tell what was done; raises IncompleteError when files failed."""
        failed = [row for row in self._failures.rows if row.get("run") in self._runs]
        seconds = time.monotonic() - self._began
        if self._terminal.as_json:
            write_json(self._record(failed, seconds))
        earlier = f" ({self.before:,} by an earlier run)" if self.before else ""
        done = f"{self.before + self.answered:,} of {len(self._runs):,} files done{earlier}"
        self._terminal.note(f"{done}, {self.rows_added:,} {self._kind} added to {self._job.out} in {duration(seconds)}")
        for row in failed[:_MOST_LISTED]:
            self._terminal.note(f"  failed: {show(row['path'])}: {row['error']['message']}")
        if len(failed) > _MOST_LISTED:
            self._terminal.note(f"  and {len(failed) - _MOST_LISTED:,} more in {self._failures.path}")
        if failed:
            hint = f"{self._failures.path} has the reasons; --retry-failed tries them again"
            raise IncompleteError(f"{len(failed):,} of {len(self._runs):,} files failed", hint)

    def _record(self, failed: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "out": self._job.out,
            "files": len(self._runs),
            "done": self.before + self.answered,
            "done_before": self.before,
            "rows_added": self.rows_added,
            "failed": [{"path": show(row["path"]), **row["error"]} for row in failed],
            "seconds": round(seconds, 3),
            "hip_version": __version__,
        }
