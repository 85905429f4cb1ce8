"""The terminal: messages and progress on stderr, answers on stdout.

Every text shown passes through here, so that no control character of a document, a file name or a
model reaches a terminal raw. Knows nothing of documents, models or exit codes.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from hipcli import config
from hipcli.errors import DiskError
from hipcli.trimming import Trimmer

if TYPE_CHECKING:
    # rich is loaded when something live is shown, so that help and pipes start at once
    from rich.console import Console
    from rich.progress import Progress

_PLAIN_INTERVAL_S = 30.0
# room for "1,012,345/1,048,576 tokens, 12,345/s, 12 min 05 s left"
_AMOUNTS_WIDTH = 56
_RATE_WINDOW_S = 20.0
_NAMED = {0x07: "\\a", 0x08: "\\b", 0x0B: "\\v", 0x0C: "\\f", 0x0D: "\\r"}
_CONTROLS = [code for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"]
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_DROP = dict.fromkeys(_CONTROLS)
_SHOW = {code: _NAMED.get(code, f"\\x{code:02x}") for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _BIDI}


class StdoutClosed(Exception):
    """The reader of stdout has gone (`| head`): the work is over, and that is no fault."""


def visible(text: str) -> str:
    """Text in which control characters and bidi overrides are spelled out instead of obeyed."""
    return text.translate(_SHOW)


def without_controls(text: str) -> str:
    """Text without C0 and C1 control characters except newline and tab."""
    return text.translate(_DROP)


def write_stdout(text: str) -> None:
    """Write and flush as it is.

    Raises StdoutClosed when nobody reads, DiskError when the write fails otherwise.
    """
    _to_stdout(lambda out: out.write(text))


def write_json(record: Any) -> None:
    """One JSON line in UTF-8, whatever the terminal's encoding; errors as for write_stdout."""
    import json

    line = json.dumps(record, ensure_ascii=False) + "\n"
    # a lone surrogate becomes \udc00, which is valid JSON
    _to_stdout(lambda out: out.buffer.write(line.encode("utf-8", "backslashreplace")))


