"""One layer on a GPU: decode under CUDA graphs, each refresh case apart and amortised, and a chunk of prefill.

A real step reads every layer's own keys, so a graph runs several layers' buffers in turn: lists small enough for the
GPU's cache would otherwise be read from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hipcli.bench_ceilings import Ceilings
from hipcli.bench_dense import FastestDense, fastest_dense
from hipcli.bench_floors import amortised_decode, cadence, dense_cost, sparse_costs, whole_cost
from hipcli.bench_layer import decode_ms, layer_backend, noise, require_room, sizes_of
from hipcli.bench_split import split_calls
from hipcli.bench_timing import graph_ms, median_ms
from hipcli.kernels.backend import Backend
from hipcli.memory import free_bytes
from hipcli.model import LoadedModel

CHUNK_TOKENS = 8192
COPIES_BYTES = 24 << 30  # memory that copies of a layer may take
GRAPH_REPLAYS = 50
CHUNK_REPEATS = 5


@dataclass
class Copy:
    """Keys and values [KV, T, D] of one layer, whether either lies on the host, and what its decoding keeps.

    scanned: keys on the device for full refreshes, where those of the store are not.
    """

    keys: torch.Tensor
    values: torch.Tensor
    state: Any = None
    far: tuple[bool, bool] = (False, False)
    scanned: torch.Tensor | None = None


@torch.inference_mode()
def layer_times(model: LoadedModel, context: int, preset: str, ceilings: Ceilings) -> dict[str, Any]:
    """Fields of a layer row: times, cases, floors, and the split over kernels. Raises DoesNotFit, HipError."""
    backend = layer_backend(model, "sparse", preset)
    rows = chunk_rows(backend, context)
    copies = make_copies(model, context, working_bytes(model, rows))
    first, sizes = copies[0], sizes_of(model)
    q, one = noise(model, rows, model.heads)[0], noise(model, 1, model.heads)[0]
    dense = fastest_dense(q, one, first.keys, first.values)
    layers = shown_layers(backend, model)
    decode = {kind: decode_cases(backend, model, layer, copies) for kind, layer in layers.items()}
    chunk = {kind: chunk_ms(backend, layer, q, first) for kind, layer in layers.items()}
    steps = {kind: amortised_decode(backend.plan, layer, sizes, context) for kind, layer in layers.items()}
    chunks = {kind: whole_cost(sparse_costs(backend.plan, layer, sizes, context, rows)) for kind, layer in layers.items()}
    return {
        "backend": backend.name, "copies": len(copies), "prefill_queries": rows,
        "sparse_decode_ms": over_layers(backend, model, {kind: cases["amortised"] for kind, cases in decode.items()}),
        "dense_decode_ms": dense_decode_ms(dense, one, copies), "dense_decode_kernel": dense.decode_name,
        "sparse_prefill_ms": over_layers(backend, model, chunk),
        "dense_prefill_ms": median_ms(lambda: dense.prefill(q, first.keys, first.values), "cuda", CHUNK_REPEATS),
        "dense_prefill_kernel": dense.prefill_name, "decode_cases_ms": decode, "prefill_kinds_ms": chunk,
        "sparse_decode_floor_ms": over_layers(backend, model, {kind: cost.floor_ms(ceilings) for kind, cost in steps.items()}),
        "sparse_prefill_floor_ms": over_layers(backend, model, {kind: cost.floor_ms(ceilings) for kind, cost in chunks.items()}),
        "dense_decode_floor_ms": dense_cost(sizes, context, 1).floor_ms(ceilings),
        "dense_prefill_floor_ms": dense_cost(sizes, context, rows).floor_ms(ceilings),
        "split": split_calls(backend, layers.get("ordinary", 0), sizes, q, one, copies, ceilings),
    }  # fmt: skip


def chunk_rows(backend: Backend, context: int) -> int:
    """Queries of the chunk that is timed: whole blocks where the context has any."""
    block = backend.plan.block_len
    return max(min(context, block), min(CHUNK_TOKENS, context) // block * block)


def working_bytes(model: LoadedModel, rows: int) -> int:
    """Room a chunk's queries, results and scores take beside keys and values."""
    return 12 * model.heads * rows * model.head_dim * model.dtype.itemsize + (1 << 30)


def make_copies(model: LoadedModel, context: int, working: int) -> list[Copy]:
    """As many layers' buffers as the model has layers and COPIES_BYTES or half of what is free allow, at least one."""
    layer_bytes = require_room(model, context, working)
    budget = min(COPIES_BYTES, (free_bytes(model.device) - working) // 2)
    count = max(1, min(model.layers, budget // layer_bytes))
    return [Copy(*noise(model, context)) for _ in range(count)]


def shown_layers(backend: Backend, model: LoadedModel) -> dict[str, int]:
    """One layer of each kind the model has."""
    special = min(backend.plan.special_layers, model.layers)
    kinds = {"special": 0} if special else {}
    return kinds | ({"ordinary": special} if special < model.layers else {})


def over_layers(backend: Backend, model: LoadedModel, kinds: dict[str, float]) -> float:
    """Mean over all layers of a figure known for each kind of layer."""
    special = min(backend.plan.special_layers, model.layers)
    counts = {"special": special, "ordinary": model.layers - special}
    return sum(counts[kind] * value for kind, value in kinds.items()) / model.layers


def decode_cases(backend: Backend, model: LoadedModel, layer: int, copies: list[Copy]) -> dict[str, float]:
    """Milliseconds of a step by what it refreshes, and their mean over a refresh cycle."""
    steps = cadence(backend.plan)
    if not backend.in_graphs:
        # nothing to capture: a whole cycle, a call at a time
        return {"amortised": decode_ms(backend, model, copies[0].keys, copies[0].values, layer)}
    q = noise(model, 1, model.heads)[0]
    new_k, new_v = noise(model, 1)
    position = torch.tensor([copies[0].keys.shape[1] - 1], dtype=torch.int32, device=model.device)
    for copy in copies:
        copy.state = backend.new_state()

    def step(from_stage: int | None) -> None:
        for copy in copies:
            backend.decode_at(
                layer, q, new_k, new_v, copy.keys, copy.values, copy.state, from_stage, position, far=copy.far, scanned=copy.scanned
            )

    step(0)
    cases = {stage: graph_ms(partial(step, stage), GRAPH_REPLAYS) / len(copies) for stage in steps}
    mean = sum(count * cases[stage] for stage, count in steps.items()) / sum(steps.values())
    return {case_name(backend, stage): value for stage, value in cases.items()} | {"amortised": mean}


def case_name(backend: Backend, stage: int | None) -> str:
    """What a step that starts at `stage` refreshes, in words."""
    if stage is None:
        return "reuse"
    if stage == 0:
        return "full"
    return f"stage {stage + 1}" + (" on" if stage + 1 < len(backend.plan.stages) else "")


def chunk_ms(backend: Backend, layer: int, q: torch.Tensor, copy: Copy) -> float:
    """Median milliseconds of a chunk of queries at the end of the keys."""
    return median_ms(lambda: backend.prefill(layer, q, copy.keys, copy.values, backend.new_state()), "cuda", CHUNK_REPEATS)


def dense_decode_ms(dense: FastestDense, q: torch.Tensor, copies: list[Copy]) -> float:
    """Median milliseconds of a dense step, the copies read in turn as in the sparse one."""

    def step() -> None:
        for copy in copies:
            dense.decode(q, copy.keys, copy.values)

    return graph_ms(step, GRAPH_REPLAYS) / len(copies)
