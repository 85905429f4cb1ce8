"""Which number format a device multiplies fastest: bf16 runs twice as fast as fp32 on some CPUs and six times slower on others."""

from __future__ import annotations

import time
from functools import lru_cache

import torch

from hipcli.devices import settle

ROWS, WIDTH = 512, 1024
GPU_WIDTH = 4096  # a smaller product is over before a GPU has all its cores at work


@lru_cache(maxsize=None)
def matmul_rate(dtype: torch.dtype, device: str = "cpu") -> float:
    """Best of a few products of one shape, in flop/s: [512, 1024] x [1024, 1024] on a CPU, 4096 square on a GPU."""
    rows, width = (ROWS, WIDTH) if device == "cpu" else (GPU_WIDTH, GPU_WIDTH)
    left, right = torch.randn(rows, width, device=device).to(dtype), torch.randn(width, width, device=device).to(dtype)
    best = float("inf")
    for _ in range(4):
        settle(device)
        start = time.perf_counter()
        left @ right
        settle(device)
        best = min(best, time.perf_counter() - start)
    return 2 * rows * width * width / best


def choose_dtype(device: str) -> torch.dtype:
    """bf16 on a GPU, fp16 on one too old for it; on a CPU whichever is faster, fp32 unless bf16 clearly wins."""
    if device != "cpu":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    faster = matmul_rate(torch.bfloat16) > 1.2 * matmul_rate(torch.float32)
    return torch.bfloat16 if faster else torch.float32
