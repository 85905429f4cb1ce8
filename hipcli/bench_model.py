"""The whole model at a given context: prefill, first token, decode steps, memory, and how near it all is to the machine's ceilings.

A prefill that would take too long is sampled: chunks are timed at several places of a context filled with noise (their
time depends on how many keys there are, not on what they hold) and integrated over the whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from hipcli.bench_ceilings import Ceilings
from hipcli.bench_decode import decode_fields, use_fastest_dense
from hipcli.bench_layer import sizes_of
from hipcli.bench_shares import OperationClock
from hipcli.bench_timing import NoTimeLeft, is_cuda
from hipcli.bench_work import prefill_flops
from hipcli.devices import settle
from hipcli.engine import Engine
from hipcli.model import LoadedModel
from hipcli.placement import does_not_fit, keys_read
from hipcli.settings import AttentionSettings, KvSettings

ROOM_TOKENS = 256  # question and answer of the decode measurement
FILL_TOKENS = 1 << 16  # noise made at a time
DENSE_CHUNK_TOKENS = 8192  # longer ones are no faster, and sampling them takes minutes


@dataclass(frozen=True)
class Limits:
    """deadline: when to be done, by time.monotonic. whole: prefill whole contexts all the same."""

    deadline: float
    whole: bool

    @property
    def left_seconds(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


def model_row(
    model: LoadedModel, context: int, mode: str, preset: str, kv: KvSettings, limits: Limits, ceilings: Ceilings
) -> dict[str, Any]:
    """Measure one mode at one context. Raises DoesNotFit or NoTimeLeft before it starts, naming the need."""
    chunk = DENSE_CHUNK_TOKENS if mode == "dense" and is_cuda(model.device) else None
    engine = Engine(model, AttentionSettings(mode=mode, preset=preset), chunk_tokens=chunk, kv=kv)
    plan = engine.plan(context + ROOM_TOKENS)
    if not plan.fits:
        raise does_not_fit(plan)
    engine.make_room(context + ROOM_TOKENS)
    require_time(engine, context, limits, ceilings)
    try:
        watch = MemoryWatch(model.device)
        row: dict[str, Any] = {"row": "model", "context": context, "mode": mode, "model": model.name, "dtype": model.dtype_name}
        row |= {"kv": "host" if plan.on_host else "device", "kv_dtype": engine.kv_dtype}
        row |= {"device_key_layers": plan.device_parts[0], "device_value_layers": plan.device_parts[1]}
        if mode == "dense" and is_cuda(model.device):
            row |= use_fastest_dense(engine, context)
        warm_up(engine, context)
        row |= {"backend": engine.runtime.backend.name, "chunk_tokens": engine.chunk_tokens}
        row |= prefill_fields(engine, context, plan.seconds, limits, watch)
        watch.look()
        flops = prefill_flops(model, engine.runtime.backend, sizes_of(model), context)
        rate = flops / row["prefill_seconds"]
        row |= {"prefill_flops_per_second": rate, "prefill_share_of_matmul": rate / ceilings.matmul_rate}
        row |= {"prefill_floor_seconds": flops / ceilings.matmul_rate}
        row |= decode_fields(engine, context, row["prefill_seconds"], ceilings)
        watch.look()
        working = max(0, watch.peak - watch.base - plan.kv_bytes)
        row |= {"kv_bytes": plan.kv_bytes, "working_bytes": working, "peak_bytes": watch.peak}
        row |= {"planned_peak_bytes": plan.planned_peak_bytes}
        if not is_cuda(model.device):
            row["last_chunk_shares"] = last_chunk_shares(engine, context)
        return row
    finally:
        engine.close()


def require_time(engine: Engine, context: int, limits: Limits, ceilings: Ceilings) -> None:
    """Raise NoTimeLeft when even sampling would take longer than there is."""
    left = limits.left_seconds
    # on average a sampled chunk has half of the keys before it
    seconds = predicted_chunk_seconds(engine, context, ceilings) * len(sample_starts(engine, context)) / 2
    if not limits.whole and seconds > left:
        raise NoTimeLeft(f"sampling it takes about {seconds:.0f} s and {left:.0f} s are left; give --minutes more")


class MemoryWatch:
    """Largest memory against that at the start: of this process at the moments it is asked to look, or of a GPU's tensors at any."""

    def __init__(self, device: str) -> None:
        import psutil

        self._cuda, self._process = is_cuda(device), psutil.Process()
        if self._cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.base = self.peak = torch.cuda.memory_allocated() if self._cuda else self._process.memory_info().rss

    def look(self) -> None:
        self.peak = max(self.peak, torch.cuda.max_memory_allocated() if self._cuda else self._process.memory_info().rss)


def predicted_chunk_seconds(engine: Engine, context: int, ceilings: Ceilings) -> float:
    """About how long the last chunk takes."""
    model = engine.model
    keys = context if engine.settings.mode == "dense" else keys_read(engine.model, engine.settings, engine.runtime, context)
    flops = 2 * model.parameters + 12 * model.layers * model.heads * model.head_dim * keys
    return engine.chunk_tokens * flops / ceilings.matmul_rate


