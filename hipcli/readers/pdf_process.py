"""Runs PDF worker processes and outlives them: what hangs, crashes or swallows memory costs one page, not the document.

Knows the workers' protocol (`pdf_worker.py`) and the clock; knows nothing of what the answers are good for.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from hipcli.readers.worker_pipe import Died, WorkerPipe


@dataclass(frozen=True)
class Limits:
    """What a document may cost.

    page_seconds: longest silence of a worker between pages. open_seconds: until it has opened the file.
    document_seconds: for all pages, None is 600 and 2 more for each page.
    memory_bytes: of a worker's address space, beyond twice the file's size (Linux only).
    """

    page_seconds: float = 30.0
    open_seconds: float = 60.0
    document_seconds: float | None = None
    memory_bytes: int = 2 << 30

    def for_document(self, pages: int) -> float:
        return 600.0 + 2.0 * pages if self.document_seconds is None else self.document_seconds


class WorkerRefused(Exception):
    """The engine cannot open the document: kind is "password", "security", "damaged", "engine" or "died"."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def read_pages(job: dict[str, Any], limits: Limits, on_answer: Callable[[dict[str, Any]], None]) -> int:
    """Run `job` to its end, restarting the worker behind each page that kills it.

    on_answer gets the workers' answers ("count" again after a restart), and {"page": i, "error": why} for a page that
    killed one or for which no time was left. Returns the number of pages in the document. Raises WorkerRefused if it
    cannot be opened.
    """
    todo = deque(job["pages"] or ())
    count, deadline = None, math.inf
    while count is None or todo:
        if time.monotonic() > deadline:
            on_answer({"page": todo.popleft(), "error": "the time for the whole document is used up"})
            continue
        pages = job["pages"] if count is None else list(todo)
        try:
            with closing(_answers({**job, "pages": pages}, limits)) as answers:
                for answer in answers:
                    if "refused" in answer:
                        raise WorkerRefused(answer["refused"], answer["reason"])
                    if "count" in answer and count is None:
                        count = answer["count"]
                        deadline = time.monotonic() + limits.for_document(count)
                        todo = todo or deque(range(count))
                    if "page" in answer:
                        todo.popleft()
                    on_answer(answer)
                    if time.monotonic() > deadline:
                        break
        except Died as death:
            if count is None:
                raise WorkerRefused("died", str(death)) from None
            on_answer({"page": todo.popleft(), "error": str(death)})
    return count


def _answers(job: dict[str, Any], limits: Limits) -> Iterator[dict[str, Any]]:
    """The answers of one worker up to its "done". Raises Died if it falls silent or ends before."""
    with closing(WorkerPipe("pdf_worker")) as worker:
        worker.send(job)
        patience = limits.open_seconds
        while "done" not in (answer := worker.answer(patience)):
            yield answer
            patience = limits.page_seconds
