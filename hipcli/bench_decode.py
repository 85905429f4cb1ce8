"""Decoding of a whole model after its prefill: time to the first token, the spread of the steps, bytes read against the ceiling.

A user's own path, Engine.generate, is what is timed. Dense attention on a GPU is also given a CUDA graph of one step at a
fixed length, lest the baseline be slowed by launches that ours is spared.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch

from hipcli.attention import bind
from hipcli.bench_ceilings import Ceilings
from hipcli.bench_dense import MeasuredDenseBackend, fastest_dense
from hipcli.bench_layer import noise, require_room, sizes_of
from hipcli.bench_layer_cuda import chunk_rows, working_bytes
from hipcli.bench_timing import captured, event_seconds, is_cuda, spread_ms
from hipcli.bench_work import step_bytes
from hipcli.devices import settle
from hipcli.engine import Engine

SUFFIX_TOKENS = 8
CPU_STEPS = 32  # one refresh cycle
CUDA_STEPS = 128  # four of them, enough for a 99th percentile


@torch.inference_mode()
def use_fastest_dense(engine: Engine, context: int) -> dict[str, Any]:
    """Let a dense engine attend through the fastest kernels found at `context` keys; returns their names."""
    model, backend = engine.model, engine.runtime.backend
    rows = chunk_rows(backend, context)
    require_room(model, context, working_bytes(model, rows))
    q, one = noise(model, rows, model.heads)[0], noise(model, 1, model.heads)[0]
    winners = fastest_dense(q, one, *noise(model, context))
    engine.runtime.backend = MeasuredDenseBackend(backend.plan, backend.rope, backend.dense_below, winners)
    engine.runtime.reset_states()
    return {"dense_prefill_kernel": winners.prefill_name, "dense_decode_kernel": winners.decode_name}


def decode_fields(engine: Engine, context: int, prefill_seconds: float, ceilings: Ceilings) -> dict[str, Any]:
    """Fields of a model row about decoding; the engine holds `context` tokens before and after."""
    model = engine.model
    start = time.perf_counter()
    engine.warm_up(context + SUFFIX_TOKENS + CUDA_STEPS + 2)
    settle(model.device)
    warm_up_seconds = time.perf_counter() - start
    fixed = fixed_steps(engine) if is_cuda(model.device) and engine.settings.mode == "dense" else None
    first_token, first_step, steps = generated_steps(engine, 1 if fixed else CUDA_STEPS if is_cuda(model.device) else CPU_STEPS)
    how = "one step in a CUDA graph, at a fixed length" if fixed else "generated"
    steps = fixed or steps
    mean = sum(steps) / len(steps)
    read = step_bytes(model, engine.runtime.backend, sizes_of(model), context)
    return {
        "warm_up_seconds": warm_up_seconds, "time_to_first_token_seconds": prefill_seconds + first_token,
        "decode_method": how, "decode_steps": len(steps), "decode_tokens_per_second": 1 / mean,
        "first_step_ms": 1e3 * first_step, **{f"decode_{name}": value for name, value in spread_ms(steps).items()},
        "decode_bytes_per_step": read, "decode_bytes_per_second": read / mean,
        "decode_share_of_bandwidth": read / mean / ceilings.read_rate, "decode_floor_ms": 1e3 * read / ceilings.read_rate,
    }  # fmt: skip


def generated_steps(engine: Engine, count: int) -> tuple[float, float, list[float]]:
    """Seconds to the first token of an answer, of the step after it (which runs every stage), and of `count` steps more."""
    ids = torch.randint(0, engine.model.vocab, (SUFFIX_TOKENS,)).tolist()
    # an answer before it, for what is compiled or allocated on first use
    for _ in engine.generate(ids, max_tokens=2):
        pass
    marks = [time.perf_counter()]
    for _ in engine.generate(ids, max_tokens=count + 2):
        marks.append(time.perf_counter())
    gaps = [after - before for before, after in pairwise(marks)]
    return gaps[0], gaps[1], gaps[2:]


@torch.inference_mode()
def fixed_steps(engine: Engine) -> list[float] | None:
    """Seconds of CUDA_STEPS replays of the next decode step, argmax included; None where it cannot be captured."""
    model, held = engine.model, engine.cached_len
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    where = torch.full((1, 1), held, device=model.device)

    def step() -> torch.Tensor:
        # the step that ran before it is taken back: the same slot is written again
        engine.store.truncate(held)
        hidden = model.network.model(input_ids=token, position_ids=where, use_cache=False).last_hidden_state
        return model.network.lm_head(hidden[:, -1]).float().argmax(-1)

    bind(model.network, engine.runtime)
    engine.runtime.decode_step = 0
    try:
        graph = captured(step)
        graph.replay()
        return event_seconds(graph.replay, CUDA_STEPS)
    except RuntimeError:
        return None
    finally:
        engine.runtime.decode_step = None
        engine._cut(held)
