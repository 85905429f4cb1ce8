"""A ZIP file that may be hostile: counted, capped, never unpacked to disk. Knows nothing of what its members mean."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from hipcli.errors import InputError
from hipcli.readers.source import RawSource, show

MAX_ENTRIES = 20_000
MAX_INFLATED_BYTES = 1 << 30  # of all members that are read, together
BOOK_BYTES = 256 << 20  # of the parts of a book or a Word document that are read
MAX_RATIO = 200  # of a member's size to its packed size, once it is large enough to matter
_RATIO_FROM_BYTES = 16 << 20
_DIRECTORY_BYTES = MAX_ENTRIES * 512
_BLOCK = 1 << 18
_TAIL_BYTES = (1 << 16) + 22 + 76


class TooMuch(InputError):
    """A ZIP file unpacks to more than is allowed: all of it is refused, not one member."""


class Container:
    """The members of an open ZIP file by name."""

    def __init__(self, archive: zipfile.ZipFile, name: str, most_bytes: int) -> None:
        self._archive = archive
        self._most = most_bytes
        self._name = name
        self._left = most_bytes
        self.infos = [info for info in archive.infolist() if not info.is_dir()]
        self.members = {info.filename: info for info in self.infos}

    def __contains__(self, member: str) -> bool:
        return member in self.members

    def read(self, member: str) -> bytes:
        """The bytes of a member by name; raises InputError as `read_info` does, and if there is none of that name."""
        if member not in self.members:
            raise InputError(f"cannot read {self._name}: {show(member)} is missing in it")
        return self.read_info(self.members[member])

    def read_info(self, info: zipfile.ZipInfo) -> bytes:
        """The bytes of a member, counted as they come. Raises InputError for damage, encryption, and more than the caps allow."""
        data = bytearray()
        for block in self._blocks(info):
            data += block
            self._left -= len(block)
            self._check(info, len(data))
        return bytes(data)

    def head(self, info: zipfile.ZipInfo, count: int) -> bytes:
        """The first bytes of a member; raises InputError for damage and encryption."""
        return next(self._blocks(info, count), b"")

    def _blocks(self, info: zipfile.ZipInfo, size: int = _BLOCK) -> Iterator[bytes]:
        member = show(info.filename)
        if info.flag_bits & 1:
            raise InputError(f"cannot read {self._name}: {member} in it is encrypted", "Unpack it first, and read what comes out.")
        try:
            with self._archive.open(info) as stream:
                while block := stream.read(size):
                    yield block
        except (InputError, GeneratorExit):
            raise
        except Exception as fault:  # each way of packing has its own exceptions
            reason = show((str(fault) or type(fault).__name__)[:200])
            raise InputError(f"cannot read {self._name}: {member} in it is damaged ({reason})") from None

    def _check(self, info: zipfile.ZipInfo, read: int) -> None:
        if self._left < 0:
            raise TooMuch(
                f"cannot read {self._name}: it unpacks to more than {self._most >> 20:,} MiB", "Unpack it, and name the files you need."
            )
        if read > _RATIO_FROM_BYTES and read > MAX_RATIO * max(1, info.compress_size):
            raise TooMuch(
                f"cannot read {self._name}: {show(info.filename)} in it unpacks to more than {MAX_RATIO} times its size, as a zip bomb does",
                "If you trust it: unpack it, and name the files you need.",
            )


@contextmanager
def open_container(source: RawSource, most_bytes: int | None = None) -> Iterator[Container]:
    """Open a source as a ZIP file; members that are read may have `most_bytes` together, MAX_INFLATED_BYTES by default.

    Raises InputError if it is none, is damaged, or lists too many members.
    """
    if _directory_bytes(source) > _DIRECTORY_BYTES:
        raise _too_many(source)
    with source.on_hand() as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as fault:  # zipfile raises nearly anything on broken structure
            reason = show(str(fault)[:200]) or type(fault).__name__
            raise InputError(f"cannot read {source.name}: it is damaged or cut off ({reason})", "Download or copy it again.") from None
        with archive:
            if len(archive.infolist()) > MAX_ENTRIES:
                raise _too_many(source)
            yield Container(archive, source.name, most_bytes or MAX_INFLATED_BYTES)


def member_names(source: RawSource) -> frozenset[str]:
    """Names of the members, nothing for a file that is no readable ZIP file."""
    if not source.head.startswith(b"PK\x03\x04"):
        return frozenset()
    try:
        with open_container(source) as container:
            return frozenset(container.members)
    except InputError:
        return frozenset()


def require_whole(source: RawSource) -> None:
    """Raise InputError for a ZIP file that cannot be opened; other files pass."""
    if source.head.startswith(b"PK\x03\x04"):
        with open_container(source):
            pass


def _directory_bytes(source: RawSource) -> int:
    """The size of the list of members as the file's end tells it: it is read whole when the file is opened."""
    tail = source.tail(_TAIL_BYTES)
    sizes = [0]
    for signature, offset, form in ((b"PK\x05\x06", 12, "<L"), (b"PK\x06\x06", 40, "<Q")):
        at = tail.rfind(signature)
        field = tail[at + offset : at + offset + struct.calcsize(form)] if at >= 0 else b""
        if len(field) == struct.calcsize(form):
            sizes.append(struct.unpack(form, field)[0])
    return max(size for size in sizes if size != 0xFFFFFFFF)


def _too_many(source: RawSource) -> InputError:
    return InputError(f"cannot read {source.name}: it lists more than {MAX_ENTRIES:,} files", "Unpack it, and name the files you need.")
