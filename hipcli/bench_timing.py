"""Clocks of the benchmark: seconds and medians on any device, CUDA graphs and their replays, spread of step times.

Knows nothing of models or attention.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from hipcli.errors import HipError

GRAPH_WARM_UPS = 2


class NoTimeLeft(HipError):
    """A measurement was left out because it would have taken longer than there is time."""


def is_cuda(device: str | torch.device) -> bool:
    return torch.device(device).type == "cuda"


def seconds_of(work: Callable[[], object], device: str | torch.device) -> float:
    """Seconds of one call: by the GPU's own clock on CUDA, by the wall clock elsewhere."""
    if is_cuda(device):
        return event_seconds(work, 1)[0]
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def event_seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls queued back to back on the GPU, between events recorded around each."""
    torch.cuda.synchronize()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, stop in marks:
        start.record()
        work()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) / 1e3 for start, stop in marks]


def median_ms(work: Callable[[], object], device: str | torch.device, repeats: int, warm_ups: int = 1) -> float:
    """Median milliseconds of `repeats` calls after `warm_ups` that do not count."""
    for _ in range(warm_ups):
        work()
    if is_cuda(device):
        return 1e3 * statistics.median(event_seconds(work, repeats))
    return 1e3 * statistics.median(seconds_of(work, device) for _ in range(repeats))


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`work` as a CUDA graph, after calls on a side stream that compile and allocate what it needs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(GRAPH_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def graph_ms(work: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of a replay of `work` under a CUDA graph: no launch cost, no Python."""
    graph = captured(work)
    milliseconds = median_ms(graph.replay, "cuda", repeats, warm_ups=3)
    graph.reset()
    return milliseconds


def spread_ms(steps: Sequence[float]) -> dict[str, float]:
    """p50, p99 (nearest rank) and largest of step times in seconds, as milliseconds."""
    ranked = sorted(1e3 * step for step in steps)
    rank = -(-99 * len(ranked) // 100)
    return {"p50_ms": statistics.median(ranked), "p99_ms": ranked[rank - 1], "max_ms": ranked[-1]}
