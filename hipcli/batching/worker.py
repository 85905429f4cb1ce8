"""One model that answers questions of one file after the other.

Knows no output, and nothing of other workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hipcli.batching.job import Task
from hipcli.batching.reading import fault_of, read_task
from hipcli.citing import Citer, CiteOptions
from hipcli.console import Terminal
from hipcli.errors import HipError
from hipcli.options import RunOptions
from hipcli.pipeline import find_model, hold, open_engine, open_tokenizer, room_for
from hipcli.questions import Keep, marked_record

if TYPE_CHECKING:
    from hipcli.engine import Engine
    from hipcli.models import ModelFiles
    from hipcli.tokens import Tokenizer


@contextmanager
def open_worker(options: RunOptions, terminal: Terminal) -> Iterator[Worker]:
    """Load the model, once; raises ModelError, DoesNotFit, UsageError."""
    began, files = time.monotonic(), find_model(options, terminal)
    tokenizer = open_tokenizer(files, terminal)
    with open_engine(files, options, terminal) as (_, engine):
        yield Worker(options, files, tokenizer, engine, terminal, time.monotonic() - began)


class Worker:
    """A model that is loaded. load_seconds: what that took, told in the rows of the first file."""

    def __init__(
        self, options: RunOptions, files: ModelFiles, tokenizer: Tokenizer, engine: Engine, terminal: Terminal, load_seconds: float
    ) -> None:
        self._options, self._files, self._tokenizer, self._engine = options, files, tokenizer, engine
        self._terminal, self._load_seconds = terminal, load_seconds

    @property
    def digest(self) -> str:
        """Of the model's files."""
        return self._files.digest

    def answer(self, task: Task, keep: Keep) -> HipError | None:
        """Read a file into the model and hand on the row of each question; the fault of a file that cannot be answered.

        Raises ModelError, and what `keep` raises.
        """
        return fault_of(lambda: self._answer(task, keep))

    def _answer(self, task: Task, keep: Keep) -> None:
        began = time.monotonic()
        document = read_task(task, self._options, self._terminal)
        timing = {"read_seconds": time.monotonic() - began}
        began = time.monotonic()
        encoded = self._tokenizer.encode_document(document)
        timing |= {"tokenize_seconds": time.monotonic() - began, "load_seconds": self._load_seconds}
        self._load_seconds = 0.0
        self._engine.rewind(0)
        room = room_for([question.text for question in task.questions])
        held = (self._engine, document, self._options, self._files, self._tokenizer, encoded, Terminal(quiet=True), room)
        with hold(*held) as reading:
            reading.timing |= timing
            citer = Citer(reading, CiteOptions())
            for question in task.questions:
                answer, evidence = citer.cited(question.text, reading.ask)
                keep(marked_record(citer, question, answer, evidence))
