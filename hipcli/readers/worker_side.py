"""What every worker process does: hears jobs, answers in JSON lines, keeps to its caps, and ends with its parent.

The other end is `worker_pipe.py`. Knows nothing of what is asked.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class Answers:
    """Standard output as a stream of answers; what libraries print goes to standard error. Interrupts are the parent's to judge."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._out = os.fdopen(os.dup(1), "w", encoding="ascii")
        os.dup2(2, 1)

    def say(self, answer: dict[str, Any]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()


def jobs() -> Iterable[tuple[dict[str, Any], bytes]]:
    """Jobs as they come, each with the bytes behind it ("bytes" says how many). The process ends when the parent closes the pipe, or dies."""
    waiting: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()

    def listen() -> None:
        # the parent holds the other end open for as long as it lives
        stdin = sys.stdin.buffer
        while line := stdin.readline():
            job = json.loads(line)
            waiting.put((job, stdin.read(job.get("bytes") or 0)))
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return iter(waiting.get, None)


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[None]:
    """Cap this process's address space for a while, where the system can."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    _set_soft_limit(resource.RLIMIT_AS, limit_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_processor(more_seconds: float) -> None:
    """End this process after so many more seconds of processor time: a parent that was killed cannot stop it."""
    if sys.platform.startswith("linux"):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _set_soft_limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + more_seconds) + 1)


def _set_soft_limit(which: int, limit: int) -> None:
    import resource

    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
