"""One interface over the ways to attend: reference loops, vectorised torch, and dense attention for comparison."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from hipcli.kernels import reference, torch_decode, torch_prefill
from hipcli.kernels.rope import Rope, rotate
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.torch_attend import dense_decode, dense_prefill
from hipcli.kernels.torch_state import LayerState


class Backend(ABC):
    """Attention of one model. q: [H, Q, D]; k, v: [KV, T, D]; queries are the last Q of the T positions."""

    name: str

    def __init__(self, plan: PrunePlan, rope: Rope, dense_below: int) -> None:
        self.plan, self.rope, self.dense_below = plan, rope, dense_below

    def keys_to_store(self, keys: torch.Tensor, start: int) -> torch.Tensor:
        """What a store should keep of new keys [KV, n, D] whose first position is `start`: as they are, un-rotated."""
        return keys

    @abstractmethod
    def new_state(self) -> object:
        """What one layer keeps between calls; needed anew after tokens were cut off."""

    @abstractmethod
    def prefill(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: object) -> torch.Tensor:
        """Many queries; returns [H, Q, D] in q's dtype."""

    @abstractmethod
    def decode(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: object, from_stage: int | None) -> torch.Tensor:
        """One query; stages from `from_stage` on are run again, None reuses the layer's list. Returns [H, 1, D]."""


class TorchBackend(Backend):
    """Vectorised torch, for CPUs and for any device without a kernel of its own."""

    name = "torch"

    def new_state(self) -> LayerState:
        return LayerState()

    def prefill(self, layer, q, k, v, state):
        start = k.shape[1] - q.shape[1]
        return torch_prefill.prefill(q, k, v, start, self.plan, layer, self.rope, self.dense_below, state)

    def decode(self, layer, q, k, v, state, from_stage):
        return torch_decode.decode(q, k, v, self.plan, layer, self.rope, state, from_stage, self.dense_below)


class ReferenceBackend(Backend):
    """The definition itself: slow, exact, for tests and for doubt."""

    name = "reference"

    def new_state(self) -> reference.RefDecodeState:
        return reference.RefDecodeState()

    def prefill(self, layer, q, k, v, state):
        start = k.shape[1] - q.shape[1]
        return reference.prefill_ref(q, k, v, start, self.plan, layer, self.rope, self.dense_below).to(q.dtype)

    def decode(self, layer, q, k, v, state, from_stage):
        position = k.shape[1] - 1
        o = reference.decode_ref(q, k, v, position, self.plan, layer, self.rope, state, from_stage, self.dense_below)
        return o.to(q.dtype)


class DenseBackend(Backend):
    """Every key, at true positions. Stores keys rotated: nothing ever moves them, so a step rotates one token."""

    name = "dense"

    def keys_to_store(self, keys: torch.Tensor, start: int) -> torch.Tensor:
        return rotate(keys, self.rope.table(start + keys.shape[1])[start:])

    def new_state(self) -> None:
        return None

    def prefill(self, layer, q, k, v, state):
        total = k.shape[1]
        return dense_prefill(rotate(q, self.rope.table(total)[total - q.shape[1] :]), k, v)

    def decode(self, layer, q, k, v, state, from_stage):
        return dense_decode(rotate(q, self.rope.one(k.shape[1] - 1)), k, v)


BACKENDS = {backend.name: backend for backend in (TorchBackend, ReferenceBackend, DenseBackend)}
