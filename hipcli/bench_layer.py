"""One layer's attention at a given number of keys, sparse beside dense: a mean decode step, and a stretch of prefill.

A CPU times a whole refresh cycle and one block; a GPU, where launches would drown a step, is timed in bench_layer_cuda.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hipcli.attention import open_backend
from hipcli.bench_ceilings import Ceilings
from hipcli.bench_floors import Sizes
from hipcli.bench_timing import is_cuda, seconds_of
from hipcli.errors import DoesNotFit
from hipcli.kernels.backend import Backend
from hipcli.memory import HOST_SCRATCH_BYTES, free_bytes
from hipcli.model import LoadedModel
from hipcli.settings import AttentionSettings


def layer_row(model: LoadedModel, context: int, preset: str, ceilings: Ceilings) -> dict[str, Any]:
    """Times of one layer at `context` keys, weighted over special and ordinary layers. Raises DoesNotFit."""
    if is_cuda(model.device):
        from hipcli import bench_layer_cuda

        times = bench_layer_cuda.layer_times(model, context, preset, ceilings)
    else:
        times = layer_times(model, context, preset)
    row: dict[str, Any] = {"row": "layer", "context": context, "model": model.name, "dtype": model.dtype_name, **times}
    for key in ("decode", "prefill"):
        row[f"{key}_speedup"] = row[f"dense_{key}_ms"] / row[f"sparse_{key}_ms"]
    return row


def layer_times(model: LoadedModel, context: int, preset: str) -> dict[str, Any]:
    """Both modes through their backends as they are, each a call at a time."""
    require_room(model, context, HOST_SCRATCH_BYTES)
    keys, values = noise(model, context)
    row: dict[str, Any] = {}
    for mode in ("sparse", "dense"):
        backend = layer_backend(model, mode, preset)
        row[f"{mode}_decode_ms"] = weighted(model, backend, partial(decode_ms, backend, model, keys, values))
        row[f"{mode}_prefill_ms"] = weighted(model, backend, partial(prefill_ms, backend, model, keys, values))
    return row | {"prefill_queries": min(backend.plan.block_len, context), "dense_decode_kernel": "torch", "dense_prefill_kernel": "torch"}


def layer_backend(model: LoadedModel, mode: str, preset: str) -> Backend:
    """The backend of a mode, sparse from the first key on."""
    settings = AttentionSettings(mode=mode, preset=preset, dense_below=0)
    return open_backend(settings, model.rope, model.trained_window, model.device)


def require_room(model: LoadedModel, context: int, working_bytes: int) -> int:
    """Bytes of one layer's keys and values. Raises DoesNotFit when they and the working space exceed what is free."""
    need, free = context * model.store_shape.bytes_per_token // model.layers, free_bytes(model.device)
    if need + working_bytes > free:
        raise DoesNotFit(f"one layer's keys and values take {need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free")
    return need


def sizes_of(model: LoadedModel) -> Sizes:
    return Sizes(model.heads, model.kv_heads, model.head_dim, model.dtype.itemsize)


def noise(model: LoadedModel, tokens: int, heads: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors [heads, tokens, D] of the model's dtype on its device; heads: those of K and V unless given."""
    size = (heads or model.kv_heads, tokens, model.head_dim)
    first, second = (torch.randn(size, dtype=model.dtype, device=model.device) for _ in range(2))
    return first, second


def weighted(model: LoadedModel, backend: Backend, measure: Callable[[int], float]) -> float:
    """Mean over the model's layers of a figure that differs between special and ordinary ones."""
    special = min(backend.plan.special_layers, model.layers)
    ordinary = measure(special)
    if not special or special == model.layers:
        return ordinary
    return (special * measure(0) + (model.layers - special) * ordinary) / model.layers


def decode_ms(backend: Backend, model: LoadedModel, keys, values, layer: int) -> float:
    """Mean milliseconds of a step over one whole refresh cycle, the first step (which runs every stage) included."""
    plan, state = backend.plan, backend.new_state()
    steps = min(plan.stages[0].refresh, keys.shape[1] - 1)
    q = noise(model, 1, model.heads)[0]
    spent = 0.0
    for step in range(-1, steps):
        position = keys.shape[1] - steps + max(step, 0) - 1
        seen = keys[:, : position + 1], values[:, : position + 1]
        stage = plan.refresh_stage(max(step, 0), 0, 1)
        # the step before the first warms the caches of torch, not of the timing
        seconds = seconds_of(partial(backend.decode, layer, q, *seen, state, stage), keys.device)
        spent += seconds if step >= 0 else 0.0
        if step < 0:
            state = backend.new_state()
    return 1e3 * spent / steps


def prefill_ms(backend: Backend, model: LoadedModel, keys, values, layer: int) -> float:
    """Milliseconds of the last block of queries, the better of two runs."""
    rows = min(backend.plan.block_len, keys.shape[1])
    total = keys.shape[1] // rows * rows
    q = noise(model, rows, model.heads)[0]
    seen = keys[:, :total], values[:, :total]
    return 1e3 * min(seconds_of(lambda: backend.prefill(layer, q, *seen, backend.new_state()), keys.device) for _ in range(2))
