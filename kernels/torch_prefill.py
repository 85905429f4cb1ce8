"""Block-sparse prefill attention: [sinks][kept][window] of each block on one span of positions. Torch, any device.

See reference.attend_ref. Two parts are computed apart and merged: sinks and kept keys are gathered and rotated per
block; the windows of neighbouring blocks overlap, so their keys are rotated once, at true distances, and read as views.
"""

from __future__ import annotations

import torch

from hipcli.kernels.blocks import Blocks, dense_stop, split_blocks
from hipcli.kernels.rope import Rope, rotate
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.torch_attend import attend, dense_prefill, merge
from hipcli.kernels.torch_prune import Selection, prune
from hipcli.kernels.torch_scan import gather_rows
from hipcli.kernels.torch_state import LayerState

GROUP_BYTES = 24 << 20  # keys and values gathered at a time, which sets the blocks in a group


def prefill(q, k, v, start: int, plan: PrunePlan, layer: int, rope: Rope, dense_below: int, state: LayerState) -> torch.Tensor:
    """Queries start .. start+Q-1 over keys 0 .. start+Q-1.

    q: [H, Q, D]; k, v: [KV, T, D] with T = start + Q, all un-rotated; state: the layer's. Returns [H, Q, D] in q's dtype.
    """
    rows = q.shape[1]
    edge = dense_stop(start, start + rows, plan.block_len, dense_below, plan.window_tokens)
    parts = []
    if edge > start:
        turned = rotate(q[:, : edge - start], rope.table(edge)[start:])
        parts.append(dense_prefill(turned, state.turned_keys(k[:, :edge], rope), v[:, :edge]))
    if edge < start + rows:
        # what follows is sparse: the rotated copy has done its work
        state.turned = None
    for run in split_blocks(edge, start + rows, plan.block_len):
        for group in split_run(run, k, plan, layer):
            rows_of = q[:, group.first - start : group.stop - start]
            parts.append(sparse_part(rows_of, k, v, group, plan, layer, rope))
    return torch.cat(parts, dim=1)


def split_run(run: Blocks, k: torch.Tensor, plan: PrunePlan, layer: int) -> list[Blocks]:
    """Cut a run of equal blocks into groups whose gathered keys and values stay within GROUP_BYTES."""
    per_block = 2 * k.shape[0] * (plan.sink_tokens + plan.keep_tokens(layer)) * k.shape[2] * k.element_size()
    size = max(1, GROUP_BYTES // per_block)
    return [Blocks(run.first + at * run.rows, run.rows, min(size, run.count - at)) for at in range(0, run.count, size)]


def sparse_part(q, k, v, group: Blocks, plan: PrunePlan, layer: int, rope: Rope) -> torch.Tensor:
    """One group of blocks: q [H, NB * BQ, D] -> [H, NB * BQ, D]."""
    kv, dim = k.shape[0], k.shape[2]
    # [H, NB * BQ, D] -> [KV, NB, G, BQ, D]
    packed = q.reshape(kv, -1, group.count, group.rows, dim).transpose(1, 2)
    first = torch.arange(group.count, device=q.device) * group.rows + group.first
    stop = first - plan.window_tokens + 1
    selection = prune(packed, k, first, stop, plan, layer, rope)
    far = far_part(packed, k, v, selection, plan, rope)
    near = near_part(packed, k, v, group, plan, rope)
    o = merge(far, near)[0].view(kv, group.count, -1, group.rows, dim)
    # [KV, NB, G, BQ, D] -> [H, NB * BQ, D]
    return o.transpose(1, 2).reshape(q.shape)


def far_starts(selection: Selection, plan: PrunePlan) -> torch.Tensor:
    """Chunk starts of sinks and kept keys together: [KV, NB, K']."""
    kept = selection.starts
    sinks = torch.arange(0, plan.sink_tokens, plan.stages[-1].chunk_len, device=kept.device)
    return torch.cat([sinks.expand(*kept.shape[:2], -1), kept], dim=-1)


def far_part(q, k, v, selection: Selection, plan: PrunePlan, rope: Rope):
    """Attention over sinks and kept keys: q [KV, NB, G, BQ, D] -> o [KV, NB, G * BQ, D], lse."""
    length, rows = plan.stages[-1].chunk_len, q.shape[3]
    starts = far_starts(selection, plan)
    tokens = (starts[..., None] + torch.arange(length, device=k.device)).flatten(-2)  # [KV, NB, N]
    seen = tokens < selection.stop[None, :, None]
    phases = rope.table(tokens.shape[-1])
    keys = rotate(gather_rows(k, starts, length).flatten(2, 3), phases)  # [KV, NB, N, D]
    values = gather_rows(v, starts, length).flatten(2, 3)
    # the window follows the last kept key without a gap; its last key before the block stands W - 1 further
    base = seen.sum(-1) + plan.window_tokens - 1  # [KV, NB]
    at = base[..., None] + torch.arange(rows, device=k.device)
    turned = rotate(q, rope.at(at)[:, :, None]).flatten(2, 3)
    mask = None
    if not bool(seen.all()):
        mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, float("-inf"))[:, :, None]
    return attend(turned, keys, values, mask)


def near_part(q, k, v, group: Blocks, plan: PrunePlan, rope: Rope):
    """Attention over the window and the block itself: q [KV, NB, G, BQ, D] -> o [KV, NB, G * BQ, D], lse."""
    kv, blocks, heads, rows, dim = q.shape
    before = plan.window_tokens - 1
    begin = group.first - before
    phases = rope.table(before + group.rows * blocks)
    keys = rotate(k[:, begin : group.stop], phases)
    turned = rotate(q, phases[before:].view(blocks, 1, rows, -1)).flatten(2, 3)
    length = before + rows
    # overlapping windows as views: [KV, NB, W - 1 + BQ, D]
    windows = keys.as_strided((kv, blocks, length, dim), (keys.stride(0), rows * dim, dim, 1))
    near = v[:, begin : group.stop]
    values = near.as_strided((kv, blocks, length, dim), (near.stride(0), rows * near.stride(1), near.stride(1), 1))
    hidden = torch.arange(length, device=q.device) > before + torch.arange(rows, device=q.device)[:, None]
    mask = torch.zeros(rows, length, dtype=q.dtype, device=q.device).masked_fill_(hidden, float("-inf"))
    return attend(turned, windows, values, mask.repeat(heads, 1)[None, None])
