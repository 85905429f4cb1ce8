"""The ways to attend, by name: Triton kernels, vectorised torch, reference loops, and dense attention for comparison."""

from __future__ import annotations

import torch

from hipcli.kernels import reference, torch_decode, torch_prefill
from hipcli.kernels.backend import Backend, chunk_keys
from hipcli.kernels.rope import rotate, split_pairs
from hipcli.kernels.torch_attend import dense_decode, dense_prefill
from hipcli.kernels.torch_prune import prune
from hipcli.kernels.torch_state import LayerState


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

    def kept_keys(self, layer, q, k, first):
        # [H, BQ, D] -> [KV, NB=1, G, BQ, D]
        packed = q.reshape(k.shape[0], 1, -1, *q.shape[1:])
        firsts, stop = torch.tensor([first], device=q.device), first - self.plan.window_tokens + 1
        selection = prune(packed, k, firsts, torch.full_like(firsts, stop), self.plan, layer, self.rope)
        return chunk_keys(selection.starts[:, 0], self.plan.stages[-1].chunk_len, stop)


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

    def kept_keys(self, layer, q, k, first):
        seen, stop = k[:, : first + q.shape[1]], max(0, first - self.plan.window_tokens + 1)
        return reference.prune_ref(q, seen, first, stop, self.plan, layer, self.rope).kept


class DenseBackend(Backend):
    """Every key, at true positions. Stores keys rotated: nothing ever moves them, so a step rotates one token."""

    name = "dense"

    def to_store(self, layer, keys, values, start):
        return rotate(keys, self.rope.table(start + keys.shape[1])[start:]), values

    def keys_from_store(self, layer, keys, start, dtype):
        turned = torch.view_as_complex(keys.float().unflatten(-1, (-1, 2)))
        # the phases' length is the rope's factor: dividing by them undoes it too
        plain = torch.view_as_real(turned / self.rope.table(start + keys.shape[1])[start:]).flatten(-2)
        return split_pairs(plain).to(keys.dtype)

    def new_state(self) -> None:
        return None

    def prefill(self, layer, q, k, v, state):
        total = k.shape[1]
        return dense_prefill(rotate(q, self.rope.table(total)[total - q.shape[1] :]), k, v)

    def decode(self, layer, q, k, v, state, from_stage):
        return dense_decode(rotate(q, self.rope.one(k.shape[1] - 1)), k, v)

    def kept_keys(self, layer, q, k, first):
        middle = torch.arange(self.plan.sink_tokens, max(self.plan.sink_tokens, first - self.plan.window_tokens + 1), device=q.device)
        return [middle] * k.shape[0]


_HERE = {backend.name: backend for backend in (TorchBackend, ReferenceBackend, DenseBackend)}


def backend_class(name: str) -> type[Backend]:
    """The backend called `name`. Triton is imported only when it is asked for: not every machine has it."""
    if name == "triton":
        from hipcli.kernels.triton_backend import TritonBackend

        return TritonBackend
    return _HERE[name]
