"""Between a run and its session: what was read before is loaded first, what is read now is kept, and both are told.

Knows engines, sessions and the terminal; nothing of how files are laid out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hipcli import config
from hipcli.console import Terminal, duration

if TYPE_CHECKING:
    from pathlib import Path

    from hipcli.document import Document
    from hipcli.engine import Engine
    from hipcli.models import ModelFiles
    from hipcli.options import RunOptions
    from hipcli.sessions import SessionKeeper
    from hipcli.tokens import PromptParts

# saving that takes longer than this is shown
_SILENCE_S = 1.0


def check_choices(options: RunOptions) -> None:
    """Refuse a session's name or a budget that cannot be, before a model is loaded for nothing; raises UsageError."""
    config.cache_budget()
    if options.session is not None:
        from hipcli.sessions.library import require_name

        require_name(options.session)


def make_session(
    document: Document,
    options: RunOptions,
    files: ModelFiles,
    prompt: PromptParts,
    engine: Engine,
    ids: Sequence[int],
    terminal: Terminal,
    cache_dir: Path | None = None,
) -> SessionKeeper:
    """The session of a run; nothing is read or written yet. Raises UsageError for a name that stands for something else.

    cache_dir: where it is kept, None for this user's folder.
    """
    from hipcli.sessions import Library, SessionKeeper
    from hipcli.sessions.fingerprint import fingerprint_of

    return SessionKeeper(
        Library(cache_dir or config.cache_dir(), config.cache_budget()),
        fingerprint_of(document, options, files.path, prompt.prefix_ids, engine, config.cache_dir()),
        ids,
        name=options.session,
        about={"model": files.name, "sources": [source.name for source in document.sources]},
        note=terminal.note,
        warn=terminal.warn,
        check=terminal.check,
    )


def restore(engine: Engine, session: SessionKeeper, tokens: int, terminal: Terminal) -> int:
    """Load what the session has and get ready to keep the rest; the number of tokens loaded.

    tokens: of prefix, question and answer. Raises DoesNotFit.
    """
    # which may put another store in the first one's place
    engine.make_room(tokens)
    match = session.find()
    if match is not None and match.session.manifest.chunk_tokens < engine.chunk_tokens and 2 * match.tokens < session.tokens:
        # its short chunks would slow down what is read anew by more than they save
        match = None
    # what is told of the session must be so, whatever memory is free a moment later
    engine.continue_chunks(match.session.manifest.chunk_tokens if match else engine.chunk_tokens)
    if match is not None:
        with terminal.phase("loading the session", match.tokens, "tokens") as phase:
            session.load(match, engine.store, phase.to)
        terminal.note(f"{session.reused:,} of {session.tokens:,} tokens reused, loaded in {duration(session.load_seconds)}")
    session.follow(match, engine.store, engine.chunk_tokens)
    return session.reused


@contextmanager
def ending(session: SessionKeeper | None, terminal: Terminal) -> Iterator[None]:
    """Wait in the end for what is still being written; cut short, let the chunk at hand arrive."""
    if session is None:
        yield
        return
    try:
        yield
        session.read_whole()
        if not session.wait(_SILENCE_S):
            with terminal.phase("saving the session", session.tokens, "tokens", long=True) as phase:
                while not session.wait(0.2):
                    phase.to(session.saved_tokens)
    finally:
        session.abandon()
