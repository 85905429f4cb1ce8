"""The model and the documents that it holds in memory, the last used last; what must go is on the disk already.

Used by one thread. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hipcli import config
from hipcli.citing import CiteOptions, Citer
from hipcli.console import Terminal
from hipcli.document import Document
from hipcli.errors import DoesNotFit
from hipcli.loading import new_engine
from hipcli.options import RunOptions
from hipcli.pipeline import MORE_TOKENS, Reading, hold, tokenized
from hipcli.serving.access import LOCAL
from hipcli.serving.documents import Entry
from hipcli.serving.jobs import Job, JobTerminal

if TYPE_CHECKING:
    from hipcli.model import LoadedModel
    from hipcli.models import ModelFiles
    from hipcli.sessions import Library
    from hipcli.tokens import Tokenizer


@dataclass
class Held:
    """A document in memory. citer: finds its pages; terminal: where its reading talks; stack: what gives everything back."""

    reading: Reading
    citer: Citer
    terminal: JobTerminal
    stack: ExitStack


class Shelf:
    """Opens documents and closes those used least recently. most: documents at once. on_session: gets the key of what is kept of one."""

    def __init__(
        self,
        model: LoadedModel,
        files: ModelFiles,
        tokenizer: Tokenizer,
        options: RunOptions,
        log: Terminal,
        most: int,
        on_session: Callable[[Entry, str], None],
    ) -> None:
        self.model, self.files, self.tokenizer, self.options = model, files, tokenizer, options
        self._log, self._most, self._on_session = log, most, on_session
        self._held: OrderedDict[str, Held] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        """Whether the document with this id is in memory; from any thread."""
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def take(self, entry: Entry, document: Callable[[], Document], job: Job) -> Held:
        """The document, read now if it must be; `job` hears how far that is. Raises Cancelled, DoesNotFit, ModelError."""
        if entry.id not in self._held:
            while len(self._held) >= self._most:
                self._close_oldest()
            self._held[entry.id] = self._opened(entry, document(), job)
        self._held.move_to_end(entry.id)
        return self._held[entry.id]

    def _opened(self, entry: Entry, document: Document, job: Job) -> Held:
        while True:
            try:
                return self._open(entry, document, job)
            except DoesNotFit:
                if not self._held:
                    raise
                self._close_oldest()

    def _open(self, entry: Entry, document: Document, job: Job) -> Held:
        terminal = JobTerminal(self._log, entry.id)
        terminal.job = job
        encoded = tokenized(document, self.tokenizer, terminal)
        try:
            with ExitStack() as stack:
                engine = stack.enter_context(new_engine(self.model, self.options, terminal))
                how = (self.options, self.files, self.tokenizer, encoded, terminal, lambda prompt, encoded: MORE_TOKENS)
                reading = stack.enter_context(hold(engine, document, *how, cache_dir=sessions_folder(entry)))
                if reading.session is not None:
                    self._on_session(entry, reading.session.key)
                return Held(reading, Citer(reading, CiteOptions()), terminal, stack.pop_all())
        finally:
            terminal.job = None

    def _close_oldest(self) -> None:
        self.drop(next(iter(self._held)))

    def drop(self, key: str) -> None:
        """Give the memory of a document back, once what is kept of it is on the disk."""
        held = self._held.pop(key, None)
        if held is not None:
            held.stack.close()

    def close(self) -> None:
        """Give all memory back."""
        while self._held:
            self._close_oldest()


def sessions_folder(entry: Entry) -> Path | None:
    """Where the session of a document is kept: with this user's own, but a token's in a folder of its own.

    Sessions that begin alike share what was computed, and how fast an answer comes would tell one token what another read.
    """
    return None if entry.owner in (None, LOCAL) else config.cache_dir() / "serve" / "tokens" / entry.owner


def library_of(entry: Entry) -> Library:
    """The sessions among which the document's is kept."""
    from hipcli.sessions import Library

    return Library(sessions_folder(entry) or config.cache_dir(), config.cache_budget())
