"""The least that sparse attention must read and multiply: counts from the plan alone, for one layer and for a whole model.

One layer, one call. Bytes are those of memory, not of caches: what several blocks of queries read in common counts once,
so a prefill's bytes never exceed K and V themselves. Products count 2 flops per multiply-add. With L lists per KV head
(one per query head when each descends alone), R query rows a block and list, C chunks entering a stage, I bytes a number:

    scan       each chunk: two probes a round, then the keys that are left:  n = 2 * rounds + rest_len
               bytes  KV * L * C * n * D * I          flops  2 * KV * L * C * n * R * D      per block
    selection  fp32 scores read once, 32-bit list written once               bytes  4 * KV * L * (C + kept)
    attention  keys = sinks + kept + window:  bytes  2 * KV * keys * D * I   flops  4 * H * rows * keys * D
"""

from __future__ import annotations

from dataclasses import dataclass

from hipcli.bench_ceilings import Ceilings
from hipcli.kernels.stages import PrunePlan


@dataclass(frozen=True)
class Sizes:
    """What the counts depend on. itemsize: bytes of one number of K, V and q."""

    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int

    @property
    def kv_bytes(self) -> int:
        """K and V of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.itemsize


@dataclass(frozen=True)
class Cost:
    """Bytes read or written and floating-point operations, of one part of one call."""

    bytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def floor_ms(self, ceilings: Ceilings) -> float:
        return ceilings.floor_ms(self.bytes, self.flops)


def whole_cost(parts: dict[str, Cost]) -> Cost:
    return sum(parts.values(), Cost())


def stage_chunks(plan: PrunePlan, layer: int, middle: int) -> list[tuple[int, int]]:
    """Per stage, chunks that enter it and chunks it keeps, for a middle of `middle` keys."""
    counts, entering = [], -(-max(0, middle) // plan.stages[0].chunk_len)
    for index, stage in enumerate(plan.stages):
        kept = min(entering, plan.keep_chunks(index, layer))
        counts.append((entering, kept))
        finer = plan.stages[index + 1].chunk_len if index + 1 < len(plan.stages) else stage.chunk_len
        entering = kept * (stage.chunk_len // finer)
    return counts


def sparse_costs(plan: PrunePlan, layer: int, sizes: Sizes, total: int, queries: int, from_stage: int | None = 0) -> dict[str, Cost]:
    """Cost of each part of one layer's call: the last `queries` of `total` positions, one of them in decode.

    from_stage: first stage that runs, None where a decode step reuses its list. Every block counts as one in the middle
    of the chunk, with a full window.
    """
    rows = min(plan.block_len, queries)
    plan = plan.decode if queries == 1 else plan
    blocks = queries / rows
    first = total - queries / 2 if queries > 1 else total - 1
    counts = stage_chunks(plan, layer, int(first) - plan.window_tokens + 1 - plan.sink_tokens)
    lists = sizes.heads if plan.descent == "head" else sizes.kv_heads
    costs: dict[str, Cost] = {}
    chosen = Cost()
    for index in range(len(plan.stages) if from_stage is None else from_stage, len(plan.stages)):
        entering, kept = counts[index]
        if entering > kept:
            costs[f"scan {index + 1}"] = scan_cost(plan, index, sizes, entering, rows, blocks, total)
            chosen += Cost(4.0 * lists * blocks * (entering + kept))
    if chosen.bytes:
        costs["selection"] = chosen
    kept_tokens = counts[-1][1] * plan.stages[-1].chunk_len
    keys = min(first + 1, plan.sink_tokens + kept_tokens + plan.window_tokens + (rows - 1) / 2)
    read = min(blocks * keys, float(total)) * sizes.kv_bytes
    costs["attention"] = Cost(read, 4.0 * sizes.heads * queries * keys * sizes.head_dim)
    return costs


def scan_cost(plan: PrunePlan, index: int, sizes: Sizes, chunks: int, rows: int, blocks: float, total: int) -> Cost:
    """Descent and whole scores of stage number `index`, over `chunks` candidates a block."""
    stage = plan.stages[index]
    alone = plan.descent == "head"
    lists, group = (sizes.heads, 1) if alone else (sizes.kv_heads, sizes.heads // sizes.kv_heads)
    keys = chunks * (2 * stage.rounds + stage.rest_len)
    compared = -(-rows // stage.rows_mean) * group
    # heads of a group that descend alone start from the same probes: in memory no key is read twice
    per_kv = min(float(keys) * (lists // sizes.kv_heads) * blocks, float(total))
    read = sizes.kv_heads * per_kv * sizes.head_dim * sizes.itemsize
    return Cost(read, 2.0 * lists * keys * compared * sizes.head_dim * blocks)


def dense_cost(sizes: Sizes, total: int, queries: int) -> Cost:
    """Causal attention of the last `queries` of `total` positions over every key."""
    keys = total - (queries - 1) / 2
    return Cost(float(total * sizes.kv_bytes), 4.0 * sizes.heads * queries * keys * sizes.head_dim)


def cadence(plan: PrunePlan) -> dict[int | None, int]:
    """How many steps of one refresh cycle start at each stage; None: those that reuse the list."""
    counts: dict[int | None, int] = dict.fromkeys([*range(len(plan.stages)), None], 0)
    for step in range(1, plan.stages[0].refresh + 1):
        counts[plan.refresh_stage(step, 0, 1)] += 1
    return {stage: count for stage, count in counts.items() if count}


def amortised_decode(plan: PrunePlan, layer: int, sizes: Sizes, total: int) -> Cost:
    """Mean cost of one layer's decode step over a refresh cycle."""
    steps = cadence(plan)
    whole = Cost()
    for stage, count in steps.items():
        one = whole_cost(sparse_costs(plan, layer, sizes, total, 1, stage))
        whole += Cost(one.bytes * count, one.flops * count)
    return Cost(whole.bytes / sum(steps.values()), whole.flops / sum(steps.values()))