def warm_up(engine: Engine, context: int) -> None:
    """Chunks that are not counted: the first of a kind also pays for memory and kernels that later ones find ready.

    A GPU compiles kernels for the dense and the sparse part of a context; its dense library plans each length it meets.
    """
    if is_cuda(engine.model.device):
        if engine.settings.mode == "dense":
            plan_dense_lengths(engine, sample_starts(engine, context), context)
        else:
            chunk_at(engine, last_start(engine, context), context)
            edge = engine.runtime.backend.dense_below // engine.chunk_tokens * engine.chunk_tokens
            chunk_at(engine, min(edge, last_start(engine, context)), context)
    chunk_at(engine, 0, context)
    engine._cut(0)
    settle(engine.model.device)


@torch.inference_mode()
def plan_dense_lengths(engine: Engine, starts: Iterable[int], context: int) -> None:
    """Meet the numbers of keys that dense chunks at `starts` will meet, in one layer, for the library to plan."""
    model = engine.model
    fill(engine, context)
    keys, values = engine.store.view(0)
    for start in starts:
        stop = min(context, start + engine.chunk_tokens)
        q = torch.zeros(model.heads, stop - start, model.head_dim, dtype=model.dtype, device=model.device)
        engine.runtime.backend.prefill(0, q, keys[:, :stop], values[:, :stop], None)


def random_ids(model: LoadedModel, count: int) -> list[int]:
    return torch.randint(0, model.vocab, (count,)).tolist()


def prefill_fields(engine: Engine, context: int, planned_seconds: float, limits: Limits, watch: MemoryWatch) -> dict[str, Any]:
    """Seconds of a prefill and how they were found: whole when asked or when there is time enough, else sampled.

    On a GPU sampling is cheap and says better than any estimate whether there is time; both figures are then kept.
    """
    fields: dict[str, Any] = {}
    share = 16
    if is_cuda(engine.model.device):
        planned_seconds, share = sampled_prefill(engine, context, watch), 3
        fields = {"sampled_prefill_seconds": planned_seconds}
        engine._cut(0)
    if limits.whole or planned_seconds < limits.left_seconds / share:
        if engine.settings.mode == "dense" and is_cuda(engine.model.device):
            plan_dense_lengths(engine, range(0, context, engine.chunk_tokens), context)
            engine._cut(0)
        method, seconds = "measured whole", whole_prefill(engine, context, watch)
    elif fields:
        method, seconds = "sampled", planned_seconds
        fill(engine, context)
    else:
        method, seconds = "sampled", sampled_prefill(engine, context, watch)
    return fields | {"method": method, "prefill_seconds": seconds, "prefill_tokens_per_second": context / seconds}


def whole_prefill(engine: Engine, context: int, watch: MemoryWatch) -> float:
    ids = random_ids(engine.model, context)
    start = time.perf_counter()
    engine.prefill(ids, lambda done, total: watch.look(), room=ROOM_TOKENS)
    settle(engine.model.device)
    return time.perf_counter() - start


def last_start(engine: Engine, context: int) -> int:
    """Where the last whole chunk that fits begins."""
    return max(0, context - engine.chunk_tokens) // engine.chunk_tokens * engine.chunk_tokens


def sample_starts(engine: Engine, context: int) -> list[int]:
    """Where chunks are timed: ends, quarters, and both sides of the change from dense to sparse."""
    chunk, last = engine.chunk_tokens, max(0, context - engine.chunk_tokens)
    places = {0, last, *(last * eighth // 8 for eighth in (1, 2, 4, 6))}
    edge = engine.runtime.backend.dense_below
    if engine.settings.mode == "sparse" and edge < context:
        places |= {max(0, edge - chunk), edge}
    return sorted({place // chunk * chunk for place in places})


def sampled_prefill(engine: Engine, context: int, watch: MemoryWatch) -> float:
    """Seconds of a whole prefill, from chunks at a few places joined by straight lines."""
    engine.store.reserve(context + ROOM_TOKENS)
    places = sample_starts(engine, context)
    costs = [chunk_at(engine, place, context) for place in places]
    watch.look()
    fill(engine, context)
    pieces = zip(places, places[1:], costs, costs[1:])
    inner = sum((b - a) * (left + right) / 2 for a, b, left, right in pieces)
    return inner + (context - places[-1]) * costs[-1]


def chunk_at(engine: Engine, place: int, context: int) -> float:
    """Seconds per token of one chunk of random ids that starts at `place`, the keys before it being noise."""
    fill(engine, place)
    ids = random_ids(engine.model, min(engine.chunk_tokens, context - place))
    settle(engine.model.device)
    start = time.perf_counter()
    engine._forward(ids, place)
    settle(engine.model.device)
    return (time.perf_counter() - start) / len(ids)


def fill(engine: Engine, tokens: int) -> None:
    """Make the store hold `tokens` tokens, new ones being noise."""
    shape, dtype = engine.store.shape, engine.model.dtype
    if tokens <= engine.store.length:
        engine._cut(tokens)
    while (missing := min(FILL_TOKENS, tokens - engine.store.length)) > 0:
        noise = torch.randn(shape.kv_heads, missing, shape.head_dim, dtype=dtype, device=shape.device).to(shape.dtype)
        for layer in range(shape.layers):
            engine.store.append(layer, noise, noise)


def last_chunk_shares(engine: Engine, context: int) -> dict[str, float]:
    """How the time of the last chunk divides over kinds of operation."""
    place = last_start(engine, context)
    fill(engine, place)
    start = time.perf_counter()
    with OperationClock() as clock:
        engine._forward(random_ids(engine.model, min(engine.chunk_tokens, context - place)), place)
    total = time.perf_counter() - start
    return {kind: round(value / total, 3) for kind, value in clock.shares(total).items()}
