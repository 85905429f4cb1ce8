"""From the sources a user names to one document, with what a terminal should hear of it meanwhile.

Knows files, pipes and passwords; no tokens, no models.
"""

from __future__ import annotations

import select
import sys

from hipcli import config
from hipcli.console import Terminal
from hipcli.document import Document
from hipcli.errors import InputError, UsageError
from hipcli.options import RunOptions
from hipcli.page_selection import PageSelection

_STDIN_PATIENCE_S = 2.0


def read(options: RunOptions, terminal: Terminal, hidden: bool = False) -> Document:
    """Read every source into one document; hidden: look for text that nobody sees. Raises InputError."""
    from hipcli.readers import read_document

    if "-" in options.sources:
        _await_stdin(terminal)
    label = "reading " + (options.sources[0] if len(options.sources) == 1 else f"{len(options.sources)} documents")
    with terminal.phase(label, unit="pages") as phase:
        document = read_document(
            options.sources,
            encoding=options.encoding,
            type=options.type,
            password=read_password(options.password_file),
            pages=PageSelection.parse(options.pages) if options.pages else None,
            offline=options.offline or config.offline(),
            hidden=hidden,
            loaders=config.loaders(),
            on_page=phase.to,
            stdin=sys.stdin.buffer if sys.stdin is not None else None,
        )
    if not any(page.text.strip() for page in document.pages):
        raise InputError("the document holds no text to read", "a scan needs its text recognised first: ocrmypdf in.pdf out.pdf")
    for warning in document.warnings:
        terminal.warn(warning)
    return document


def read_password(path: str | None) -> str | None:
    """The first line of a password file; raises UsageError. It is never printed or kept."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            password = file.readline(10_000).rstrip("\r\n")
    except (OSError, ValueError) as fault:
        reason = (fault.strerror or "").lower() if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the password file {path}: {reason}") from None
    if not password:
        raise UsageError(f"the first line of the password file {path} is empty")
    return password


def _await_stdin(terminal: Terminal) -> None:
    """Say what is being waited for when nothing comes, so that a silent pipe does not look like a hang."""
    if sys.stdin is None:
        raise InputError("standard input is closed", "give a file instead of '-'")
    try:
        ready = bool(select.select([sys.stdin], [], [], 0 if sys.stdin.isatty() else _STDIN_PATIENCE_S)[0])
    except (OSError, ValueError):
        # not a thing that can be waited for; reading it will tell
        ready = True
    if not ready:
        terminal.note("reading from standard input … (Ctrl-D ends it)")
