"""What this very machine can do at most: bytes read a second and products a second, measured here and now.

Every figure of the benchmark is held against these. Knows devices; no models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hipcli.bench_timing import event_seconds, is_cuda, seconds_of

CUDA_READ_BYTES = 4 << 30  # far above any cache
CPU_READ_BYTES = 256 << 20
GEMV_WIDTH = 8192
CUDA_MATMUL_SIZE = 8192
CPU_MATMUL_SIZE = 1536
REPEATS = 6


@dataclass(frozen=True)
class Ceilings:
    """read_rate: bytes/s of a read-only stream. matmul_rate, fp32_rate: flop/s of a large product in the model's dtype and in fp32."""

    read_rate: float
    matmul_rate: float
    fp32_rate: float

    def floor_ms(self, read_bytes: float, flops: float) -> float:
        """Milliseconds below which nothing that reads this much and multiplies this much can go."""
        return 1e3 * max(read_bytes / self.read_rate, flops / self.matmul_rate)


def measure_ceilings(device: str, dtype: torch.dtype) -> Ceilings:
    """Measure all three on `device`; takes about a second."""
    if not is_cuda(device):
        return Ceilings(cpu_read_rate(), matmul_rate(device, dtype), matmul_rate(device, torch.float32))
    return Ceilings(cuda_read_rate(device), matmul_rate(device, dtype), matmul_rate(device, torch.float32))


def cpu_read_rate() -> float:
    """Best of several sums over more memory than caches hold, in bytes/s."""
    data = torch.ones(CPU_READ_BYTES // 4)
    return CPU_READ_BYTES / best_seconds(data.sum, "cpu")


def cuda_read_rate(device: str) -> float:
    """Best of three kinds of read-only pass (sum, maximum, matrix times vector), in bytes/s.

    No one kernel reads at the full rate on every card; the fastest is the ceiling.
    """
    free = torch.cuda.mem_get_info()[0]
    row = GEMV_WIDTH * 2
    rows = max(1, min(CUDA_READ_BYTES, free // 4) // row)
    data = torch.ones(rows, GEMV_WIDTH, dtype=torch.bfloat16, device=device)
    vector = torch.ones(GEMV_WIDTH, dtype=torch.bfloat16, device=device)
    words = data.view(torch.int32).view(torch.float32)
    passes = (words.sum, words.amax, lambda: torch.mv(data, vector))
    return rows * row / min(best_seconds(one, device) for one in passes)


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """Best of several large square products, in flop/s; fp32 is true fp32, as the model's would be."""
    size = CPU_MATMUL_SIZE
    if is_cuda(device):
        size = CUDA_MATMUL_SIZE if dtype.itemsize == 2 else CUDA_MATMUL_SIZE // 2
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / best_seconds(lambda: left @ right, device)


def best_seconds(work: Callable[[], object], device: str) -> float:
    """Fastest of several calls, after two that warm the device."""
    for _ in range(2):
        work()
    return min(event_seconds(work, REPEATS) if is_cuda(device) else (seconds_of(work, device) for _ in range(REPEATS)))
