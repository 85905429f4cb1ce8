"""K and V of a run of tokens as one file on a disk: written layer by layer, mapped and copied back into a store.

A file is in the safetensors format: k.0, v.0, k.1, … each [KV, n, D] as the store keeps them. Knows tensors and bytes.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash

from hipcli.cache.base import KVStore, StoreShape

_BLOCK_BYTES = 4 << 20
_FORMAT_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float8_e4m3fn: "F8_E4M3"}


@dataclass(frozen=True)
class Written:
    """What lies in a file. checksum: XXH3 of 128 bits over the whole file, hex."""

    size_bytes: int
    checksum: str


def file_bytes(shape: StoreShape, tokens: int) -> int:
    """Size of the file of so many tokens."""
    return len(_header(shape, tokens)) + tokens * shape.bytes_per_token


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Make `path` appear with all that `write` puts into it, on the disk, or leave what was there.

    Readable by its owner alone. Raises OSError.
    """
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(scratch, path)
    except BaseException:
        with suppress(OSError):
            scratch.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Force the names in a folder to the disk, where the system has a handle for folders."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_tokens(path: Path, shape: StoreShape, tokens: int, read: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> Written:
    """Write `tokens` tokens, one layer in memory at a time.

    read: layer → keys and values in host memory, contiguous [KV, n, D]. Raises OSError, and what `read` raises.
    """
    digest, size = xxhash.xxh3_128(), 0

    def parts() -> Iterator[bytes | memoryview]:
        yield _header(shape, tokens)
        for layer in range(shape.layers):
            for tensor in read(layer):
                yield memoryview(tensor.view(torch.uint8).numpy().reshape(-1))

    def write(out: BinaryIO) -> None:
        nonlocal size
        for part in parts():
            digest.update(part)
            out.write(part)
            size += len(part)

    write_whole(path, write)
    return Written(size, digest.hexdigest())


def _header(shape: StoreShape, tokens: int) -> bytes:
    """The first bytes of a file; the same for the same sizes, so that a reader compares and need not parse."""
    size = tokens * shape.bytes_per_token // (2 * shape.layers)
    like = {"dtype": _FORMAT_NAMES[shape.dtype], "shape": [shape.kv_heads, tokens, shape.head_dim]}
    names = [f"{kind}.{layer}" for layer in range(shape.layers) for kind in "kv"]
    table = {name: like | {"data_offsets": [at * size, (at + 1) * size]} for at, name in enumerate(names)}
    text = json.dumps(table, separators=(",", ":")).encode()
    # tensors begin at a multiple of 64 bytes
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text


def file_checksum(path: Path) -> str:
    """The checksum of a whole file, as in Written. Raises OSError."""
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK_BYTES))
    # read, not mapped: pages of a mapping would count as this process's memory
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


class TokenFile:
    """A file of `tokens` tokens, mapped: it stays readable though its name may be removed.

    Raises OSError when it cannot be opened, ValueError when it is not what it should be.
    """

    def __init__(self, path: Path, shape: StoreShape, tokens: int) -> None:
        self.path, self._shape, self._tokens = path, shape, tokens
        self._header = _header(shape, tokens)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != (wanted := file_bytes(shape, tokens)):
                raise ValueError(f"{path.name} has {size:,} bytes instead of {wanted:,}")
            # a private mapping: torch wants memory that it may write to
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if hasattr(self._map, "madvise") and hasattr(mmap, "MADV_SEQUENTIAL"):
            self._map.madvise(mmap.MADV_SEQUENTIAL)

    def require(self, checksum: str) -> None:
        """Raise ValueError unless the file has this checksum and begins as it should."""
        if xxhash.xxh3_128_hexdigest(self._map) != checksum:
            raise ValueError(f"{self.path.name} does not have the content it was written with")
        if self._map[: len(self._header)] != self._header:
            raise ValueError(f"{self.path.name} holds tensors of other sizes")

    def copy_into(self, store: KVStore, start: int) -> None:
        """Copy the tokens to positions `start` on of a store that has the room; they count once they are claimed."""
        shape = (self._shape.kv_heads, self._tokens, self._shape.head_dim)
        count = shape[0] * shape[1] * shape[2]
        at = len(self._header)
        for layer in range(self._shape.layers):
            pair = []
            for _ in "kv":
                pair.append(torch.frombuffer(self._map, dtype=self._shape.dtype, count=count, offset=at).view(shape))
                at += count * self._shape.dtype.itemsize
            store.copy_in(layer, start, *pair)

    def close(self) -> None:
        """Give the mapping back."""
        try:
            self._map.close()
        except BufferError:
            # a tensor of an interrupted copy still looks at it; it goes with that
            pass
