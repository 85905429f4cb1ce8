"""Chunk scores by binary descent, vectorised over blocks, heads and chunks. Torch, any device; see reference.scan_ref.

Shapes: pickers [KV, NB, P, R, D], where P is 1 (one descent per key/value head) or G (one per query head) and R the
query rows a picker compares with a chunk; starts [KV, NB, C] int64, ascending, those at or past `stop` being padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hipcli.kernels.rope import Rope, rotate, split_pairs
from hipcli.kernels.stages import PrunePlan

NEVER = float("-inf")
SHARED_ROUNDS = 3  # rounds whose probes are the same keys for every query, scored for all blocks in one product
SLICE_BYTES = 24 << 20  # keys gathered at a time


@dataclass(frozen=True)
class Pickers:
    """Query rows as a left and as a right half sees them, [KV, NB, P, R, D].

    slots: keys are rotated to their slot number, and rows and keys keep the pairs of `rotate` side by side.
    """

    left: torch.Tensor
    right: torch.Tensor
    slots: bool


def mean_rows(q: torch.Tensor, size: int) -> torch.Tensor:
    """Means of `size` adjacent rows, the last over those there are: [..., Q, D] -> [..., R, D] fp32."""
    rows = q.shape[-2]
    short = rows % size
    if not short:
        return q.float().unflatten(-2, (rows // size, size)).mean(-2)
    whole = q[..., : rows - short, :].float().unflatten(-2, (rows // size, size)).mean(-2)
    return torch.cat([whole, q[..., rows - short :, :].float().mean(-2, keepdim=True)], dim=-2)


def make_pickers(q, counts, first, index: int, plan: PrunePlan, layer: int, rope: Rope) -> Pickers:
    """q: [KV, NB, G, BQ, D]; counts: [KV, NB] candidates of each block; first: [NB] first positions."""
    rows = mean_rows(q, plan.stages[index].rows_mean)  # [KV, NB, G, R, D]
    distance = plan.scan_distance
    if plan.is_special(layer):
        phases = rope.at(torch.minimum(first, counts + distance))[:, :, None, None]
        left = right = rotate(rows, phases)
    else:
        # a right half sits at position 1: turning the query back by one is the same as turning every key
        left = split_pairs(rotate(rows, rope.one(distance + 1)))
        right = split_pairs(rotate(rows, rope.one(distance)))
    if plan.descent == "group":
        left, right = left.flatten(2, 3)[:, :, None], right.flatten(2, 3)[:, :, None]
    return Pickers(left.to(q.dtype), right.to(q.dtype), plan.is_special(layer))


def gather_rows(x: torch.Tensor, starts: torch.Tensor, length: int) -> torch.Tensor:
    """Rows of `length` adjacent tokens, each starting at a multiple of it, clamped to those there are.

    x: [KV, T, D], starts: [KV, ...] -> [KV, ..., length, D].
    """
    kv, total, dim = x.shape
    whole = total // length
    index = starts.flatten(1)
    # a row cut off by the end of x is read token by token; its missing tokens repeat the last one
    if length == 1 or int(index.max()) // length < whole:
        rows = torch.div(index, length, rounding_mode="floor").clamp_(max=whole - 1)
        source = [x[h, : whole * length].view(whole, length * dim) for h in range(kv)]
    else:
        rows = (index[..., None] + torch.arange(length, device=x.device)).flatten(1).clamp_(max=total - 1)
        source = [x[h] for h in range(kv)]
    out = x.new_empty(kv, rows.shape[1], source[0].shape[1])
    for h in range(kv):
        torch.index_select(source[h], 0, rows[h], out=out[h])
    return out.view(*starts.shape, length, dim)


def product_max(pickers: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Best product over rows: [KV, NB, P, R, D] x [KV, NB, P, N, D] -> [KV, NB, P, N] fp32."""
    return (pickers @ keys.transpose(-1, -2)).amax(-2).float()


def shared_probes(pickers: Pickers, k, plan, stage, first_key: int, count: int, slot: int, rope: Rope, rounds: int):
    """Scores of the probes of the first rounds of `count` chunks that begin at key `first_key`, the same for all blocks.

    Returns a list over rounds of [KV, NB, P, 2^(round+1), C], halves in ascending order.
    """
    kv = k.shape[0]
    blocks, heads = pickers.left.shape[1:3]
    levels = []
    for depth in range(rounds):
        half = stage.chunk_len >> (depth + 1)
        offset = half // 2 if plan.probe == "middle" else 0
        index = torch.arange(count, device=k.device) * stage.chunk_len + first_key + offset
        index = index + torch.arange(2 << depth, device=k.device)[:, None] * half  # [2^(depth+1), C]
        # head by head: selecting from a view of a longer buffer would copy all of it
        keys = gather_rows(k, index.clamp_(max=k.shape[1] - 1).expand(kv, -1, -1), 1).squeeze(-2)  # [KV, 2^(depth+1), C, D]
        if pickers.slots:
            phases = rope.table(slot + count)[slot:]
            keys = rotate(keys, phases)
        scores = []
        for side, rows in ((0, pickers.left), (1, pickers.right)):
            product = rows.flatten(1, 3) @ keys[:, side::2].flatten(1, 2).transpose(-1, -2)
            scores.append(product.view(kv, blocks, heads, -1, 1 << depth, count).amax(3).float())
        levels.append(torch.stack(scores, dim=4).flatten(3, 4))
    return levels


