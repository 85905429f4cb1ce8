"""One layer's attention at a given number of keys: a decode step over a whole refresh cycle, and one prefill block."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hipcli.attention import open_backend
from hipcli.errors import DoesNotFit
from hipcli.kernels.backends import Backend
from hipcli.memory import ACTIVATION_BYTES, available_bytes
from hipcli.model import LoadedModel
from hipcli.settings import AttentionSettings


def layer_row(model: LoadedModel, context: int, preset: str) -> dict[str, Any]:
    """Times of one layer at `context` keys, weighted over special and ordinary layers. Raises DoesNotFit."""
    shape = model.store_shape
    need = context * shape.bytes_per_token // shape.layers
    if need + ACTIVATION_BYTES > available_bytes():
        raise DoesNotFit(f"one layer's keys and values take {need / 2**30:.1f} GiB and {available_bytes() / 2**30:.1f} GiB are free")
    keys, values = (torch.randn(model.kv_heads, context, model.head_dim, dtype=shape.dtype, device=shape.device) for _ in "kv")
    row: dict[str, Any] = {"row": "layer", "context": context, "model": model.name, "dtype": model.dtype_name}
    for mode in ("sparse", "dense"):
        settings = AttentionSettings(mode=mode, preset=preset, dense_below=0)
        backend = open_backend(settings, model.rope, model.trained_window, model.device)
        row[f"{mode}_decode_ms"] = weighted(model, backend, lambda layer: decode_ms(backend, model, layer, keys, values))
        row[f"{mode}_prefill_block_ms"] = weighted(model, backend, lambda layer: prefill_ms(backend, model, layer, keys, values))
    for key in ("decode", "prefill_block"):
        row[f"{key}_speedup"] = row[f"dense_{key}_ms"] / row[f"sparse_{key}_ms"]
    return row


def weighted(model: LoadedModel, backend: Backend, measure: Callable[[int], float]) -> float:
    """Mean over the model's layers of a figure that differs between special and ordinary ones."""
    special = min(backend.plan.special_layers, model.layers)
    ordinary = measure(special)
    if not special or special == model.layers:
        return ordinary
    return (special * measure(0) + (model.layers - special) * ordinary) / model.layers


def decode_ms(backend: Backend, model: LoadedModel, layer: int, keys, values) -> float:
    """Mean milliseconds of a step over one whole refresh cycle, the first step (which runs every stage) included."""
    plan, state = backend.plan, backend.new_state()
    steps = min(plan.stages[0].refresh, keys.shape[1] - 1)
    q = torch.randn(model.heads, 1, model.head_dim, dtype=keys.dtype, device=keys.device)
    spent = 0.0
    for step in range(-1, steps):
        position = keys.shape[1] - steps + max(step, 0) - 1
        seen = keys[:, : position + 1], values[:, : position + 1]
        stage = plan.refresh_stage(max(step, 0), 0, 1)
        # the step before the first warms the caches of torch, not of the timing
        seconds = timed(lambda: backend.decode(layer, q, *seen, state, stage), keys.device)
        spent += seconds if step >= 0 else 0.0
        if step < 0:
            state = backend.new_state()
    return 1e3 * spent / steps


def prefill_ms(backend: Backend, model: LoadedModel, layer: int, keys, values) -> float:
    """Milliseconds of the last block of queries, the better of two runs."""
    rows = min(backend.plan.block_len, keys.shape[1])
    total = keys.shape[1] // rows * rows
    q = torch.randn(model.heads, rows, model.head_dim, dtype=keys.dtype, device=keys.device)
    seen = keys[:, :total], values[:, :total]
    return 1e3 * min(timed(lambda: backend.prefill(layer, q, *seen, backend.new_state()), keys.device) for _ in range(2))


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, waiting for an accelerator to finish."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
