"""Everything in the memory of one device: the simplest store, and the one others are compared with."""

from __future__ import annotations

import torch

from hipcli.cache.base import KVStore, StoreShape


class ResidentStore(KVStore):
    """One [KV, capacity, D] pair of buffers per layer, grown by reserve or by doubling."""

    def __init__(self, shape: StoreShape) -> None:
        super().__init__(shape)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def reserve(self, tokens: int) -> None:
        """As in KVStore. Takes what the new buffers take and one layer's old ones more, never two of every buffer."""
        if tokens <= self._capacity:
            return
        empty = torch.empty(self.shape.kv_heads, 0, self.shape.head_dim, dtype=self.shape.dtype, device=self.shape.device)
        for buffers in (self._keys, self._values):
            buffers.extend([empty] * (self.shape.layers - len(buffers)))
        # layer by layer, K and V together: a failure loses nothing and leaves no layer with one longer than the other.
        # on a GPU the old buffers stay in torch's cache, which it empties by itself before it refuses a new one
        for layer in range(self.shape.layers):
            if self._keys[layer].shape[1] < tokens:
                keys = self._grown(self._keys[layer], self._lengths[layer], tokens)
                self._keys[layer], self._values[layer] = keys, self._grown(self._values[layer], self._lengths[layer], tokens)
        self._capacity = tokens

    def _grown(self, buffer: torch.Tensor, held: int, tokens: int) -> torch.Tensor:
        shape = self.shape
        try:
            fresh = torch.empty(shape.kv_heads, tokens, shape.head_dim, dtype=shape.dtype, device=shape.device)
        except RuntimeError as error:
            raise MemoryError(f"no memory for {tokens} tokens of keys and values") from error
        fresh[:, :held] = buffer[:, :held]
        return fresh

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        start, stop = self._span_of_new(layer, keys, values)
        self._keys[layer][:, start:stop] = keys
        self._values[layer][:, start:stop] = values
        self._lengths[layer] = stop

    def view(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        held = self._lengths[layer]
        keys, values = self.buffers(layer)
        return keys[:, :held], values[:, :held]

    def buffers(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._capacity:
            self.reserve(1)
        return self._keys[layer], self._values[layer]

    def check_integrity(self) -> None:
        if len(set(self._lengths)) != 1:
            raise RuntimeError(f"layers hold different numbers of tokens: {sorted(set(self._lengths))}")
        if self.length > self._capacity:
            raise RuntimeError(f"{self.length} tokens held in room for {self._capacity}")
        if any(buffer.shape[1] < self._capacity for buffer in (*self._keys, *self._values)):
            raise RuntimeError(f"a buffer is shorter than the room for {self._capacity} tokens")

    def close(self) -> None:
        self._keys, self._values = [], []
        self._capacity = 0
        self._lengths = [0] * self.shape.layers