def descend(pickers: Pickers, k, starts, stop, plan, stage, slot: int, rope: Rope, shared=None) -> torch.Tensor:
    """Scores of the chunks at `starts` [KV, NB, C] (the first being candidate number `slot`): [KV, NB, C] fp32."""
    heads, count = pickers.left.shape[2], starts.shape[-1]
    limit = stop[None, :, None, None]  # [1, NB, 1, 1]
    first = starts[:, :, None].expand(-1, -1, heads, -1)  # [KV, NB, P, C]
    node = torch.zeros_like(first)
    phases = rope.table(slot + count)[slot:] if pickers.slots else None
    best, length = torch.full(first.shape, NEVER, device=k.device), stage.chunk_len
    for depth in range(stage.rounds):
        half = length // 2
        offset = half // 2 if plan.probe == "middle" else 0
        if shared is not None and depth < len(shared):
            left = shared[depth].gather(3, 2 * node[:, :, :, None]).squeeze(3)
            right = shared[depth].gather(3, 2 * node[:, :, :, None] + 1).squeeze(3)
        else:
            left = probe(pickers.left, k, first + offset, phases)
            right = probe(pickers.right, k, first + half + offset, phases)
        left = left.masked_fill(first + offset >= limit, NEVER)
        right = right.masked_fill(first + half + offset >= limit, NEVER)
        best = torch.maximum(best, torch.maximum(left, right))
        go = (right > left).long()
        first, node, length = first + half * go, 2 * node + go, half
    rest = rest_scores(pickers.right if plan.score == "last" else pickers.left, k, first, limit, length, phases)
    score = rest if plan.score == "last" else torch.maximum(best, rest)
    return score.amax(2).masked_fill(starts >= stop[None, :, None], NEVER)


def probe(rows, k, index, phases) -> torch.Tensor:
    """Scores of single keys at index [KV, NB, P, C]."""
    keys = gather_rows(k, index.clamp(max=k.shape[1] - 1), 1).squeeze(-2)  # [KV, NB, P, C, D]
    if phases is not None:
        keys = rotate(keys, phases)
    return product_max(rows, keys)


def rest_scores(rows, k, first, limit, length: int, phases) -> torch.Tensor:
    """Best score among the `length` keys from `first` [KV, NB, P, C] on."""
    keys = gather_rows(k, first, length)  # [KV, NB, P, C, length, D]
    if phases is not None:
        keys = rotate(keys, phases[:, None])
    scores = product_max(rows, keys.flatten(3, 4)).unflatten(-1, (-1, length))
    past = first[..., None] + torch.arange(length, device=k.device) >= limit[..., None]
    return scores.masked_fill(past, NEVER).amax(-1)


def scan(q, k, starts, stop, first, index: int, plan: PrunePlan, layer: int, rope: Rope) -> torch.Tensor:
    """Scores that stage `index` gives all candidates of a group of blocks, in slices of bounded memory.

    q: [KV, NB, G, BQ, D]; k: [KV, T, D]; starts: [KV, NB, C]; stop, first: [NB]. Returns [KV, NB, C] fp32, -inf for
    padding.
    """
    stage = plan.stages[index]
    counts = (starts < stop[None, :, None]).sum(-1)
    pickers = make_pickers(q, counts, first, index, plan, layer, rope)
    kv, blocks, heads, _, dim = pickers.left.shape
    per_chunk = kv * blocks * heads * max(2, stage.rest_len) * dim * k.element_size() * (3 if pickers.slots else 1)
    size = max(1, SLICE_BYTES // per_chunk)
    scores = []
    for at in range(0, starts.shape[-1], size):
        part = starts[..., at : at + size]
        probes = None
        # in the first stage every block has the same candidates, one after another
        if index == 0:
            rounds = min(stage.rounds, SHARED_ROUNDS)
            begin = plan.sink_tokens + at * stage.chunk_len
            probes = shared_probes(pickers, k, plan, stage, begin, part.shape[-1], at, rope, rounds)
        scores.append(descend(pickers, k, part, stop, plan, stage, at, rope, probes))
    return torch.cat(scores, dim=-1)
