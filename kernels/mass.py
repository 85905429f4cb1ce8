"""What query rows weigh of all that stands before them, with every key at the same distance. Torch, any device.

Weights at true positions lean to the first keys and the latest, whatever is asked; at one distance content alone decides.
Keys are read as they are stored, un-rotated, a slice at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from hipcli.kernels.rope import Rope, rotate, split_pairs

Plain = Callable[[torch.Tensor, int], torch.Tensor]
MASS_TOKENS = 8  # keys whose mass is one number
SLICE_BYTES = 32 << 20  # weights held at a time, which sets the keys in a slice


def block_mass(q: torch.Tensor, k: torch.Tensor, distance: int, rope: Rope, plain: Plain = lambda keys, start: keys) -> torch.Tensor:
    """Share of attention on each block of MASS_TOKENS keys, mean over the rows.

    q: [H, R, D], un-rotated; k: [KV, T, D]; plain: numbers of q's dtype, un-rotated, of a slice of k that starts at a position; every query stands
    `distance` after every key. Returns [H, ceil(T / MASS_TOKENS)] fp32; each head's shares sum to 1.
    """
    (heads, rows, dim), (kv, total, _) = q.shape, k.shape
    # a key at position 0 is only scaled, so the query takes its factor too
    turned = split_pairs(rotate(q.float() * (rope.scaling / math.sqrt(dim)), rope.one(distance)))
    turned = turned.to(q.dtype).reshape(kv, -1, dim)  # [H, R, D] -> [KV, G * R, D]
    length = max(1, SLICE_BYTES // (4 * turned.shape[0] * turned.shape[1] * MASS_TOKENS)) * MASS_TOKENS
    slices = [slice(begin, begin + length) for begin in range(0, total, length)]

    def logits(part: slice) -> torch.Tensor:
        # [KV, G * R, n]; fp32, because sums over a long context need its bits
        return (turned @ plain(k[:, part], part.start).transpose(1, 2)).float()

    if len(slices) == 1:
        return _blocks(logits(slices[0]).softmax(-1), heads, rows)
    lse = torch.stack([logits(part).logsumexp(-1) for part in slices]).logsumexp(0)[..., None]
    return torch.cat([_blocks((logits(part) - lse).exp_(), heads, rows) for part in slices], dim=1)


def _blocks(weights: torch.Tensor, heads: int, rows: int) -> torch.Tensor:
    """[KV, G * R, n] -> [H, ceil(n / MASS_TOKENS)], mean over the rows."""
    mean = weights.view(heads, rows, -1).mean(1)
    return F.pad(mean, (0, -mean.shape[-1] % MASS_TOKENS)).unflatten(-1, (-1, MASS_TOKENS)).sum(-1)
