"""Which number format a device multiplies fastest: bf16 runs twice as fast as fp32 on some CPUs and six times slower on others."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

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


def settled_dtype(folder: Path) -> str:
    """The name of the format for a CPU, as it was chosen when this machine was first asked, and the same ever after.

    A busy machine may measure otherwise from one run to the next, and what was read in one format is of no use in the
    other. folder: where the choice is kept, one file for each kind of CPU and version of torch.
    """
    if known := remembered_dtype(folder):
        return known
    path, chosen = _memory(folder), str(choose_dtype("cpu")).removeprefix("torch.")
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as out:
            out.write(chosen + "\n")
        if remembered_dtype(folder) is None:
            # a damaged file would never be replaced
            path.unlink(missing_ok=True)
        # of several processes that measure at once the first one decides
        with suppress(FileExistsError):
            os.link(scratch, path)
        chosen = remembered_dtype(folder) or chosen
    with suppress(OSError):
        scratch.unlink()
    return chosen


def remembered_dtype(folder: Path) -> str | None:
    """What `settled_dtype` chose on this machine, None when it was not asked yet."""
    with suppress(OSError, ValueError):
        if (known := _memory(folder).read_text(encoding="ascii").strip()) in ("float32", "bfloat16"):
            return known
    return None


def _memory(folder: Path) -> Path:
    return folder / f"cpu-format-{hashlib.sha256('|'.join(_machine()).encode()).hexdigest()[:16]}"


def _machine() -> list[str]:
    """What tells one kind of CPU from another."""
    name = platform.processor()
    with suppress(OSError):
        rows = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((row.split(":", 1)[1].strip() for row in rows if row.startswith("model name")), name)
    return [name, platform.machine(), torch.__version__, torch.backends.cpu.get_cpu_capability()]
