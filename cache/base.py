"""The contract of every KV store: what is appended stays, un-rotated, until it is cut off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StoreShape:
    """Sizes of a store. dtype: that of K and V."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: str = "cpu"

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KVStore(ABC):
    """K and V of one sequence in every layer.

    All layers hold the same tokens between two calls of the model; within a call, layers that have run already hold
    more. Methods raise ValueError on a wrong shape or an impossible length, MemoryError where memory ends.
    """

    def __init__(self, shape: StoreShape) -> None:
        self.shape = shape
        # layers whose keys, and whose values, lie on `shape.device`
        self.device_parts = shape.layers, shape.layers
        self._capacity = 0
        self._lengths = [0] * shape.layers

    @abstractmethod
    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens in all; what is held stays. Raises MemoryError."""

    @abstractmethod
    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Add tokens to one layer. keys, values: [KV, n, D]; copied, the caller may reuse them."""

    @abstractmethod
    def view(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, [KV, T, D] each; valid until the next reserve, append or truncate."""

    @abstractmethod
    def buffers(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The room for keys and values of one layer, [KV, capacity, D] each, held tokens first; valid until the next reserve.

        Whoever writes to the room behind the held tokens says so with `claim`.
        """

    def claim(self, tokens: int) -> None:
        """Count `tokens` tokens more, which were written to every layer's buffers. Raises ValueError beyond the room."""
        if max(self._lengths) + tokens > self._capacity:
            raise ValueError(f"there is room for {self._capacity} tokens, not for {max(self._lengths) + tokens}")
        self._lengths = [length + tokens for length in self._lengths]

    def copy_out(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of held tokens [start, stop) in host memory, contiguous [KV, n, D].

        Another thread may call it while later tokens are appended, as long as these stay.
        """
        keys, values = self.view(layer)
        return keys[:, start:stop].to("cpu").contiguous(), values[:, start:stop].to("cpu").contiguous()

    def copy_in(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put keys, values [KV, n, D] of host memory at positions `start` on, within the room; `claim` makes them count."""
        held_keys, held_values = self.buffers(layer)
        held_keys[:, start : start + keys.shape[1]].copy_(keys)
        held_values[:, start : start + keys.shape[1]].copy_(values)

    def truncate(self, tokens: int) -> None:
        """Keep the first `tokens` tokens of every layer. Raises ValueError when fewer are held."""
        if not 0 <= tokens <= self.length:
            raise ValueError(f"tokens must be within 0..{self.length}, got {tokens}")
        self._lengths = [tokens] * self.shape.layers

    @property
    def length(self) -> int:
        """Tokens held by every layer."""
        return min(self._lengths)

    @property
    def allocated_bytes(self) -> int:
        """Bytes set aside for K and V."""
        return self._capacity * self.shape.bytes_per_token

    @property
    def device_bytes(self) -> int:
        """Bytes set aside on `shape.device`."""
        return self.allocated_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes set aside on the host beside a device."""
        return self.allocated_bytes * (2 * self.shape.layers - sum(self.device_parts)) // (2 * self.shape.layers)

    @property
    def bus_bytes(self) -> int:
        """Bytes copied between host and device so far."""
        return 0

    def far(self, layer: int) -> tuple[bool, bool]:
        """Whether the keys, and whether the values, of a layer lie on the host, from where buffers() are read in place."""
        return False, False

    def scan_room(self, layer: int) -> torch.Tensor | None:
        """Room on the device, [KV, capacity, D], into which `stage_scan` copies the keys of a layer; None where they lie there."""
        return None

    def stage_scan(self, layer: int, tokens: int) -> None:
        """Begin to copy the first `tokens` keys of a layer to its `scan_room`, beside what the device computes."""

    def await_scan(self, layer: int, tokens: int) -> None:
        """Let what the device computes next find the first `tokens` keys of a layer in its `scan_room`."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise RuntimeError when layers disagree on their length or exceed their room."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back; the store is empty afterwards."""

    def _span_of_new(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[int, int]:
        """Where new tokens of a layer go, [start, stop), with room made for them. Raises ValueError on a wrong shape."""
        expected = (self.shape.kv_heads, keys.shape[1], self.shape.head_dim)
        for name, tensor in (("keys", keys), ("values", values)):
            if tuple(tensor.shape) != expected:
                raise ValueError(f"{name} must have shape {expected}, got {tuple(tensor.shape)}")
        start = self._lengths[layer]
        stop = start + keys.shape[1]
        if stop > self._capacity:
            try:
                # as many again where memory allows, so that few appends have to copy
                self.reserve(max(stop, 2 * self._capacity))
            except MemoryError:
                self.reserve(stop)
        return start, stop
