"""One query at a time over a span of keys kept rotated between refreshes. Torch, any device; see reference.decode_ref.

A step that reuses its list reads one contiguous buffer: no gather, no rotation but that of the new token.
"""

from __future__ import annotations

import torch

from hipcli.kernels.rope import Rope, rotate
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.torch_attend import dense_decode
from hipcli.kernels.torch_prefill import far_starts
from hipcli.kernels.torch_prune import Selection, prune
from hipcli.kernels.torch_scan import gather_rows
from hipcli.kernels.torch_state import LayerState


class Span:
    """Keys and values of one layer laid out for decoding: far part (sinks and kept), then near part, which grows.

    keys: [KV, capacity, D] rotated to span positions; values likewise un-rotated; phases: [KV, room, D/2] of the slots
    still free, where padding of the far part, masked out, leaves no gap in the positions. next_position: of the next token.
    """

    def __init__(self, keys, values, phases, next_position: int, mask: torch.Tensor | None) -> None:
        self.keys, self.values, self.phases, self.mask = keys, values, phases, mask
        self.next_position, self.free = next_position, phases.shape[1]

    @property
    def used(self) -> int:
        return self.keys.shape[1] - self.free

    def holds(self, position: int) -> bool:
        """Whether the next token is the one at `position` and there is room for it."""
        return self.next_position == position and self.free > 0

    def append(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Add the newest token, key and value [KV, 1, D]; returns its phases [KV, 1, D/2] for the query."""
        at = self.phases.shape[1] - self.free
        phases, used = self.phases[:, at : at + 1], self.used
        self.keys[:, used : used + 1] = rotate(key, phases)
        self.values[:, used : used + 1] = value
        self.free, self.next_position = self.free - 1, self.next_position + 1
        return phases

    def attend(self, q: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
        """q: [H, 1, D] un-rotated, phases of its position [KV, 1, D/2]. Returns [H, 1, D]."""
        used = self.used
        turned = rotate(q.view(self.keys.shape[0], -1, q.shape[-1]), phases).view(q.shape)
        mask = None if self.mask is None else self.mask[:, :, :, :used]
        return dense_decode(turned, self.keys[:, :used], self.values[:, :used], mask)


def open_span(k, v, far_keys, far_values, seen, near_first: int, room: int, rope: Rope) -> Span:
    """Lay [far][near] into buffers with `room` free slots; near is every key from near_first to the one before last.

    k, v: [KV, T, D]; far_keys, far_values: [KV, N, D] rotated keys; seen: [KV, N] bool, False for padding.
    """
    kv, total, dim = k.shape
    far, near = far_keys.shape[1], total - 1 - near_first
    keys = torch.empty(kv, far + near + room, dim, dtype=k.dtype, device=k.device)
    values = torch.empty_like(keys)
    # positions of near and free slots: right after the last far key that is not padding
    at = torch.arange(near + room, device=k.device) + seen.sum(-1, keepdim=True)
    phases = rope.at(at)
    keys[:, :far], values[:, :far] = far_keys, far_values
    keys[:, far : far + near] = rotate(k[:, near_first : total - 1], phases[:, :near])
    values[:, far : far + near] = v[:, near_first : total - 1]
    mask = None
    if not bool(seen.all()):
        mask = torch.zeros(1, kv, 1, keys.shape[1], dtype=k.dtype, device=k.device)
        mask[0, :, 0, :far].masked_fill_(~seen, float("-inf"))
    return Span(keys, values, phases[:, near:], total - 1, mask)


def sparse_span(k, v, selection: Selection, plan: PrunePlan, room: int, rope: Rope) -> Span:
    """Sinks, kept keys and the window that starts where the selection's middle stops."""
    length, stop = plan.stages[-1].chunk_len, int(selection.stop)
    starts = far_starts(selection, plan)
    tokens = (starts[..., None] + torch.arange(length, device=k.device)).flatten(-2)[:, 0]  # [KV, N]
    seen = tokens < stop
    far_keys = rotate(gather_rows(k, starts, length)[:, 0].flatten(1, 2), rope.table(tokens.shape[-1]))
    far_values = gather_rows(v, starts, length)[:, 0].flatten(1, 2)
    return open_span(k, v, far_keys, far_values, seen, max(0, stop), room, rope)


def decode(q, k, v, plan: PrunePlan, layer: int, rope: Rope, state: LayerState, from_stage: int | None, dense_below: int) -> torch.Tensor:
    """One query at the last position; stages from `from_stage` on are run again, None reuses the list.

    q: [H, 1, D]; k, v: [KV, T, D], all un-rotated. Returns [H, 1, D]. A list is made anew when there is none, or when
    the next token is not the one its span expects.
    """
    position = k.shape[1] - 1
    if position < max(dense_below, plan.window_tokens):
        state.selection = state.span = None
        return dense_decode(rotate(q, rope.one(position)), state.turned_keys(k, rope), v)
    state.turned = None
    plan = plan.decode
    refresh(q, k, v, plan, layer, rope, state, from_stage)
    phases = state.span.append(k[:, position:], v[:, position:])
    return state.span.attend(q, phases)


def refresh(q, k, v, plan: PrunePlan, layer: int, rope: Rope, state: LayerState, from_stage: int | None) -> None:
    """Bring state.span up to date for a sparse step at the last position."""
    position = k.shape[1] - 1
    if state.selection is None or not state.span.holds(position):
        from_stage = 0
    if from_stage is None:
        return
    first = torch.tensor([position], device=k.device)
    stop = first - plan.window_tokens + 1 if from_stage == 0 else state.selection.stop
    packed = q.view(k.shape[0], 1, -1, 1, q.shape[-1])  # [KV, NB=1, G, BQ=1, D]
    after = state.selection if from_stage else None
    state.selection = prune(packed, k, first, stop, plan, layer, rope, after, from_stage)
    # buffers hold until the next full refresh, the longest any span lives
    state.span = sparse_span(k, v, state.selection, plan, plan.stages[0].refresh + 1, rope)
