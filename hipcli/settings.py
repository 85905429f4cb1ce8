"""How a run attends: the choices a user makes, checked once. Knows names and numbers, no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from hipcli.errors import UsageError

MODES = ("sparse", "dense")
BACKENDS = ("auto", "torch", "triton", "reference")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
SHARES = (None, "group", "all")
PLACES = ("auto", "gpu", "host")
KV_DTYPES = ("auto", "bf16", "fp8")


@dataclass(frozen=True)
class KvSettings:
    """Keys and values of a run.

    place: "gpu", "host", or "auto": as many on the GPU as fit. dtype: "auto" is the model's own, "fp8" halves it (kv_codes.py).
    gpu_bytes, host_bytes: the most that may be taken of either memory; None leaves it to what is free.
    """

    place: str = "auto"
    dtype: str = "auto"
    gpu_bytes: int | None = None
    host_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (("kv", self.place, PLACES), ("kv-dtype", self.dtype, KV_DTYPES)):
            if value not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True)
class AttentionSettings:
    """Attention of a run.

    mode: "sparse" prunes, "dense" reads every key. preset: a name that kernels.presets reads, or "auto": the default on
    an accelerator, the cheaper "cpu" on a CPU. dense_below: blocks that end below this position are dense; None means
    min(8192, trained window), 0 means always sparse. backend: "auto" (triton on a GPU, torch on a CPU), "torch", "triton" or
    "reference". share: None keeps the preset's.
    Raises UsageError on a value that is not among these.
    """

    mode: str = "sparse"
    preset: str = "auto"
    dense_below: int | None = None
    backend: str = "auto"
    share: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("mode", MODES), ("backend", BACKENDS), ("share", SHARES)):
            value = getattr(self, name)
            if value not in allowed:
                known = ", ".join(str(item) for item in allowed if item)
                raise UsageError(f"{name} must be one of {known}, got {value!r}")
        if self.dense_below is not None and self.dense_below < 0:
            raise UsageError(f"dense-below must be 0 or more, got {self.dense_below}")
