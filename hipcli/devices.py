"""Where a run computes: the one place that chooses between GPU and CPU, and says what has not been tested.

Knows torch's devices; no models, no text.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hipcli.errors import UsageError

_side = threading.Lock()


def choose_device(wanted: str = "auto", backend: str = "auto") -> str:
    """ "cuda" or "cpu". wanted: "auto" takes a GPU that torch can use, "cuda" insists on one.

    Raises UsageError when there is no such GPU, or when `backend` cannot work on what was chosen.
    """
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise UsageError(f"--device cuda was asked for, but {why_no_gpu()}", "leave --device away to use the CPU")
    device = "cuda" if wanted != "cpu" and present else "cpu"
    if backend == "triton" and device == "cpu":
        reason = "this run was told to use the CPU" if present else why_no_gpu()
        raise UsageError(f"--backend triton needs an NVIDIA GPU, and {reason}", "use --backend auto")
    return device


def why_no_gpu() -> str:
    """Why torch sees no GPU, as the end of a sentence."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without GPU support"
    return "torch finds no GPU here"


def untested(device: str) -> str | None:
    """A notice about a device that hip was never run on, None for one that it was."""
    if device == "cuda" and torch.version.hip is not None:
        return f"hip has not been tested on AMD GPUs (ROCm {torch.version.hip}): compare an answer with --device cpu"
    return None


def unused_accelerators() -> list[str]:
    """Accelerators that are here and that hip leaves alone, because it was never tested on them."""
    found = []
    if torch.backends.mps.is_available():
        found.append("Apple GPU (MPS)")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found.append("Intel GPU (XPU)")
    return found


@contextmanager
def side_copy(device: str) -> Iterator[None]:
    """For copies to the host that another thread makes: beside the work of the GPU, never while a graph is captured."""
    if device == "cpu":
        yield
        return
    with nothing_beside(), torch.cuda.stream(torch.cuda.Stream()):
        yield


@contextmanager
def nothing_beside() -> Iterator[None]:
    """Keeps `side_copy` of other threads waiting: a call of theirs would spoil a graph that is being captured."""
    with _side:
        yield


def keep_within(device: str, most: int | None) -> None:
    """Let torch take no more than `most` bytes of the GPU. Raises UsageError where there is none."""
    if most is None:
        return
    if device == "cpu":
        raise UsageError("--gpu-memory needs a GPU, and this run computes on the CPU", "limit it by --host-memory")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, most / total))


def settle(device: str) -> None:
    """Wait until a device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def empty_cache(device: str) -> None:
    """Give memory that torch's allocator holds unused back to the GPU."""
    if device == "cuda":
        torch.cuda.empty_cache()
