"""One model that answers questions of one file after the other.

Knows no output, and nothing of other workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hipcli.batching.job import Task
from hipcli.batching.reading import fault_of, read_task
from hipcli.citations import cite
from hipcli.console import Terminal
from hipcli.errors import HipError
from hipcli.options import RunOptions
from hipcli.pipeline import Opened, find_model, open_engine, open_tokenizer, read_into, room_for
from hipcli.questions import marked_record

Keep = Callable[[dict[str, Any]], None]


@contextmanager
def open_worker(options: RunOptions, terminal: Terminal) -> Iterator[Worker]:
    """Load the model, once; raises ModelError, DoesNotFit, UsageError."""
    began, files = time.monotonic(), find_model(options, terminal)
    tokenizer = open_tokenizer(files, terminal)
    prompt = tokenizer.prompt(options.system)
    with open_engine(files, options, terminal) as (model, engine):
        yield Worker(options, Opened(files, tokenizer, prompt, model, engine), terminal, time.monotonic() - began)


class Worker:
    """A model that is loaded. load_seconds: what that took, told in the rows of the first file."""

    def __init__(self, options: RunOptions, opened: Opened, terminal: Terminal, load_seconds: float) -> None:
        self._options, self._opened, self._terminal, self._load_seconds = options, opened, terminal, load_seconds

    @property
    def digest(self) -> str:
        """Of the model's files."""
        return self._opened.files.digest

    def answer(self, task: Task, keep: Keep) -> HipError | None:
        """Read a file into the model and hand on the row of each question; the fault of a file that cannot be answered.

        Raises ModelError, and what `keep` raises.
        """
        return fault_of(lambda: self._answer(task, keep))

    def _answer(self, task: Task, keep: Keep) -> None:
        opened, began = self._opened, time.monotonic()
        document = read_task(task, self._options, self._terminal)
        timing = {"read_seconds": time.monotonic() - began}
        began = time.monotonic()
        encoded = opened.tokenizer.encode_document(document)
        timing |= {"tokenize_seconds": time.monotonic() - began, "load_seconds": self._load_seconds}
        self._load_seconds = 0.0
        opened.engine.rewind(0)
        room = room_for([question.text for question in task.questions])
        with read_into(opened, document, encoded, self._options, Terminal(quiet=True), room, timing) as reading:
            for question in task.questions:
                answer = reading.ask(question.text)
                keep(marked_record(reading, question, answer, cite(answer.text, question.text, document)))
