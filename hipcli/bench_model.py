"""The whole model at a given context: prefill, decode, memory, and where the time goes.

A prefill that would take too long is sampled: chunks are timed at several places of a context filled with noise (their
time depends on how many keys there are, not on what they hold) and integrated over the whole.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hipcli.dtype_probe import matmul_rate
from hipcli.engine import CHUNK_TOKENS, Engine
from hipcli.errors import DoesNotFit
from hipcli.model import LoadedModel
from hipcli.settings import AttentionSettings

DECODE_TOKENS = 34  # the first is prefill's, the second runs every stage, then a whole refresh cycle
OPERATIONS = {
    "linear layers": ("linear",),
    "attention": ("flash_attention", "softmax", "logaddexp"),
    "gather": ("index_select",),
    "scan": ("matmul", "bmm", "amax", "topk", "sort", "gather", "masked_fill", "maximum"),
    "rotation": ("complex", "mul", "copy"),
}


def model_row(model: LoadedModel, context: int, mode: str, preset: str, deadline: float, whole: bool) -> dict[str, Any]:
    """Measure one mode at one context. Raises DoesNotFit when memory or the time left is too small, naming the need."""
    engine = Engine(model, AttentionSettings(mode=mode, preset=preset))
    plan = engine.plan(context + DECODE_TOKENS + 1)
    if not plan.fits:
        raise DoesNotFit(f"it needs {plan.peak_bytes / 2**30:.1f} GiB of memory and {plan.available_bytes / 2**30:.1f} GiB are free")
    left = deadline - time.monotonic()
    sampled_seconds = predicted_chunk_seconds(engine, context) * len(sample_starts(engine, context)) / 2
    if not whole and sampled_seconds > left:
        raise DoesNotFit(f"sampling it takes about {sampled_seconds:.0f} s and {max(0, left):.0f} s are left; give --minutes more")
    try:
        warm_up(engine)
        watch = MemoryWatch()
        if whole or plan.seconds < left / 16:
            method, seconds = "measured whole", whole_prefill(engine, context, watch)
        else:
            method, seconds = "sampled", sampled_prefill(engine, context, watch)
        decode = decode_rate(engine, watch)
        shares = last_chunk_shares(engine, context)
        return {
            "row": "model", "context": context, "mode": mode, "model": model.name, "dtype": model.dtype_name,
            "method": method, "prefill_seconds": seconds, "prefill_tokens_per_second": context / seconds,
            "decode_tokens_per_second": decode, "kv_bytes": plan.kv_bytes,
            "working_bytes": max(0, watch.peak - watch.base - plan.kv_bytes), "last_chunk_shares": shares,
        }  # fmt: skip
    finally:
        engine.close()


class MemoryWatch:
    """Largest memory of this process at the moments it is asked to look, against that at the start."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self.base = self.peak = self._process.memory_info().rss

    def look(self) -> None:
        self.peak = max(self.peak, self._process.memory_info().rss)


def predicted_chunk_seconds(engine: Engine, context: int) -> float:
    """About how long the last chunk takes."""
    model = engine.model
    keys = context if engine.settings.mode == "dense" else engine._keys_read(context)
    flops = 2 * model.parameters + 12 * model.layers * model.heads * model.head_dim * keys
    return CHUNK_TOKENS * flops / matmul_rate(model.dtype)


def warm_up(engine: Engine) -> None:
    """One chunk that is not counted: the first one also pays for memory and kernels that later ones find ready."""
    engine._forward(random_ids(engine.model, CHUNK_TOKENS), 0)
    engine._cut(0)


def random_ids(model: LoadedModel, count: int) -> list[int]:
    return torch.randint(0, model.vocab, (count,)).tolist()


def whole_prefill(engine: Engine, context: int, watch: MemoryWatch) -> float:
    start = time.perf_counter()
    engine.prefill(random_ids(engine.model, context), lambda done, total: watch.look())
    return time.perf_counter() - start


def sample_starts(engine: Engine, context: int) -> list[int]:
    """Where chunks are timed: ends, quarters, and both sides of the change from dense to sparse."""
    last = max(0, context - CHUNK_TOKENS)
    places = {0, last, *(last * eighth // 8 for eighth in (1, 2, 4, 6))}
    edge = engine.runtime.backend.dense_below
    if engine.settings.mode == "sparse" and edge < context:
        places |= {max(0, edge - CHUNK_TOKENS), edge}
    return sorted(place // CHUNK_TOKENS * CHUNK_TOKENS for place in places)


def sampled_prefill(engine: Engine, context: int, watch: MemoryWatch) -> float:
    """Seconds of a whole prefill, from chunks at a few places joined by straight lines."""
    engine.store.reserve(context + DECODE_TOKENS + CHUNK_TOKENS)
    places, costs = sorted(set(sample_starts(engine, context))), []
    for place in places:
        fill(engine, place)
        ids = random_ids(engine.model, min(CHUNK_TOKENS, context - place))
        start = time.perf_counter()
        engine._forward(ids, place)
        costs.append((time.perf_counter() - start) / len(ids))
        watch.look()
    fill(engine, context)
    pieces = zip(places, places[1:], costs, costs[1:])
    inner = sum((b - a) * (left + right) / 2 for a, b, left, right in pieces)
    return inner + (context - places[-1]) * costs[-1]


def fill(engine: Engine, tokens: int) -> None:
    """Make the store hold `tokens` tokens, new ones being noise."""
    shape = engine.model.store_shape
    missing = tokens - engine.store.length
    if missing <= 0:
        engine._cut(tokens)
        return
    noise = torch.randn(shape.kv_heads, missing, shape.head_dim, dtype=shape.dtype, device=shape.device)
    for layer in range(shape.layers):
        engine.store.append(layer, noise, noise)


def decode_rate(engine: Engine, watch: MemoryWatch) -> float:
    """Tokens a second over one refresh cycle, after the step that runs every stage."""
    marks = []
    for _ in engine.generate(random_ids(engine.model, 8), max_tokens=DECODE_TOKENS):
        marks.append(time.perf_counter())
        watch.look()
    return (len(marks) - 2) / (marks[-1] - marks[1])


def last_chunk_shares(engine: Engine, context: int) -> dict[str, float]:
    """How the time of the last chunk divides over kinds of operation."""
    place = max(0, context - CHUNK_TOKENS) // CHUNK_TOKENS * CHUNK_TOKENS
    fill(engine, place)
    start = time.perf_counter()
    with OperationClock() as clock:
        engine._forward(random_ids(engine.model, min(CHUNK_TOKENS, context - place)), place)
    total = time.perf_counter() - start
    return {kind: round(value / total, 3) for kind, value in clock.shares(total).items()}


class OperationClock(TorchDispatchMode):
    """Adds up the time of each torch operation by kind; a CPU runs them one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = dict.fromkeys(OPERATIONS, 0.0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        kind = next((kind for kind, names in OPERATIONS.items() if any(part in name for part in names)), None)
        if kind:
            self.spent[kind] += time.perf_counter() - start
        return result

    def shares(self, total: float) -> dict[str, float]:
        """Seconds by kind; `other` is what is left of `total`, Python included."""
        return self.spent | {"other": total - sum(self.spent.values())}
