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

    @abstractmethod
    def claim(self, tokens: int) -> None:
        """Count `tokens` tokens more, which were written to every layer's buffers. Raises ValueError beyond the room."""

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

    @abstractmethod
    def truncate(self, tokens: int) -> None:
        """Keep the first `tokens` tokens of every layer. Raises ValueError when fewer are held."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens held by every layer."""

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes set aside for K and V."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise RuntimeError when layers disagree on their length or exceed their room."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back; the store is empty afterwards."""
