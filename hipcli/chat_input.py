"""Where a chat's lines come from: an editor with history on a terminal, plain lines from anything else.

Knows nothing of what the lines say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hipcli import config
from hipcli.console import Terminal
from hipcli.errors import InputError

_HISTORY = "chat-history"


class PlainLines:
    """Lines of standard input, one a question."""

    interactive = False

    def __iter__(self) -> Iterator[str]:
        if sys.stdin is None:
            raise InputError("cannot read questions: standard input is closed")
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as fault:
                raise InputError(f"line {number} of standard input is not UTF-8 (byte {fault.start})") from None


class EditedLines:
    """Lines edited on the terminal, shown on stderr so that stdout holds answers alone. Ctrl-D ends, Ctrl-C drops a line."""

    interactive = True

    def __init__(self, session: Any) -> None:
        self._session = session

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                yield self._session.prompt("> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return


@contextmanager
def open_input(terminal: Terminal) -> Iterator[PlainLines | EditedLines]:
    """The lines of this process's standard input."""
    if sys.stdin is None or not sys.stdin.isatty() or not terminal.is_terminal:
        yield PlainLines()
        return
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    yield EditedLines(PromptSession(history=_history(), output=create_output(stdout=sys.stderr)))


def _history():
    """Earlier lines, kept for their owner alone; in memory where they cannot be kept."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from hipcli.sessions.folder import private_folder

    try:
        path = private_folder(config.cache_dir()) / _HISTORY
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
