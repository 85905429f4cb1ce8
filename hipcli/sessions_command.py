"""`hip sessions`: list, show, verify and remove what was kept of earlier readings, and the command line for it.

Knows nothing of how sessions are made.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from hipcli import config
from hipcli.command_options import GivenOnce
from hipcli.option_types import DryRun, Json, MaxSize, OlderThan, Quiet, Yes
from hipcli.console import Terminal, amount, duration, visible, write_json, write_stdout
from hipcli.errors import DiskError, UsageError

if TYPE_CHECKING:
    from hipcli.sessions import Library, Session

sessions_app = typer.Typer(
    help="List, check and remove what was kept of documents that were read.",
    epilog="Example:  hip sessions ls",
    rich_markup_mode=None,
    no_args_is_help=True,
)
_Wanted = Annotated[str, typer.Argument(metavar="SESSION", help="A name, a key or its beginning, as `hip sessions ls` shows them.")]
_Several = Annotated[
    Optional[list[str]], typer.Argument(metavar="[SESSION...]", help="Names, keys or beginnings of keys.", show_default=False)
]
_All = Annotated[bool, typer.Option("--all", help="Every session, named ones too.")]


@sessions_app.command("ls", epilog="Example:  hip sessions ls --json")
def _ls(as_json: Json = False) -> Callable[[], None]:
    """List sessions, last used first."""
    return lambda: list_(Terminal(as_json=as_json))


@sessions_app.command("show", epilog="Example:  hip sessions show 3f0c")
def _show(session: _Wanted, as_json: Json = False) -> Callable[[], None]:
    """Show what one session holds and what it was made of."""
    return lambda: show(session, Terminal(as_json=as_json))


@sessions_app.command("verify", epilog="Example:  hip sessions verify")
def _verify(session: _Several = None, as_json: Json = False, quiet: Quiet = False) -> Callable[[], int]:
    """Read sessions wholly and hold every byte against its checksum; exits with 1 when one is damaged."""
    return lambda: verify(session or [], Terminal(quiet=quiet, as_json=as_json))


@sessions_app.command("rm", epilog="Example:  hip sessions rm 3f0c")
def _rm(session: _Several = None, all: _All = False, yes: Yes = False, as_json: Json = False, quiet: Quiet = False) -> Callable[[], None]:
    """Remove sessions."""
    return lambda: remove(session or [], all, yes, Terminal(quiet=quiet, as_json=as_json))


@sessions_app.command("prune", cls=GivenOnce, epilog="Example:  hip sessions prune --max-size 20GB --dry-run")
def _prune(
    max_size: MaxSize = None,
    older_than: OlderThan = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> Callable[[], None]:
    """Remove the sessions that were used least recently; those with a name stay."""
    return lambda: prune(max_size, older_than, dry_run, yes, Terminal(quiet=quiet, as_json=as_json))


@sessions_app.command("path", epilog="Example:  hip sessions path")
def _path(as_json: Json = False) -> Callable[[], None]:
    """Print the folder that holds all sessions."""
    return lambda: path(Terminal(as_json=as_json))


def _library() -> "Library":
    from hipcli.sessions import Library

    return Library(config.cache_dir(), config.cache_budget())


def list_(terminal: Terminal) -> None:
    """Print every session and what all take together."""
    from hipcli.sessions.folder import total_bytes

    library = _library()
    found = library.sessions()
    if terminal.as_json:
        totals = {"size_bytes": total_bytes(found), "budget_bytes": library.budget_bytes, "strays": _stray_records(library)}
        write_json({"schema_version": 1, "sessions": [_record(session) for session in found], **totals})
    elif not found:
        terminal.note("no sessions yet: one is made of every document that is read for a question or a summary")
    else:
        for session in found:
            write_stdout(visible(_line(session)) + "\n")
        terminal.note(f"{amount(total_bytes(found), 'bytes')} of {amount(library.budget_bytes, 'bytes')}")
    _tell_strays(library, terminal)


def _stray_records(library: "Library") -> list[dict[str, Any]]:
    from hipcli.sessions.folder import tree_bytes

    return [{"path": str(path), "size_bytes": tree_bytes(path)} for path in library.strays()]


def _tell_strays(library: "Library", terminal: Terminal) -> None:
    """What lies among the sessions and is none: hip removes only what it made."""
    for stray in _stray_records(library) if not terminal.as_json else []:
        what = "remains of a removal, for prune to clear" if stray["path"].endswith(".gone") else "no session, and left as it is"
        terminal.note(f"{what}: {stray['path']} ({amount(stray['size_bytes'], 'bytes')})")


def _line(session: "Session") -> str:
    used = f"{duration(max(0.0, time.time() - session.used))} ago"
    head = f"{session.key}  {amount(session.size_bytes, 'bytes'):>9}  {used:>16}"
    if session.manifest is None:
        return f"{head}  damaged: {session.fault}"
    held = session.manifest
    tokens = f"{held.tokens:,} tokens" if held.complete else f"{held.saved_tokens:,} of {held.tokens:,} tokens"
    name = f"{', '.join(session.names)}: " if session.names else ""
    return f"{head}  {tokens:>16}  {name}{', '.join(held.sources)} ({held.model})"


def show(wanted: str, terminal: Terminal) -> None:
    """Print one session's account; raises UsageError when there is none."""
    session = _library().find(wanted)
    if terminal.as_json:
        write_json({"schema_version": 1, **_record(session), "fields": dict(session.manifest.fields) if session.manifest else None})
        return
    lines = [_line(session), f"  folder  {session.folder}"]
    if session.manifest:
        lines += [f"  chunks  {len(session.manifest.chunks)}", "  made of"]
        lines += [f"    {name}: {_plain(value)}" for name, value in session.manifest.fields.items()]
    write_stdout(visible("\n".join(lines)) + "\n")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def verify(wanted: list[str], terminal: Terminal) -> int:
    """Read sessions (all, when none is named) wholly; the exit code."""
    from hipcli.sessions.folder import damage

    library = _library()
    sessions = [library.find(name) for name in wanted] or library.sessions()
    rows = []
    with terminal.phase("verifying", sum(session.size_bytes for session in sessions), "bytes") as phase:
        for session in sessions:
            rows.append((session, damage(session)))
            phase.advance(session.size_bytes)
    if terminal.as_json:
        write_json({"schema_version": 1, "sessions": [{"key": session.key, "damage": fault} for session, fault in rows]})
    else:
        for session, fault in rows:
            write_stdout(visible(f"{session.key}  {f'damaged: {fault}' if fault else 'ok'}") + "\n")
        if not rows:
            terminal.note("no sessions yet")
        if any(fault for _, fault in rows):
            terminal.note("what is damaged is read again by itself when it is needed; hip sessions rm removes it")
    return int(any(fault for _, fault in rows))


