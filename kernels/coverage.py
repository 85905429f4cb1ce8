"""How much of dense attention a block's list caught: exact sums over every key, a slice of keys at a time. Torch, any device.

Dense attention is what the dense backend computes: every key, at true positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hipcli.kernels.rope import Rope, rotate

SLICE_BYTES = 32 << 20  # logits held at a time, which sets the keys in a slice
TOP_KEYS = 64
NEVER = float("-inf")


@dataclass(frozen=True)
class Coverage:
    """Of some query rows, per query head: [H, R] fp32 each, all within 0..1.

    caught: share of the attention mass on sinks, window and kept keys. outside: share that lies in the middle at all.
    outside_caught: share on the kept keys, at most `outside`. top_caught: how many of the row's TOP_KEYS heaviest keys are
    among those read, as a share. outside_top_caught: likewise for the heaviest keys of the middle, 1 where it is empty.
    """

    caught: torch.Tensor
    outside: torch.Tensor
    outside_caught: torch.Tensor
    top_caught: torch.Tensor
    outside_top_caught: torch.Tensor


class HeaviestKeys:
    """The TOP_KEYS largest logits of every row so far, and whether the keys they belong to were read."""

    def __init__(self, kv: int, rows: int, device) -> None:
        self._logits = torch.empty(kv, rows, 0, device=device)
        self._read = torch.empty(kv, rows, 0, dtype=torch.bool, device=device)

    def add(self, logits: torch.Tensor, read: torch.Tensor) -> None:
        """logits: [KV, M, n], -inf where a key does not count; read: [KV, n] bool."""
        logits, at = logits.topk(min(TOP_KEYS, logits.shape[-1]), dim=-1)
        read = read[:, None].expand(-1, at.shape[1], -1).gather(-1, at)
        logits, read = torch.cat([self._logits, logits], -1), torch.cat([self._read, read], -1)
        self._logits, at = logits.topk(min(TOP_KEYS, logits.shape[-1]), dim=-1)
        self._read = read.gather(-1, at)

    def share_read(self) -> torch.Tensor:
        """[KV, M] fp32; 1 where no key counted."""
        counted = self._logits > NEVER
        read, every = (self._read & counted).sum(-1), counted.sum(-1)
        return torch.where(every > 0, read / every.clamp(min=1), 1.0)


def measure(q, k, at: torch.Tensor, kept: list[torch.Tensor], sink_tokens: int, stop: int, rope: Rope) -> Coverage:
    """Hold dense attention of some rows of one block against the keys that the block read.

    q: [H, R, D] rows at positions `at` [R] int64; k: [KV, T, D], T beyond every position; both un-rotated. kept: per
    key/value head the keys read of the middle [sink_tokens, stop), int64.
    """
    kv, dim = k.shape[0], k.shape[2]
    turned = rotate(q.float() / math.sqrt(dim), phases_at(at, rope)).reshape(kv, -1, dim)  # [KV, G * R, D]
    rows, end = turned.shape[1], int(at.max()) + 1
    last = at.repeat(rows // at.numel())[:, None]  # [G * R, 1]
    chosen = chosen_keys(kept, end)
    mass = torch.full((kv, rows, 3), NEVER, device=q.device)
    heaviest, heaviest_outside = HeaviestKeys(kv, rows, q.device), HeaviestKeys(kv, rows, q.device)
    length = max(TOP_KEYS, SLICE_BYTES // (4 * kv * max(rows, dim)))
    for begin in range(0, end, length):
        tokens = torch.arange(begin, min(end, begin + length), device=q.device)
        keys = rotate(k[:, begin : begin + tokens.numel()].float(), phases_at(tokens, rope))
        logits = (turned @ keys.transpose(1, 2)).masked_fill_(tokens > last, NEVER)
        middle, read = (tokens >= sink_tokens) & (tokens < stop), chosen[:, begin : begin + tokens.numel()]
        parts = torch.stack([~middle.expand_as(read), read, middle & ~read], dim=-1)  # [KV, n, 3]: near, kept, left out
        mass = torch.logaddexp(mass, part_masses(logits, parts))
        heaviest.add(logits, ~parts[..., 2])
        heaviest_outside.add(logits.masked_fill_(~middle, NEVER), read)
    _, kept_mass, left = mass.softmax(-1).unbind(-1)
    # 1 - left and not a sum of the rest: exactly 1 when nothing was left out
    shares = (1 - left, kept_mass + left, kept_mass, heaviest.share_read(), heaviest_outside.share_read())
    return Coverage(*(share.reshape(q.shape[:2]) for share in shares))


def part_masses(logits: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
    """Log of the summed weights of each part: logits [KV, M, n], parts [KV, n, P] bool -> [KV, M, P]; -inf where none is."""
    # a row whose every key is -inf must not become NaN
    top = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
    return ((logits - top).exp_() @ parts.to(logits.dtype)).log() + top


def phases_at(positions: torch.Tensor, rope: Rope) -> torch.Tensor:
    """[N] int64 -> [N, D/2] complex64, as in the rope's table; a table as long as the context would stay in memory."""
    angles = positions.float()[:, None] * rope.inv_freq
    return torch.polar(torch.full_like(angles, rope.scaling), angles)


def chosen_keys(kept: list[torch.Tensor], total: int) -> torch.Tensor:
    """Key indices per head as a mask, [KV, total] bool."""
    mask = torch.zeros(len(kept), total, dtype=torch.bool, device=kept[0].device)
    for row, tokens in zip(mask, kept):
        row[tokens] = True
    return mask
