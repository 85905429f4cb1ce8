"""A program of the user's own as a reader: run on a file without a shell, its output is the text, form feeds end pages.

Commands come from the user's file of settings and from nowhere else. Knows nothing of what they run.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from functools import partial

from hipcli.errors import InputError
from hipcli.readers.content import Content, Format, ReadOptions
from hipcli.readers.decode import decode
from hipcli.readers.isolation import SourceLimits
from hipcli.readers.source import RawSource, memory_limit, show
from hipcli.readers.text import text_pages

_MOST_BYTES = 512 << 20
_BLOCK = 1 << 20


def loader_format(command: str, seconds: float | None = None, most_bytes: int = _MOST_BYTES) -> Format:
    """The format of files that `command` reads; "{path}" in it stands for the file. seconds: None for those of any source of its size."""
    # the command is part of the name: another one may give another text
    return Format(f"loader: {command}", "what its loader reads", partial(_read, command, seconds, most_bytes), own_workers=True)


def _read(command: str, seconds: float | None, most_bytes: int, source: RawSource, options: ReadOptions) -> Content:
    limit = SourceLimits().seconds_for(source.size_bytes) if seconds is None else seconds
    with source.on_disk() as path:
        output = _output(command, path, source.name, limit, min(most_bytes, memory_limit()))
    try:
        decoded = decode(output, options.encoding)
    except InputError as fault:
        raise InputError(f"cannot read {source.name}: what its loader, {_program(command)}, printed is no text ({fault.message})") from None
    return Content(text_pages(decoded.text), list(decoded.warnings), decoded.encoding)


def _output(command: str, path: str, name: str, seconds: float, most_bytes: int) -> bytes:
    """What the command prints. It runs in an empty folder, without input, and ends with all that it started."""
    arguments = [part.replace("{path}", path) for part in shlex.split(command)]
    program = _program(command)
    with tempfile.TemporaryDirectory(prefix="hip-") as folder, tempfile.TemporaryFile() as errors:
        try:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
            process = subprocess.Popen(arguments, cwd=folder, start_new_session=True, **streams)
        except OSError as fault:
            why = "is not installed" if isinstance(fault, FileNotFoundError) else f"cannot be run ({(fault.strerror or '').lower()})"
            raise InputError(f"cannot read {name}: its loader, {program}, {why}", "hip config show lists the loaders.") from None
        late = threading.Event()
        alarm = threading.Timer(seconds, lambda: (late.set(), _kill(process)))
        alarm.start()
        try:
            data = bytearray()
            while len(data) <= most_bytes and (block := process.stdout.read(_BLOCK)):
                data += block
            if len(data) > most_bytes:
                raise InputError(f"cannot read {name}: its loader, {program}, printed more than {most_bytes >> 20:,} MiB")
            code = process.wait()
        finally:
            alarm.cancel()
            _kill(process)
            process.wait()
            process.stdout.close()
        if late.is_set():
            raise InputError(f"cannot read {name}: its loader, {program}, took longer than {seconds:,.0f} s and was stopped")
        if code:
            raise InputError(f"cannot read {name}: its loader, {program}, ended with {_status(code)}{_last_line(errors)}")
    return bytes(data)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a loader and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _program(command: str) -> str:
    return show(os.path.basename(shlex.split(command)[0]))


def _status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _last_line(errors) -> str:
    errors.seek(0)
    said = errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
    return f": {show(said[-1][:200])}" if said else ""
