"""The definition of pruning and sparse attention: loops a reader can check, plain torch, everything in fp32.

Every other backend is tested against this file. Shapes: q [H, Q, D], k and v [KV, T, D], un-rotated. Sections cited
are those of arXiv 2502.08910; where this product differs on purpose, the comment says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from hipcli.kernels.blocks import split_blocks
from hipcli.kernels.rope import Rope, rotate, split_pairs
from hipcli.kernels.stages import PrunePlan, PruneStage

NEVER = float("-inf")


def turn(x: torch.Tensor, positions: torch.Tensor, rope: Rope) -> torch.Tensor:
    """x: [..., N, D] rotated to positions [N], halves split. Returns fp32."""
    return split_pairs(rotate(x.float(), rope.at(positions)))


def softmax_attention(q, k, v, visible) -> torch.Tensor:
    """q: [G, Q, D], k, v: [N, D], visible: [Q, N] bool. Returns [G, Q, D]."""
    logits = q @ k.transpose(0, 1) / math.sqrt(q.shape[-1])
    return logits.masked_fill(~visible, NEVER).softmax(-1) @ v


def dense_ref(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, rope: Rope) -> torch.Tensor:
    """Causal attention at true positions of queries start .. start+Q-1 over keys 0 .. T-1. Returns [H, Q, D] fp32."""
    group = q.shape[0] // k.shape[0]
    rows = torch.arange(start, start + q.shape[1])
    keys = torch.arange(k.shape[1])
    visible = keys[None, :] <= rows[:, None]
    out = []
    for kv in range(k.shape[0]):
        heads = turn(q[kv * group : (kv + 1) * group], rows, rope)
        out.append(softmax_attention(heads, turn(k[kv], keys, rope), v[kv].float(), visible))
    return torch.cat(out)


def mean_rows(q: torch.Tensor, size: int) -> torch.Tensor:
    """Means of `size` adjacent rows, the last over those there are: [G, Q, D] -> [G, R, D]."""
    return torch.stack([rows.mean(1) for rows in q.float().split(size, dim=1)], dim=1)


def score_chunk(keys, queries, first, stop, stage: PruneStage, plan: PrunePlan) -> float:
    """Descend into the chunk that starts at key `first` and return its score.

    keys: side -> [T, D], the keys as a left (0) or right (1) half sees them. queries: [R, D] of one picker.
    Halves are nominal, so probe positions never depend on the query; a probe at or past `stop` scores -inf.
    """

    def score(side: int, index: int) -> float:
        return float((queries @ keys[side][index]).max()) if index < stop else NEVER

    best, length = NEVER, stage.chunk_len
    for _ in range(stage.rounds):
        half = length // 2
        offset = half // 2 if plan.probe == "middle" else 0
        left, right = score(0, first + offset), score(1, first + half + offset)
        best = max(best, left, right)
        # ties go to the lower index
        first, length = (first + half if right > left else first), half
    # the paper scores its representative as the right branch would (appendix D)
    side = 1 if plan.score == "last" else 0
    rest = max(score(side, first + i) for i in range(length))
    return rest if plan.score == "last" else max(best, rest)


def scan_ref(q, k, starts: list[int], stop: int, index: int, plan: PrunePlan, layer: int, first: int, rope: Rope):
    """Scores that stage `index` gives the chunks at `starts`, for one key/value head: list of floats (section 3.1, algorithm 3).

    q: [G, Q, D] of one block, k: [T, D]. Relative positions: query at W'+1, left half 0, right half 1; in the special
    layers chunk-indexed ones: every key of the c-th candidate at c, the query at min(first, C + W') (section 3.3).
    """
    stage = plan.stages[index]
    rows = mean_rows(q, stage.rows_mean)  # [G, R, D]
    distance = plan.scan_distance
    special = plan.is_special(layer)
    at = min(first, len(starts) + distance) if special else distance + 1
    rows = turn(rows, torch.full((rows.shape[1],), at), rope)
    pickers = rows.flatten(0, 1)[None] if plan.descent == "group" else rows
    scores = []
    for slot, begin in enumerate(starts):
        sides = (slot, slot) if special else (0, 1)
        window = slice(begin, min(begin + stage.chunk_len, k.shape[0]))
        seen = {}
        for side, position in enumerate(sides):
            moved = torch.zeros_like(k, dtype=torch.float32)
            moved[window] = turn(k[window], torch.full((window.stop - window.start,), position), rope)
            seen[side] = moved
        scores.append(max(score_chunk(seen, picker, begin, stop, stage, plan) for picker in pickers))
    return scores


def keep_best(starts: list[int], scores: list[float], count: int) -> list[int]:
    """The `count` chunks of highest score, ascending; ties go to the lower index."""
    order = sorted(range(len(starts)), key=lambda i: (-scores[i], i))[:count]
    return [starts[i] for i in sorted(order)]


def split_chunks(starts: list[int], coarse_len: int, fine_len: int, stop: int) -> list[int]:
    """Starts of the finer chunks of kept coarse ones, leaving out those past the middle."""
    fine = [begin + i for begin in starts for i in range(0, coarse_len, fine_len)]
    return [begin for begin in fine if begin < stop]


@dataclass
class RefSelection:
    """Per key/value head: `inputs[kv][s]` are the chunk starts that entered stage s, `kept[kv]` the key indices left."""

    stop: int
    inputs: list[list[list[int]]] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)


def prune_ref(
    q, k, first: int, stop: int, plan: PrunePlan, layer: int, rope: Rope, after: RefSelection | None = None, from_stage: int = 0
) -> RefSelection:
    """Select the middle keys of one block whose first query is at `first`; the middle is [S, stop).

    q: [H, Q, D] of the block. With `after`, stages before from_stage are taken from it (decode, section 3.2).
    """
    heads, group = k.shape[0], q.shape[0] // k.shape[0]
    coarse = plan.stages[0].chunk_len
    fresh = list(range(plan.sink_tokens, stop, coarse))
    inputs = [list(after.inputs[kv][: from_stage + 1]) if after else [fresh] for kv in range(heads)]
    for index in range(from_stage, len(plan.stages)):
        stage = plan.stages[index]
        scores = [
            scan_ref(q[kv * group : (kv + 1) * group], k[kv], inputs[kv][index], stop, index, plan, layer, first, rope)
            for kv in range(heads)
        ]
        if plan.share == "all":
            scores = [[max(column) for column in zip(*scores)]] * heads
        finer = plan.stages[index + 1].chunk_len if index + 1 < len(plan.stages) else 1
        for kv in range(heads):
            best = keep_best(inputs[kv][index], scores[kv], plan.keep_chunks(index, layer))
            inputs[kv].append(split_chunks(best, stage.chunk_len, finer, stop))
    return RefSelection(stop, [rows[:-1] for rows in inputs], [torch.tensor(rows[-1], dtype=torch.int64) for rows in inputs])


def attend_ref(q, k, v, first: int, window_start: int, kept: list[torch.Tensor], plan: PrunePlan, rope: Rope) -> torch.Tensor:
    """Attention of one block over [sinks][kept][window], laid on one span of positions from 0 (section 3.3).

    q: [H, Q, D]. No angle grows with T. Returns [H, Q, D] fp32.
    """
    group, rows = q.shape[0] // k.shape[0], torch.arange(first, first + q.shape[1])
    sinks = torch.arange(min(plan.sink_tokens, window_start))
    window = torch.arange(window_start, first + q.shape[1])
    out = []
    for kv in range(k.shape[0]):
        index = torch.cat([sinks, kept[kv], window])
        shift = index.numel() - window.numel() - window_start
        span = torch.arange(index.numel())
        heads = turn(q[kv * group : (kv + 1) * group], rows + shift, rope)
        visible = index[None, :] <= rows[:, None]
        out.append(softmax_attention(heads, turn(k[kv][index], span, rope), v[kv][index].float(), visible))
    return torch.cat(out)


def prefill_ref(q, k, v, start: int, plan: PrunePlan, layer: int, rope: Rope, dense_below: int = 0) -> torch.Tensor:
    """Queries start .. start+Q-1 over keys 0 .. start+Q-1, block by block. Returns [H, Q, D] fp32."""
    out = []
    for run in split_blocks(start, start + q.shape[1], plan.block_len):
        for first in range(run.first, run.stop, run.rows):
            rows = q[:, first - start : first - start + run.rows]
            seen = slice(0, first + run.rows)
            if first + run.rows - 1 < dense_below:
                out.append(dense_ref(rows, k[:, seen], v[:, seen], first, rope))
                continue
            stop = max(0, first - plan.window_tokens + 1)
            selection = prune_ref(rows, k[:, seen], first, stop, plan, layer, rope)
            out.append(attend_ref(rows, k[:, seen], v[:, seen], first, stop, selection.kept, plan, rope))
    return torch.cat(out, dim=1)


@dataclass
class RefDecodeState:
    """What one layer keeps between decode steps; `selection` is None before the first sparse step."""

    selection: RefSelection | None = None


def decode_ref(
    q, k, v, position: int, plan: PrunePlan, layer: int, rope: Rope, state: RefDecodeState, from_stage: int | None, dense_below: int = 0
):
    """One query at `position`; stages from `from_stage` on are run again, None reuses the list. Returns [H, 1, D].

    The window starts where it started at the last full refresh, so no key is lost between two refreshes.
    """
    if position < dense_below:
        state.selection = None
        return dense_ref(q, k, v, position, rope)
    plan = plan.decode
    if state.selection is None:
        from_stage = 0
    if from_stage == 0:
        stop = max(0, position - plan.window_tokens + 1)
        state.selection = prune_ref(q, k, position, stop, plan, layer, rope)
    elif from_stage is not None:
        state.selection = prune_ref(q, k, position, state.selection.stop, plan, layer, rope, state.selection, from_stage)
    return attend_ref(q, k, v, position, state.selection.stop, state.selection.kept, plan, rope)