def remove(wanted: list[str], all: bool, yes: bool, terminal: Terminal) -> None:
    """Remove sessions that are named, or all; raises UsageError, DiskError."""
    library = _library()
    if bool(wanted) == all:
        raise UsageError("name the sessions to remove, or say --all", "hip sessions ls")
    going = library.sessions() if all else [library.find(name) for name in dict.fromkeys(wanted)]
    if all:
        _confirm(f"remove all {amount(len(going), 'sessions')}?", yes or not going)
    _remove(library, going, False, terminal)


def prune(max_size: str | None, older_than: str | None, dry_run: bool, yes: bool, terminal: Terminal) -> None:
    """Remove sessions beyond a size or an age, without either beyond the budget; raises UsageError, DiskError."""
    library = _library()
    limit = config.parse_size(max_size, "--max-size") if max_size else None
    oldest = time.time() - config.parse_age(older_than, "--older-than") if older_than else None
    if limit is None and oldest is None:
        limit = library.budget_bytes
    aged = [session for session in library.sessions() if oldest is not None and session.used < oldest and not session.names]
    going = {session.key: session for session in aged}
    if limit is not None:
        # those that are too old are gone first
        going |= {session.key: session for session in library.expendable(limit, without=going)}
    if not dry_run:
        library.sweep()
        _confirm(f"remove {amount(len(going), 'sessions')}?", yes or not going)
    _remove(library, list(going.values()), dry_run, terminal)
    _tell_strays(library, terminal)


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("this removes sessions and nobody can be asked", "say --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was removed")


def _remove(library: "Library", going: list["Session"], dry_run: bool, terminal: Terminal) -> None:
    """Remove and tell; a session that is being written stays."""
    from hipcli.sessions.folder import total_bytes

    before, busy, gone = total_bytes(library.sessions()), [], []
    for session in going:
        try:
            (gone if dry_run or library.remove(session) else busy).append(session)
        except OSError as fault:
            raise DiskError(f"cannot remove the session {session.key}: {fault.strerror}") from fault
    left = [session for session in library.sessions() if session.key not in {other.key for other in gone}]
    freed = before - total_bytes(left)
    if terminal.as_json:
        keys = {"removed": [session.key for session in gone], "in_use": [session.key for session in busy]}
        write_json({"schema_version": 1, **keys, "freed_bytes": freed, "dry_run": dry_run})
        return
    for session in gone:
        terminal.note(f"{'would remove' if dry_run else 'removed'} {_line(session)}" if dry_run else f"removed {session.key}")
    for session in busy:
        terminal.note(f"{session.key} stays: another hip is writing it")
    terminal.note(f"{amount(len(gone), 'sessions')}, {amount(freed, 'bytes')} {'would be freed' if dry_run else 'freed'}")


def path(terminal: Terminal) -> None:
    """Print the folder of all sessions."""
    folder = _library().root
    if terminal.as_json:
        write_json({"schema_version": 1, "path": str(folder)})
    else:
        write_stdout(f"{folder}\n")


def _record(session: "Session") -> dict[str, Any]:
    held = session.manifest
    return {
        "key": session.key,
        "names": list(session.names),
        "damage": session.fault,
        "size_bytes": session.size_bytes,
        "used": round(session.used, 3),
        "created": held and round(held.created, 3),
        "model": held and held.model,
        "sources": held and list(held.sources),
        "tokens": held and held.tokens,
        "saved_tokens": held and held.saved_tokens,
        "chunk_tokens": held and held.chunk_tokens,
        "complete": held and held.complete,
    }
