"""Writes chunks of a store to a session's folder behind a running prefill, which never waits for the disk.

What waits to be written is a position and no copy: keys and values stay in the store, so a disk slower than the prefill
costs time after the answer and no memory. Knows files and positions; no text.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from hipcli.cache.base import KVStore
from hipcli.cache.files import write_tokens
from hipcli.devices import side_copy
from hipcli.sessions.manifest import Chunk, Manifest


class ChunkWriter(threading.Thread):
    """A thread that writes [start, stop) after [start, stop) and names each in the manifest once it is on the disk.

    fault: what stopped it, None while all is well. on_end: called by the thread when it is done, however it ends.
    """

    def __init__(self, store: KVStore, folder: Path, manifest: Manifest, digest: Callable[[int], str], on_end: Callable[[], None]) -> None:
        super().__init__(name="session writer", daemon=True)
        self.manifest, self.fault = manifest, None
        self._store, self._folder, self._digest, self._on_end = store, folder, digest, on_end
        self._waiting: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._given_up = False

    def add(self, start: int, stop: int) -> None:
        """Write tokens [start, stop), which the store keeps from now on."""
        self._waiting.put((start, stop))

    def end(self) -> None:
        """Nothing more will come."""
        self._waiting.put(None)

    def give_up(self) -> None:
        """Leave what is not written yet; the chunk at hand is finished."""
        self._given_up = True
        self.end()

    def run(self) -> None:
        try:
            while (span := self._waiting.get()) is not None and not self._given_up:
                self._write(*span)
        except Exception as fault:
            # whatever it is, it must not cost the answer
            self.fault = fault
        finally:
            self._on_end()

    def _write(self, start: int, stop: int) -> None:
        chunk = Chunk(start, stop, 0, "", self._digest(stop))

        def read(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
            with side_copy(self._store.shape.device):
                return self._store.copy_out(layer, start, stop)

        written = write_tokens(self._folder / chunk.name, self._store.shape, stop - start, read)
        chunk = Chunk(start, stop, written.size_bytes, written.checksum, chunk.ids)
        manifest = self.manifest.with_chunks([*self.manifest.chunks, chunk])
        manifest.save(self._folder)
        # only now is it true for who asks how much is on the disk
        self.manifest = manifest
