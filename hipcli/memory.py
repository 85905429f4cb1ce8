"""What a run will need, said before it starts: bytes and seconds, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hipcli.model import LoadedModel

CGROUP = Path("/sys/fs/cgroup")
ACTIVATION_BYTES = 256 << 20  # a prefill chunk's hidden states and the gathered keys of one group


@dataclass(frozen=True)
class MemoryPlan:
    """tokens to hold, the bytes their K and V take, peak_bytes with working space, available_bytes, estimated prefill seconds."""

    tokens: int
    kv_bytes: int
    peak_bytes: int
    available_bytes: int
    seconds: float

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.available_bytes


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Memory a new allocation can take without swapping, within the limit of a container where there is one.

    cgroup: folder of the control group (version 2) this process runs in.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (cgroup / "memory.max").read_text(), int((cgroup / "memory.current").read_text())
        kept = dict(row.split() for row in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    if not limit.strip().isdecimal():
        return free
    # file pages that nobody has touched of late are given up before anything is refused
    return max(0, min(free, int(limit) - used + int(kept.get("inactive_file", 0))))


@lru_cache(maxsize=1)
def _malloc_trim():
    """glibc's malloc_trim, None where the C library has none."""
    import ctypes

    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_back_free_memory() -> None:
    """Hand freed memory back to the system.

    glibc keeps what a chunk's temporary tensors leave free, in pieces that the next ones do not fit: without this a
    long prefill grows by twice its keys and values.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def plan_memory(model: LoadedModel, tokens: int, held_bytes: int, keys_read: float, rate: float) -> MemoryPlan:
    """Plan for `tokens` tokens.

    held_bytes: already allocated for K and V. keys_read: mean number of keys a query reads. rate: flop/s of a product.
    """
    kv_bytes = tokens * model.kv_bytes_per_token
    linear = 2 * model.parameters
    attention = 4 * model.layers * model.heads * model.head_dim * keys_read
    # attention and the scan run at about a third of a large product's rate
    seconds = tokens * (linear + 3 * attention) / rate
    return MemoryPlan(tokens, kv_bytes, kv_bytes - held_bytes + ACTIVATION_BYTES, available_bytes(), seconds)
