"""The account of a session: its fields, its chunks, and what they were made of. A flipped byte in it is found.

Knows JSON and digests; no tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hipcli.cache.files import write_whole
from hipcli.sessions.fingerprint import differences, key_of

MANIFEST = "manifest.json"


class Damaged(Exception):
    """A session that cannot be used, and why, as the end of a sentence. fields: that it claims, where they do not make its key."""

    def __init__(self, why: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(why)
        self.fields = fields


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, stop) in one file. ids: digest of all ids up to stop. checksum: of the file."""

    start: int
    stop: int
    size_bytes: int
    checksum: str
    ids: str

    @property
    def name(self) -> str:
        """Of its file; the same chunk has the same name in every session."""
        return f"{self.start:08d}-{self.stop:08d}.safetensors"


@dataclass(frozen=True)
class Manifest:
    """tokens: of the whole prefix. chunk_tokens: length of a whole chunk. chunks: those that are on the disk, without a gap.

    sources: names of the documents. created: seconds since 1970. shape: of the store, for whoever reads the files.
    """

    key: str
    fields: Mapping[str, Any]
    computation: tuple[str, ...]
    tokens: int
    chunk_tokens: int
    model: str
    sources: tuple[str, ...]
    shape: Mapping[str, Any]
    created: float
    chunks: tuple[Chunk, ...] = field(default=())

    @property
    def saved_tokens(self) -> int:
        return self.chunks[-1].stop if self.chunks else 0

    @property
    def complete(self) -> bool:
        return self.saved_tokens == self.tokens

    def with_chunks(self, chunks: Sequence[Chunk]) -> Manifest:
        return replace(self, chunks=tuple(chunks))

    def save(self, folder: Path) -> None:
        """Replace the manifest of a session's folder. Raises OSError."""
        record = asdict(self)
        text = json.dumps({"manifest": record, "checksum": _checksum(record)}, ensure_ascii=False, indent=1)
        write_whole(folder / MANIFEST, lambda out: out.write(text.encode("utf-8", "backslashreplace")))


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a session's folder. Raises Damaged naming what is wrong, FileNotFoundError when there is none."""
    try:
        whole = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        record = whole["manifest"]
        if whole["checksum"] != _checksum(record):
            raise Damaged("its manifest does not have the content it was written with")
        chunks = tuple(Chunk(**chunk) for chunk in record["chunks"])
        lists = {name: tuple(record[name]) for name in ("computation", "sources")}
        manifest = Manifest(**{**record, **lists, "chunks": chunks})
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise Damaged(f"its manifest cannot be read: {fault.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Damaged("its manifest is damaged") from None
    if manifest.key != folder.name or key_of(manifest.fields) != manifest.key:
        raise Damaged("its fields do not belong to its name", manifest.fields)
    if [chunk.start for chunk in manifest.chunks] != [0, *(chunk.stop for chunk in manifest.chunks)][: len(manifest.chunks)]:
        raise Damaged("its manifest has a gap between chunks")
    return manifest


def computed_alike(manifest: Manifest, computation: Mapping[str, Any]) -> bool:
    """Whether a session's keys and values were computed as a run with these fields would."""
    stored = {name: manifest.fields.get(name) for name in manifest.computation}
    return not differences(stored, computation)


def chain(ids: np.ndarray, stops: Sequence[int]) -> Iterator[str]:
    """Digest of all ids up to each stop, ascending; the longest common run of two texts is that of their chains."""
    digest, at = hashlib.sha256(), 0
    for stop in stops:
        digest.update(np.ascontiguousarray(ids[at:stop], dtype="<i4").tobytes())
        at = stop
        yield digest.copy().hexdigest()


def _checksum(record: Any) -> str:
    # what was read back and what was written give the same text
    return xxhash.xxh3_128_hexdigest(json.dumps(json.loads(json.dumps(record)), sort_keys=True).encode("utf-8", "backslashreplace"))
