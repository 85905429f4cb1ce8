"""One piece of work for the model: what its progress is, who hears of it, and that it can be called off.

Crosses from the event loop to the worker's thread and back. Knows nothing of HTTP or models.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hipcli.console import Phase, Terminal


class Cancelled(Exception):
    """Nobody waits for this work any more."""


@dataclass(frozen=True)
class Event:
    """What a job tells. kind: "progress", "text", "done" or "fault"; the last two end it.

    value: for "text" a piece of the answer, for "done" the result, for "fault" the exception, for "progress" a sentence.
    """

    kind: str
    value: Any


class Job:
    """Work that a thread will do. owner, client: whose turn it is; document: the id of what it reads, None for nothing.

    Made in an event loop, in which its events arrive; `work` is called elsewhere, with the job. progress: the last that was
    told. is_over: whether it was done or failed.
    """

    def __init__(self, work: Callable[[Job], Any], owner: str, client: str = "", document: str | None = None) -> None:
        self.work, self.owner, self.client, self.document = work, owner, client, document
        self.made, self.started = time.monotonic(), 0.0
        self._loop, self._events = asyncio.get_running_loop(), asyncio.Queue()
        self._cancelled = threading.Event()
        self.is_over, self.progress = False, ""

    def cancel(self) -> None:
        """Call it off; the work ends at its next `check`."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise Cancelled when it was called off."""
        if self._cancelled.is_set():
            raise Cancelled

    def tell(self, kind: str, value: Any) -> None:
        """Hand an event to whoever waits; from any thread."""
        self.is_over = kind in ("done", "fault")
        self.progress = value if kind == "progress" else self.progress
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, Event(kind, value))
        except RuntimeError:
            # the loop has ended, and with it whoever waited
            pass

    async def event(self, patience: float | None = None) -> Event:
        """The next event; one of the kind "silence" when none comes for so many seconds."""
        # not asyncio.wait_for, which before Python 3.12 may lose that whoever waits was cancelled
        timer = self._loop.call_later(patience, self._events.put_nowait, Event("silence", None)) if patience else None
        try:
            return await self._events.get()
        finally:
            if timer is not None:
                timer.cancel()


class JobTerminal(Terminal):
    """Where the pipeline talks on behalf of jobs: progress goes to who waits, notes go to the log under `name`.

    job: the one at work, None between two. Its phases end the work when it is called off.
    """

    def __init__(self, log: Terminal, name: str) -> None:
        super().__init__(quiet=log.quiet, verbose=log.verbose)
        self._log, self._name, self.job, self.live = log, name, None, False

    def note(self, text: str) -> None:
        self._log.note(f"{self._name}: {text}")

    def check(self) -> None:
        if self.job is not None:
            self.job.check()

    @contextmanager
    def phase(self, label: str, total: int | None = None, unit: str = "", *, long: bool = False) -> Iterator[Phase]:
        yield _JobPhase(self.job, label, total, unit) if self.job else Phase()


class _JobPhase(Phase):
    def __init__(self, job: Job, label: str, total: int | None, unit: str) -> None:
        self._job, self._label, self._total, self._unit, self._done = job, label, total, unit, 0
        self.to(0)

    def advance(self, count: int = 1) -> None:
        self.to(self._done + count)

    def to(self, done: int, total: int | None = None) -> None:
        self._done, self._total = done, total if total is not None else self._total
        of = f" {done:,} of {self._total:,} {self._unit}".rstrip() if self._total else ""
        self._job.tell("progress", self._label + of)
        self._job.check()
