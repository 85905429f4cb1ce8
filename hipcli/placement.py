"""Where a run's keys and values go: on the device, or on the host beside a GPU; planned before the first chunk.

Knows sizes, stores and limits; no ids, no text.
"""

from __future__ import annotations

from collections.abc import Sequence

from hipcli.attention import AttentionRuntime
from hipcli.cache.base import KVStore
from hipcli.cache.host import HostStore
from hipcli.cache.resident import ResidentStore
from hipcli.dtype_probe import matmul_rate
from hipcli.errors import DoesNotFit
from hipcli.memory import MemoryPlan, plan_memory
from hipcli.model import LoadedModel
from hipcli.settings import AttentionSettings

WAYS_OUT = "use fewer pages, a smaller --max-tokens, a smaller model, or a machine with more memory; nothing was cut off"


def first_store(model: LoadedModel, kv: str) -> KVStore:
    """An empty store as `kv` asks for it: "auto" begins on the device."""
    return (HostStore if kv == "host" and model.device != "cpu" else ResidentStore)(model.store_shape)


def plan_run(
    model: LoadedModel, settings: AttentionSettings, runtime: AttentionRuntime, kv: str, tokens: int, chunk_lengths: Sequence[int]
) -> MemoryPlan:
    """What holding `tokens` tokens in all would need, in the first place where they fit, else in the last that may be tried."""
    backend, store = runtime.backend, runtime.store
    for on_host in places(model, store, kv):
        plan = plan_memory(
            model,
            tokens,
            prune=backend.plan if settings.mode == "sparse" else None,
            held_bytes=store.device_bytes if on_host == store.in_place else 0,
            # torch's sparse attention keeps rotated keys for as long as it is dense
            rotated_tokens=min(tokens, backend.dense_below) if backend.name == "torch" else 0,
            dense_tokens=min(tokens, backend.dense_below),
            keys_read=keys_read(model, settings, runtime, tokens),
            rate=matmul_rate(model.dtype, model.device),
            chunk_lengths=chunk_lengths,
            host_held_bytes=(store.allocated_bytes if store.in_place else 0) if on_host else None,
        )
        if plan.fits:
            break
    return plan


def places(model: LoadedModel, store: KVStore, kv: str) -> tuple[bool, ...]:
    """Whether to keep K and V on the host, in the order to try. What is held already stays where it is."""
    if model.device == "cpu":
        return (False,)
    if kv != "auto":
        return (kv == "host",)
    return (store.in_place,) if store.length else (False, True)


def keys_read(model: LoadedModel, settings: AttentionSettings, runtime: AttentionRuntime, tokens: int) -> float:
    """Mean number of keys that a query of a prefill of `tokens` tokens attends to; on a GPU with those that are scanned.

    A scanned key counts by half, its value being left alone, and once for all the rows that are compared as one. On a CPU
    the scan is so much of the rest that a single factor covers both (memory.plan_memory).
    """
    dense = tokens / 2
    if settings.mode == "dense":
        return dense
    plan = runtime.backend.plan
    read = plan.sink_tokens + plan.keep_tokens(model.layers) + plan.window_tokens
    if model.device != "cpu":
        first = plan.stages[0]
        read += dense * (2 * first.rounds + first.rest_len) / first.chunk_len / first.rows_mean / 2
    return min(dense, read)


def placed(store: KVStore, plan: MemoryPlan) -> KVStore:
    """The store that a plan asks for: this one, or an empty one elsewhere in its place."""
    if plan.on_host == store.in_place:
        return store
    store.close()
    return (HostStore if plan.on_host else ResidentStore)(store.shape)


def does_not_fit(plan: MemoryPlan) -> DoesNotFit:
    """The refusal of a plan, with the ways out."""
    need, have, kind, way = plan.peak_bytes, plan.available_bytes, "GPU memory", "run with --device cpu, "
    if plan.device == "cpu":
        kind, way = "memory", ""
    elif plan.on_host and plan.host_bytes > plan.host_available_bytes:
        need, have, kind = plan.host_bytes, plan.host_available_bytes, "host memory"
    elif not plan.on_host:
        way = "keep keys and values on the host by --kv host, " + way
    return DoesNotFit(f"{plan.tokens:,} tokens need {need / 2**30:.1f} GiB of {kind} and {have / 2**30:.1f} GiB are free", way + WAYS_OUT)
