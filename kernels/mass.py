"""What query rows weigh of all that stands before them, with every key at the same distance. Torch, any device.

Weights at true positions lean to the first keys and the latest, whatever is asked; at one distance content alone decides.
Keys are read as they are stored, un-rotated, a slice at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from hipcli.kernels.rope import Rope, rotate, split_pairs

Plain = Callable[[torch.Tensor, int], torch.Tensor]
MASS_TOKENS = 8  # keys whose mass is one number
SLICE_BYTES = 32 << 20  # weights held at a time, which sets the keys in a slice


def block_mass(
    q: torch.Tensor,
    k: torch.Tensor,
    distance: int,
    rope: Rope,
    groups: Sequence[int],
    plain: Plain = lambda keys, start: keys,
) -> torch.Tensor:
    """Attention on each block of MASS_TOKENS keys, summed over each group of rows.

    q: [H, R, D], un-rotated; k: [KV, T, D]; groups: sizes of groups of rows, in order, R in all; plain: numbers of q's dtype,
    un-rotated, of a slice of k that starts at a position; every query stands `distance` after every key. Returns [groups, H,
    ceil(T / MASS_TOKENS)] fp32; a head's blocks sum to the group's size. Holds 4 * H * R * T / MASS_TOKENS bytes beside SLICE_BYTES.
    """
    (heads, rows, dim), (kv, total, _) = q.shape, k.shape
    # a key at position 0 is only scaled, so the query takes its factor too
    turned = split_pairs(rotate(q.float() * (rope.scaling / math.sqrt(dim)), rope.one(distance)))
    turned = turned.to(q.dtype).reshape(kv, -1, dim)  # [H, R, D] -> [KV, G * R, D]
    length = max(1, SLICE_BYTES // (4 * turned.shape[0] * turned.shape[1] * MASS_TOKENS)) * MASS_TOKENS
    tops, sums = [], []
    for begin in range(0, total, length):
        # [KV, G * R, n]; fp32, because sums over a long context need its bits
        weights = (turned @ plain(k[:, begin : begin + length], begin).transpose(1, 2)).float()
        tops.append(weights.amax(-1, keepdim=True))
        sums.append(_blocks(weights.sub_(tops[-1]).exp_()))
    top = torch.stack(tops).amax(0)
    by_row = torch.cat([part * (own - top).exp() for part, own in zip(sums, tops)], dim=-1)
    by_row = (by_row / by_row.sum(-1, keepdim=True)).view(heads, rows, -1)
    return torch.stack([part.sum(1) for part in by_row.split(list(groups), dim=1)])


def _blocks(weights: torch.Tensor) -> torch.Tensor:
    """[..., n] -> [..., ceil(n / MASS_TOKENS)]"""
    whole = weights.shape[-1] // MASS_TOKENS * MASS_TOKENS
    sums = weights[..., :whole].unflatten(-1, (-1, MASS_TOKENS)).sum(-1)
    return sums if whole == weights.shape[-1] else torch.cat([sums, weights[..., whole:].sum(-1, keepdim=True)], dim=-1)
