"""From an argument ("-" or a path) to bytes on hand: what is there, may it be read, how large, which digest.

Knows nothing of formats beyond a look at the first bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

from hipcli.errors import DoesNotFit, InputError
from hipcli.readers.sniff import HEAD_BYTES

_BLOCK = 1 << 20


@dataclass(frozen=True)
class RawSource:
    """An input before any reader.

    name: fit to show. path: a regular file that can be opened again; None for a pipe or stdin, whose bytes are in `data`.
    hint: a file suffix, and charset: an encoding, both as a server states them.
    """

    name: str
    path: Path | None
    data: bytes | None
    head: bytes
    size_bytes: int
    sha256: str
    hint: str | None = None
    charset: str | None = None

    @property
    def suffix(self) -> str:
        """What the name, or a server, says of the format: ".pdf"; empty for nothing."""
        return PurePath(self.name).suffix.lower() if self.hint is None else self.hint

    def read(self, cost: int = 1) -> bytes:
        """All bytes. cost: of memory that reading them will take, for each.

        Raises DoesNotFit for what takes more than half of the memory that is free, InputError if the file went away.
        """
        if self.size_bytes * cost > memory_limit():
            raise _too_large(self.name, self.size_bytes, cost=cost)
        if self.data is not None:
            return self.data
        try:
            return self.path.read_bytes()
        except OSError as fault:
            raise _cannot_read(self.name, fault) from None

    def tail(self, count: int) -> bytes:
        """The last `count` bytes. Raises InputError if the file went away."""
        if self.data is not None:
            return self.data[-count:]
        try:
            with open(self.path, "rb") as file:
                file.seek(max(0, self.size_bytes - count))
                return file.read(count)
        except OSError as fault:
            raise _cannot_read(self.name, fault) from None

    @contextmanager
    def on_hand(self) -> Iterator[BinaryIO]:
        """The bytes as an open file that can be searched. Raises InputError if the file went away."""
        if self.data is not None:
            yield io.BytesIO(self.data)
            return
        try:
            file = open(self.path, "rb")
        except OSError as fault:
            raise _cannot_read(self.name, fault) from None
        with file:
            yield file

    @contextmanager
    def on_disk(self) -> Iterator[str]:
        """A path that another process can open; bytes from a pipe are in a private file for as long as it takes."""
        if self.path is not None:
            yield os.fspath(self.path)
            return
        with tempfile.TemporaryDirectory(prefix="hip-") as folder:
            # programs tell a format by the name's end
            suffix = self.suffix if self.suffix[1:].isalnum() and self.suffix.isascii() else ""
            path = os.path.join(folder, f"input{suffix}")
            with open(path, "xb") as file:
                file.write(self.data or b"")
            yield path


def open_source(spec: str, stdin: BinaryIO | None = None) -> RawSource:
    """Look at one argument; "-" reads `stdin`, by default the process's own. Raises InputError or DoesNotFit."""
    source = _from_stdin(stdin) if spec == "-" else _from_path(spec)
    if source.size_bytes == 0:
        raise InputError(f"{source.name} is empty (0 bytes)")
    return source


def from_bytes(name: str, data: bytes) -> RawSource:
    """A source that is in memory already. Raises InputError if it is empty."""
    if not data:
        raise InputError(f"{name} is empty (0 bytes)")
    return RawSource(name, None, data, data[:HEAD_BYTES], len(data), hashlib.sha256(data).hexdigest())


def show(name: str) -> str:
    """`name` with everything that could drive a terminal or mislead an eye written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def memory_limit() -> int:
    """Half of the memory that is free now, in bytes: what one input may take."""
    import psutil

    return psutil.virtual_memory().available // 2


def _from_stdin(stdin: BinaryIO | None) -> RawSource:
    if stdin is None:
        if sys.stdin is None:
            raise InputError("cannot read standard input: it is closed", "Name a file, or pipe a document in.")
        stdin = sys.stdin.buffer
    return _from_stream("standard input", stdin)


def _from_path(spec: str) -> RawSource:
    name, path = show(spec), Path(spec)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"cannot read {name}: it is a folder")
        if stat.S_ISSOCK(mode) or stat.S_ISBLK(mode):
            raise InputError(f"cannot read {name}: it is a socket or a disk, not a file")
        with open(path, "rb") as stream:
            # such a path may mean another file in another process, and be used up by being read
            if not stat.S_ISREG(mode) or os.path.abspath(path).startswith(("/dev/", "/proc/")):
                return _from_stream(name, stream)
            return _from_file(name, path, stream)
    except (OSError, ValueError) as fault:
        raise _cannot_read(name, fault) from None


def _from_file(name: str, path: Path, stream: BinaryIO) -> RawSource:
    digest = hashlib.sha256()
    head = stream.read(HEAD_BYTES)
    size, block = 0, head
    while block:
        size += len(block)
        digest.update(block)
        block = stream.read(_BLOCK)
    return RawSource(name, path.absolute(), None, head, size, digest.hexdigest())


def _from_stream(name: str, stream: BinaryIO) -> RawSource:
    limit = memory_limit()
    data = bytearray()
    try:
        while block := stream.read(_BLOCK):
            data += block
            if len(data) > limit:
                raise _too_large(name, len(data), more=True)
    except (OSError, ValueError) as fault:
        raise _cannot_read(name, fault) from None
    return RawSource(name, None, bytes(data), bytes(data[:HEAD_BYTES]), len(data), hashlib.sha256(data).hexdigest())


def _cannot_read(name: str, fault: Exception) -> InputError:
    if isinstance(fault, FileNotFoundError):
        return InputError(f"no such file: {name}")
    if isinstance(fault, PermissionError):
        return InputError(f"cannot read {name}: permission denied", "Change its permissions, or run as its owner.")
    reason = os.strerror(fault.errno) if isinstance(fault, OSError) and fault.errno else str(fault)
    return InputError(f"cannot read {name}: {reason[:1].lower()}{reason[1:]}")


def _too_large(name: str, size: int, more: bool = False, cost: int = 1) -> DoesNotFit:
    large = f"{'more than ' if more else ''}{size / 1e9:.2f} GB"
    free = f"{memory_limit() * 2 / 1e9:.2f} GB"
    needs = f", which may take {cost} times that to read" if cost > 1 else ""
    return DoesNotFit(
        f"{name} is {large}{needs}, and a document may take half of the {free} of memory that is free",
        "Close other programs, or split the document.",
    )
