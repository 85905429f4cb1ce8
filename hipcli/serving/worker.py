"""The one thread that runs the model: a job after the other, in the order of the queue. Knows nothing of what they do."""

from __future__ import annotations

import threading
import time

from hipcli import config
from hipcli.console import Terminal
from hipcli.errors import HipError
from hipcli.serving.fair_queue import FairQueue, Full
from hipcli.serving.jobs import Cancelled, Job
from hipcli.serving.problems import Problem, too_busy
from hipcli.serving.shelf import Shelf

_REMEMBERED = 0.8  # of the mean time of a job, when another has ended


class Worker(threading.Thread):
    """Does the jobs that are handed in, until it is stopped; then gives back what the shelf holds."""

    def __init__(self, queue: FairQueue[Job], shelf: Shelf, log: Terminal) -> None:
        super().__init__(name="model", daemon=True)
        self.queue, self.shelf, self._log = queue, shelf, log
        self.running: Job | None = None
        self.stopping = False
        self._mean_seconds = 1.0

    @property
    def wait_seconds(self) -> float:
        """A guess at how long the last of those that wait now will wait."""
        return self._mean_seconds * (len(self.queue) + 1)

    def hand_in(self, job: Job, first: bool = False) -> None:
        """Let a job wait for its turn; first: before all others. Raises Problem when there is no room."""
        try:
            self.queue.put_first(job) if first else self.queue.put(job)
        except Full:
            raise stopped() if self.stopping else too_busy(self.wait_seconds) from None

    def give_up(self, job: Job) -> None:
        """Nobody waits for this job any more."""
        job.cancel()
        self.queue.discard(job)

    def run(self) -> None:
        try:
            while (job := self.queue.take()) is not None:
                self.running = job
                self._do(job)
                self.running = None
        finally:
            self.shelf.close()

    def _do(self, job: Job) -> None:
        job.started = time.monotonic()
        try:
            job.check()
            result = job.work(job)
        except Exception as fault:
            if not isinstance(fault, (Cancelled, HipError, Problem)):
                self._unexpected(fault, job)
            job.tell("fault", stopped() if isinstance(fault, Cancelled) else fault)
        else:
            job.tell("done", result)
        self._mean_seconds = _REMEMBERED * self._mean_seconds + (1 - _REMEMBERED) * (time.monotonic() - job.started)

    def _unexpected(self, fault: Exception, job: Job) -> None:
        """Tell of a fault without its words, which may quote a document; what it left half done is not used again."""
        self._log.error(f"unexpected {type(fault).__name__} while working on {job.document}; HIP_DEBUG=1 shows the traceback")
        if config.debug():
            import traceback

            traceback.print_exception(fault)
        if job.document:
            self.shelf.drop(job.document)

    def stop(self) -> None:
        """Call off what runs and what waits; from any thread. `join` waits for what is being saved."""
        self.stopping = True
        for job in self.queue.close():
            job.cancel()
            job.tell("fault", stopped())
        if (job := self.running) is not None:
            job.cancel()


def stopped() -> Problem:
    """Why a job was called off while its client still waits."""
    return Problem(503, "the work was called off: its document was deleted, or the server is stopping", code="called_off")
