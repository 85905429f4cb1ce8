"""What a run will need, said before it starts: bytes and seconds, from sizes alone; and what it took in the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hipcli.kernels.stages import PrunePlan
    from hipcli.model import LoadedModel

CGROUP = Path("/sys/fs/cgroup")
HOST_SCRATCH_BYTES = 256 << 20  # keys gathered for a group of blocks, in the several copies that torch makes of them
GPU_SCRATCH_BYTES = 128 << 20  # work space of the matrix library, and what the allocator rounds up
SCAN_BYTES = 256 << 20  # scores and leaves of one group of blocks; the kernels start another group beyond it
GRAPH_BYTES = 1 << 30  # captured decode steps; by then a prefill's own space is free again
_STARVED = ("can't allocate memory", "not enough memory", "cuda error: out of memory", "alloc_failed")


@dataclass(frozen=True)
class MemoryPlan:
    """What holding `tokens` tokens takes on `device`, with a prefill in chunks of `chunk_tokens`.

    kv_bytes: of all keys and values. working_bytes: beside them, at the worst moment. peak_bytes: what the device must
    still find. available_bytes: free there before any of it. used_bytes: what this process has taken already (on a
    GPU its tensors), past_peak_bytes the most it ever had, which is while weights are loaded. seconds: estimated time of
    the prefill. device_parts: layers whose keys, and whose values, lie on the device. host_bytes: what a GPU's keys and values
    must still find on the host, None where all lie on the device; host_available_bytes: free there.
    """

    tokens: int
    chunk_tokens: int
    device: str
    kv_bytes: int
    working_bytes: int
    peak_bytes: int
    available_bytes: int
    used_bytes: int
    past_peak_bytes: int
    seconds: float
    device_parts: tuple[int, int]
    host_bytes: int | None = None
    host_available_bytes: int = 0

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.available_bytes and (self.host_bytes or 0) <= self.host_available_bytes

    @property
    def on_host(self) -> bool:
        """Whether keys and values lie on the host, in part at least, though a GPU computes."""
        return self.host_bytes is not None

    @property
    def planned_peak_bytes(self) -> int:
        """What `peak_memory_bytes` should show at most in the end."""
        return max(self.past_peak_bytes, self.used_bytes + self.peak_bytes)


def plan_memory(
    model: LoadedModel,
    tokens: int,
    *,
    prune: PrunePlan | None,
    token_bytes: int,
    device_parts: tuple[int, int],
    free: int,
    host_free: int,
    held_bytes: int,
    host_held_bytes: int,
    rotated_tokens: int,
    dense_tokens: int,
    keys_read: float,
    rate: float,
    chunk_lengths: Sequence[int],
) -> MemoryPlan:
    """Plan for `tokens` tokens in all, with the longest chunk that fits beside their keys and values, else the shortest.

    prune: None for dense attention. token_bytes: of K and V of one token in all layers. device_parts: layers whose keys, and
    whose values, are to lie on the device. free, host_free: what may still be taken there and on the host; held_bytes,
    host_held_bytes: already allocated for K and V. rotated_tokens: tokens of which every layer keeps a second, rotated key. dense_tokens: that sparse attention treats as dense. keys_read: mean number of keys a query reads. rate: flop/s of a product.
    chunk_lengths: descending; none longer than it takes to hold all tokens is chosen.
    """
    kv_bytes, parts = tokens * token_bytes, sum(device_parts)
    resident = resident_bytes(model.layers, tokens, token_bytes, device_parts, prune)
    rotated = rotated_tokens * token_bytes // 2
    useful = [length for length, shorter in zip(chunk_lengths, [*chunk_lengths[1:], 0]) if shorter < tokens] or chunk_lengths[-1:]
    for chunk in useful:
        working = rotated + working_bytes(model, chunk, tokens, prune, dense_tokens)
        peak = resident - held_bytes + working
        if peak <= free:
            break
    seconds = prefill_seconds(model, tokens, keys_read, rate)
    used, past = used_bytes(model.device), peak_memory_bytes() or 0
    on_host = kv_bytes - kv_bytes * parts // (2 * model.layers)
    host = (on_host - host_held_bytes, host_free) if parts < 2 * model.layers else (None, 0)
    return MemoryPlan(tokens, chunk, model.device, kv_bytes, working, peak, free, used, past, seconds, device_parts, *host)


def prefill_seconds(model: LoadedModel, tokens: int, keys_read: float, rate: float) -> float:
    """Estimated time of a prefill. rate: flop/s of a large product; keys_read: mean number of keys that a query reads."""
    linear = 2 * model.parameters
    attention = 4 * model.layers * model.heads * model.head_dim * keys_read
    # measured: attention and the scan run at a third of a large product's rate on a CPU, on an H200 at a sixth
    return tokens * (linear + (3 if model.device == "cpu" else 6) * attention) / rate


def resident_bytes(layers: int, tokens: int, token_bytes: int, device_parts: tuple[int, int], prune: PrunePlan | None) -> int:
    """What a device holds of keys and values: its layers, and for those on the host two staging buffers and the layers' banks."""
    part = tokens * token_bytes // (2 * layers)
    total = sum(device_parts) * part + sum(2 * part for own in device_parts if own < layers)
    if prune is None or min(device_parts) == layers:
        return total
    rows = prune.sink_tokens + prune.special_keep_tokens + prune.window_tokens + prune.stages[0].refresh
    # keys that later stages scan
    candidates = sum(stage.keep_tokens for stage in prune.stages[:-1]) * (layers - device_parts[0])
    return total + rows * token_bytes + candidates * token_bytes // (2 * layers)


