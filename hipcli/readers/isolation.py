"""Reads sources in a worker process: what hangs, crashes or swallows memory ends in one sentence, and costs its source alone.

Knows the worker's protocol (`source_worker.py`) and the clock; knows nothing of formats. PDF has workers of its own (`pdf_process.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hipcli import errors
from hipcli.errors import InputError
from hipcli.readers.content import Content, Format, RawPage, ReadOptions
from hipcli.readers.source import RawSource
from hipcli.readers.source_worker import job_for
from hipcli.readers.worker_pipe import Died, TooLate, WorkerPipe


@dataclass(frozen=True)
class SourceLimits:
    """What reading one source may cost: seconds, and bytes of the worker's address space (Linux only), each with a part that grows with its size.

    The slowest reader takes about a second a megabyte, and the hungriest some 50 bytes a byte.
    """

    seconds: float = 120.0
    seconds_per_megabyte: float = 10.0
    memory_bytes: int = 2 << 30
    memory_per_byte: int = 64

    def seconds_for(self, size_bytes: int) -> float:
        return self.seconds + self.seconds_per_megabyte * size_bytes / 1e6

    def memory_for(self, size_bytes: int) -> int:
        return self.memory_bytes + self.memory_per_byte * size_bytes


class IsolatedReader:
    """One worker that reads source after source; it starts with the first, and again after each that killed it."""

    def __init__(self, limits: SourceLimits = SourceLimits()) -> None:
        self._limits = limits
        self._worker: WorkerPipe | None = None
        self._idle = True  # the worker has answered all it was asked

    def read(self, raw: RawSource, format: Format, options: ReadOptions) -> Content:
        """What the reader of `format` makes of a source. Raises what it raises, and InputError where a cap ends it."""
        if self._worker is None:
            self._worker = WorkerPipe("source_worker")
        seconds, memory = self._limits.seconds_for(raw.size_bytes), self._limits.memory_for(raw.size_bytes)
        caps = {"memory_bytes": memory, "processor_seconds": 2 * seconds}
        try:
            self._worker.send(job_for(raw, format.name, options) | caps, raw.data or b"")
            return self._content(time.monotonic() + seconds, options)
        except TooLate:
            raise InputError(f"cannot read {raw.name}: it took longer than {seconds:,.0f} s and was stopped") from None
        except Died as death:
            raise InputError(f"cannot read {raw.name}: {death}") from None
        finally:
            if not self._idle:
                self.close()

    def close(self) -> None:
        """End the worker, if there is one."""
        worker, self._worker = self._worker, None
        if worker:
            worker.close()

    def _content(self, deadline: float, options: ReadOptions) -> Content:
        self._idle = False
        pages: list[RawPage] = []
        while True:
            answer = self._worker.answer(deadline - time.monotonic())
            if "page" in answer:
                pages.append(RawPage(**answer["page"]))
            elif "progress" in answer:
                if options.on_page:
                    options.on_page(*answer["progress"])
            elif "fault" in answer:
                kind, message, hint = answer["fault"]
                self._idle = True
                raise getattr(errors, kind, InputError)(message, hint)
            else:
                self._idle = True
                return Content(pages, **answer["content"])
