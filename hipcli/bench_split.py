"""Where one layer's time goes on a GPU: each kernel's time by part, beside the least that part could take.

Kernels run in the order they were launched, so the names tell the stages apart: a selection ends one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hipcli.bench_ceilings import Ceilings
from hipcli.bench_floors import Cost, Sizes, sparse_costs
from hipcli.kernels.backend import Backend

if TYPE_CHECKING:
    from hipcli.bench_layer_cuda import Copy

KINDS = {"selection": ("select",), "scan": ("pickers", "descend", "rest"), "attention": ("attend", "decode", "merge")}
Parts = dict[str, dict[str, float | None]]


def split_calls(backend: Backend, layer: int, sizes: Sizes, q, one, copies: list[Copy], ceilings: Ceilings) -> dict[str, Any]:
    """Parts of a prefill chunk and of a decode step that runs every stage; empty where kernels have no names to go by.

    q: [H, Q, D] chunk, one: [H, 1, D]; both over the first copies' keys.
    """
    if not backend.in_graphs:
        return {}
    total = copies[0].keys.shape[1]
    position = torch.tensor([total - 1], dtype=torch.int32, device=one.device)
    new = torch.zeros(sizes.kv_heads, 1, sizes.head_dim, dtype=one.dtype, device=one.device)

    def chunk() -> None:
        backend.prefill(layer, q, copies[0].keys, copies[0].values, backend.new_state())

    def step() -> None:
        for copy in copies:
            backend.decode_at(layer, one, new, new, copy.keys, copy.values, copy.state, 0, position)

    calls = {"prefill chunk": (chunk, q.shape[1], 1), "full decode step": (step, 1, len(copies))}
    split = {}
    for name, (work, queries, repeats) in calls.items():
        kernels = kernel_times(work)
        if kernels:
            costs = sparse_costs(backend.plan, layer, sizes, total, queries)
            split[name] = beside_floors(sort_kernels(kernels, len(backend.plan.stages)), repeats, costs, ceilings)
    return split


def kernel_times(work: Callable[[], object]) -> list[tuple[str, float]]:
    """Name and milliseconds of each kernel of one call, in the order they ran; empty where the driver tells nothing."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    events = [event for event in recorded.events() if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us() / 1e3) for event in events]


def kind_of(kernel: str) -> str:
    """Which part a kernel belongs to, by the words of its name."""
    words = re.split(r"[^a-z]+", kernel.lower())
    return next((kind for kind, starts in KINDS.items() if any(word.startswith(starts) for word in words)), "other")


def sort_kernels(kernels: list[tuple[str, float]], stages: int) -> dict[str, float]:
    """Milliseconds by part. A scan kernel after a selection belongs to the next stage, after the last stage's to the first."""
    parts = {f"scan {stage + 1}": 0.0 for stage in range(stages)} | {"selection": 0.0, "attention": 0.0, "other": 0.0}
    stage, selected = 0, False
    for name, milliseconds in kernels:
        kind = kind_of(name)
        if kind == "scan" and selected:
            stage, selected = (stage + 1) % stages, False
        selected = selected or kind == "selection"
        parts[f"scan {stage + 1}" if kind == "scan" else kind] += milliseconds
    return parts


def beside_floors(parts: dict[str, float], repeats: int, costs: dict[str, Cost], ceilings: Ceilings) -> Parts:
    """Time of one call by part, with its floor and the gap between them, None where there is nothing it must do."""
    table: Parts = {}
    for name, milliseconds in parts.items():
        floor = costs[name].floor_ms(ceilings) if name in costs else None
        own = milliseconds / repeats
        table[name] = {"ms": own, "floor_ms": floor, "gap": own / floor if floor else None}
    return table
