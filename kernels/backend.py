"""What every way to attend offers: the interface that hipcli/attention.py drives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from hipcli.kernels.coding import Coding
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan


class Backend(ABC):
    """Attention of one model. q: [H, Q, D]; k, v: [KV, T, D]; queries are the last Q of the T positions."""

    name: str
    in_graphs = False  # whether decode_at exists, which a CUDA graph may capture
    reads_codes = False  # whether k and v may be codes (kernels/coding.py)

    def __init__(self, plan: PrunePlan, rope: Rope, dense_below: int, codings: Sequence[Coding] | None = None) -> None:
        self.plan, self.rope, self.dense_below, self.codings = plan, rope, dense_below, codings
        if codings is not None and not self.reads_codes:
            raise ValueError(f"the backend {self.name} does not read coded keys and values")

    def coding(self, layer: int) -> Coding | None:
        """What the numbers of a layer's k and v stand for; None when they stand for themselves."""
        return None if self.codings is None else self.codings[layer]

    def to_store(self, layer: int, keys: torch.Tensor, values: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a store should keep of new keys and values [KV, n, D] whose first position is `start`: as they are, un-rotated."""
        return keys, values

    def keys_from_store(self, layer: int, keys: torch.Tensor, start: int, dtype: torch.dtype) -> torch.Tensor:
        """What to_store was given, as far as what it gave still tells: [KV, n, D], un-rotated."""
        return keys

    def for_questions(self) -> Backend:
        """The same, by the plan that reads questions; states serve both."""
        return type(self)(self.plan.question, self.rope, self.dense_below, self.codings)

    @abstractmethod
    def new_state(self) -> object:
        """What one layer keeps between calls; needed anew after tokens were cut off."""

    @abstractmethod
    def prefill(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: object) -> torch.Tensor:
        """Many queries; returns [H, Q, D] in q's dtype."""

    @abstractmethod
    def decode(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: object, from_stage: int | None) -> torch.Tensor:
        """One query; stages from `from_stage` on are run again, None reuses the layer's list. Returns [H, 1, D]."""

    @abstractmethod
    def kept_keys(self, layer: int, q: torch.Tensor, k: torch.Tensor, first: int) -> list[torch.Tensor]:
        """Middle keys that pruning leaves one block to read, as indices [n] int64 per key/value head, ascending.

        q: [H, rows, D], the block's rows, its first at position `first`; k: [KV, T, D] with T at least first + rows.
        """

    def decode_at(self, layer, q, new_k, new_v, keys, values, state, from_stage, position, dense=False, far=False) -> torch.Tensor:
        """One query whose position the device knows: no size and no launch depends on it, so the call can be captured.

        q: [H, 1, D]; new_k, new_v: [KV, 1, D], written to keys, values [KV, capacity, D] at position [1] int32. dense:
        attend to every key. far: keys and values lie on the host, and the call reads them from there, as seldom as it can.
        Returns [H, 1, D].
        """
        raise NotImplementedError(f"the {self.name} backend has no decode_at")


def chunk_keys(starts: torch.Tensor, length: int, stop: int) -> list[torch.Tensor]:
    """Keys of chunks: starts [KV, K], ascending, -> [n] int64 per head, without those at or past `stop`, which are padding."""
    keys = (starts.long()[..., None] + torch.arange(length, device=starts.device)).flatten(-2)
    return [row[row < stop] for row in keys]
