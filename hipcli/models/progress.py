"""The one way long work tells that it moves, and the sink that ignores it.

Knows nothing of terminals: the program draws, the library only counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class ProgressSink(Protocol):
    """Told of one phase at a time: start, any number of advances, finish; then perhaps another phase."""

    def start(self, label: str, total: int | None) -> None:
        """A phase begins. total: its size in bytes, None where nobody knows it."""

    def advance(self, n: int) -> None:
        """n more bytes are done (0 where only time passes)."""

    def finish(self) -> None:
        """The phase is over, done or not."""


class NoProgress:
    """Tells nobody."""

    def start(self, label: str, total: int | None) -> None:
        pass

    def advance(self, n: int) -> None:
        pass

    def finish(self) -> None:
        pass


@contextmanager
def phase(sink: ProgressSink, label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Runs one phase on `sink` and gives its `advance`; the phase is finished whatever happens inside."""
    sink.start(label, total)
    try:
        yield sink.advance
    finally:
        sink.finish()