def most_device_parts(plan: MemoryPlan, layers: int, token_bytes: int, prune: PrunePlan | None) -> tuple[int, int]:
    """As many layers on the device as fit beside a plan that has none there: keys first, which a refresh reads whole."""
    ladder = [(layers, values) for values in range(layers - 1, -1, -1)] + [(keys, 0) for keys in range(layers - 1, -1, -1)]
    bare = resident_bytes(layers, plan.tokens, token_bytes, (0, 0), prune)
    room = plan.available_bytes - plan.peak_bytes + bare
    return next(parts for parts in ladder if resident_bytes(layers, plan.tokens, token_bytes, parts, prune) <= room)


def working_bytes(model: LoadedModel, chunk_tokens: int, tokens: int, prune: PrunePlan | None, dense_tokens: int = 0) -> int:
    """Bytes beside weights, keys and values at the worst moment of a prefill, from the model's sizes.

    A layer is at its largest in the MLP or in the attention. Both hold the chunk's hidden states several times over
    (embeddings, the layer's input, the residual, the normed copy); besides, in units of one value per token:
    MLP: three intermediates (activated gate, up, their product).
    Attention: q, k, v; where it is dense a rotated q, keys and values spread over the heads that share them, and the
    outputs of two parts, merged in fp32; where it is sparse the two pickers and the output, which is less.
    To which come the scan's scores and lists, and the logits of one position in three forms.
    """
    rows = min(chunk_tokens, -(-tokens // 64) * 64)
    size, dim = model.dtype.itemsize, model.head_dim
    hidden, q, kv = model.hidden_size, model.heads * dim, model.kv_heads * dim
    mlp = size * (4 * hidden + 3 * model.intermediate_size)
    attention = size * (3 * hidden + 6 * q + 2 * kv) + 12 * q
    total = rows * max(mlp, attention) + 12 * model.vocab
    if prune is None:
        # phases of true positions, complex64, and their making: the table doubles when it grows
        total += 20 * dim * tokens
    if model.device == "cpu":
        return total + HOST_SCRATCH_BYTES
    if prune is not None:
        # keys of the dense part are rotated for each chunk: in complex64 on the way, with their phases
        total += scan_bytes(model, rows, tokens, prune) + (12 * kv + 20 * dim) * dense_tokens
    return max(total + GPU_SCRATCH_BYTES, GRAPH_BYTES)


def scan_bytes(model: LoadedModel, rows: int, tokens: int, prune: PrunePlan) -> int:
    """Scores and leaves (8 bytes a chunk of the first stage, per descent and block), and every stage's lists of int32."""
    blocks = -(-rows // prune.block_len)
    descents = model.heads if prune.descent == "head" else model.kv_heads
    scores = 8 * descents * blocks * -(-tokens // prune.stages[0].chunk_len)
    kept = sum(max(prune.keep_chunks(stage, layer) for layer in (0, model.layers - 1)) for stage in range(len(prune.stages)))
    return min(scores, SCAN_BYTES) + 4 * model.kv_heads * blocks * kept


def free_bytes(device: str, most: int | None = None) -> int:
    """Memory of a device that tensors can still take; on a GPU with what torch's allocator holds unused.

    most: bytes that this process may take in all, None for no such limit.
    """
    if device == "cpu":
        free = available_bytes()
    else:
        import torch

        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free if most is None else max(0, min(free, most - used_bytes(device)))


def used_bytes(device: str) -> int:
    """Memory this process has taken: its tensors on a GPU, all of it on a host."""
    if device == "cpu":
        import psutil

        return int(psutil.Process().memory_info().rss)
    import torch

    return torch.cuda.memory_allocated()


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Host memory a new allocation can take without swapping, within the limit of a container where there is one.

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


def peak_memory_bytes() -> int | None:
    """Largest memory this process has held (its tensors on the GPU when it used one); None where the system cannot tell."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # kilobytes on Linux, bytes on macOS
    return peak if sys.platform == "darwin" else peak * 1024


def ran_out_of_memory(fault: BaseException) -> bool:
    """Whether a fault says that memory ended: torch has a class of its own for a GPU, and words for a CPU and cuBLAS."""
    import torch

    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(fault, RuntimeError) and any(words in str(fault).lower() for words in _STARVED)


@lru_cache(maxsize=1)
def _malloc_trim():
    """glibc's malloc_trim, None where the C library has none."""
    import ctypes

    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_back_free_memory() -> None:
    """Hand freed host memory back to the system.

    glibc keeps what a chunk's temporary tensors leave free, in pieces that the next ones do not fit: without this a
    long prefill grows by twice its keys and values.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