def _to_stdout(write) -> None:
    if sys.stdout is None:
        raise DiskError("cannot write the answer: standard output is closed")
    try:
        write(sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        raise StdoutClosed from None
    except OSError as fault:
        raise DiskError(f"cannot write the answer: {fault.strerror}") from fault


class AnswerWriter:
    """Streams an answer to stdout: sanitised, trimmed, and ended by exactly one newline."""

    def __init__(self) -> None:
        terminal = sys.stdout is not None and sys.stdout.isatty()
        self._clean = visible if terminal else without_controls
        self._trim = Trimmer()

    def write(self, text: str) -> None:
        """Show text at once, except white space that may turn out to be the answer's end."""
        if body := self._trim.push(text):
            write_stdout(self._clean(body))

    def finish(self) -> None:
        """End the line; writes nothing when nothing was written before."""
        if self._trim.started:
            write_stdout("\n")
        self._trim = Trimmer()


class Phase:
    """A stretch of work whose advance is not shown; the base of those that show it."""

    def advance(self, count: int = 1) -> None:
        """Count more units as done."""

    def to(self, done: int, total: int | None = None) -> None:
        """Set the units done, and the total once it is known."""


class _BarPhase(Phase):
    """A live bar with done, total, recent rate and the time that is left at that rate."""

    def __init__(self, progress: Progress, label: str, total: int | None, unit: str) -> None:
        self._progress, self._total, self._unit, self._done = progress, total, unit, 0
        self._recent = deque([(time.monotonic(), 0)])
        self._task = progress.add_task(visible(label), total=total, amounts="")

    def advance(self, count: int = 1) -> None:
        self.to(self._done + count)

    def to(self, done: int, total: int | None = None) -> None:
        self._done, self._total = done, total if total is not None else self._total
        now = time.monotonic()
        self._recent.append((now, done))
        while len(self._recent) > 2 and now - self._recent[0][0] > _RATE_WINDOW_S:
            self._recent.popleft()
        self._progress.update(self._task, completed=done, total=self._total, amounts=self._amounts())

    def _amounts(self) -> str:
        (then, before), (now, _) = self._recent[0], self._recent[-1]
        rate = (self._done - before) / (now - then) if now > then else 0.0
        bare = self._unit if self._unit == "bytes" else ""
        parts = [f"{amount(self._done, bare)}/{amount(self._total, self._unit)}" if self._total else amount(self._done, self._unit)]
        if rate >= 1 and self._unit:
            parts.append(f"{amount(int(rate), bare)}/s")
        if rate > 0 and self._total and self._done < self._total:
            parts.append(f"{duration((self._total - self._done) / rate)} left")
        return ", ".join(parts)


class _LinePhase(Phase):
    """Plain lines: one at the start of a long phase, one every 30 s, one at the end if any was shown."""

    def __init__(self, terminal: Terminal, label: str, total: int | None, unit: str, long: bool) -> None:
        self._terminal, self._label, self._unit = terminal, label, unit
        self._done, self._total = 0, total
        self._began = self._shown_at = time.monotonic()
        self._shown = long
        if long:
            terminal.note(f"{label} …")

    def advance(self, count: int = 1) -> None:
        self.to(self._done + count)

    def to(self, done: int, total: int | None = None) -> None:
        self._done, self._total = done, total if total is not None else self._total
        if time.monotonic() - self._shown_at >= _PLAIN_INTERVAL_S:
            self._shown, self._shown_at = True, time.monotonic()
            of = f" of {amount(self._total, self._unit)}" if self._total else ""
            of += f", {duration((self._shown_at - self._began) * (self._total / done - 1))} left" if self._total and done else ""
            self._terminal.note(f"{self._label}: {amount(done, self._unit)}{of}")

    def end(self) -> None:
        if self._shown:
            seconds = time.monotonic() - self._began
            what = f"{amount(self._done, self._unit)} in " if self._done else ""
            self._terminal.note(f"{self._label}: {what}{duration(seconds)}")


class _Sink:
    """What library code reports to: `start`, `advance`, `finish`; one phase at a time."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._context: Any = None

    def start(self, label: str, total: int | None) -> None:
        self.finish()
        self._context = self._terminal.phase(label, total, "bytes" if total else "", long=True)
        self._phase = self._context.__enter__()

    def advance(self, n: int) -> None:
        self._phase.advance(n)

    def finish(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)


class Terminal:
    """Where a command talks: notes, warnings and progress, all on stderr.

    quiet: errors only. verbose: details too. as_json: nothing but live progress, so that a failure
    leaves one JSON line on stderr.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
        self.quiet, self.verbose, self.as_json = quiet, verbose and not quiet, as_json
        self._stream: TextIO = sys.stderr if sys.stderr is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.is_terminal = self._stream.isatty()
        self.live = self.is_terminal and not quiet and not config.plain_terminal()

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=self._stream, emoji=False, markup=False, highlight=False, soft_wrap=True, force_terminal=True)

    def error(self, text: str) -> None:
        """Always shown."""
        self._print(text)

    def note(self, text: str) -> None:
        """Shown unless quiet."""
        if not self.quiet and not self.as_json:
            self._print(text)

    def warn(self, text: str) -> None:
        """A note marked as a warning."""
        self.note(f"warning: {text}")

    def check(self) -> None:
        """Raise when the work was called off by other means than a signal; asked by what waits for others."""

    def detail(self, text: str) -> None:
        """Shown when verbose."""
        if self.verbose:
            self.note(text)

    def _print(self, text: str) -> None:
        try:
            if self.live:
                # a live bar keeps its place below the text
                self._console.print(visible(text), soft_wrap=True)
            else:
                self._stream.write(visible(text) + "\n")
                self._stream.flush()
        except OSError:
            # nobody reads stderr; the answer may still be wanted
            pass

    @contextmanager
    def phase(self, label: str, total: int | None = None, unit: str = "", *, long: bool = False) -> Iterator[Phase]:
        """Show the advance of one stretch of work: a live bar, or plain lines where that is unwelcome."""
        if self.live:
            with self._bar(label, total is not None or bool(unit)) as progress:  # a total of units may come later
                yield _BarPhase(progress, label, total, unit)
        elif self.quiet or self.as_json:
            yield Phase()
        else:
            lines = _LinePhase(self, label, total, unit, long)
            yield lines
            lines.end()

    def _bar(self, label: str, measured: bool) -> Progress:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        spare = max(24, self._console.width - _AMOUNTS_WIDTH)
        # a long file name gives way to the numbers
        room = min(len(label), spare * 3 // 5 if measured else self._console.width - 40)
        fold = Column(no_wrap=True, overflow="ellipsis", max_width=max(8, room))
        text = TextColumn("{task.description}", markup=False, table_column=fold)
        first = BarColumn(bar_width=max(8, min(28, spare - room))) if measured else SpinnerColumn()
        last = TextColumn("{task.fields[amounts]}", markup=False, table_column=Column(no_wrap=True))
        columns = (text, first, last) if measured else (text, first, last, TimeElapsedColumn())
        return Progress(*columns, console=self._console, transient=True, refresh_per_second=5)

    def sink(self) -> _Sink:
        """A ProgressSink for library code."""
        return _Sink(self)


def amount(count: int | None, unit: str) -> str:
    """A count in words: 12,345 tokens; 1 token; 98.1 MB. unit: a plural."""
    if unit != "bytes":
        return f"{count or 0:,} {unit.removesuffix('s') if count == 1 else unit}".rstrip()
    size = float(count or 0)
    for name in ("B", "KB", "MB", "GB"):
        if size < 1000 or name == "GB":
            break
        size /= 1000
    return f"{size:.0f} {name}" if name == "B" else f"{size:.1f} {name}"


def duration(seconds: float) -> str:
    """Seconds in words: 0.4 s, 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
