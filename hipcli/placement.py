"""Where a run's keys and values go: on the device, or on the host beside a GPU; planned before the first chunk.

Knows sizes, stores and limits; no ids, no text.
"""

from __future__ import annotations

from collections.abc import Sequence

from hipcli.attention import AttentionRuntime
from hipcli.cache.base import KVStore, StoreShape
from hipcli.cache.host import HostStore
from hipcli.cache.resident import ResidentStore
from hipcli.dtype_probe import matmul_rate
from hipcli.errors import DoesNotFit
from hipcli.memory import MemoryPlan, free_bytes, most_device_parts, plan_memory
from hipcli.model import LoadedModel
from hipcli.settings import AttentionSettings, KvSettings

WAYS_OUT = "use fewer pages, a smaller --max-tokens, a smaller model, or a machine with more memory; nothing was cut off"


def open_store(shape: StoreShape, device_parts: tuple[int, int]) -> KVStore:
    """An empty store with the keys, and the values, of so many layers on its device."""
    return ResidentStore(shape) if min(device_parts) == shape.layers else HostStore(shape, *device_parts)


def first_parts(model: LoadedModel, place: str) -> tuple[int, int]:
    """What lies on the device before a plan knows better: "auto" begins with everything."""
    return (0, 0) if place == "host" and model.device != "cpu" else (model.layers, model.layers)


def plan_run(
    model: LoadedModel, settings: AttentionSettings, runtime: AttentionRuntime, kv: KvSettings, tokens: int, chunk_lengths: Sequence[int]
) -> MemoryPlan:
    """What holding `tokens` tokens in all would need, in the best place where they fit, else in the last that may be tried."""
    backend, store = runtime.backend, runtime.store
    prune = backend.plan if settings.mode == "sparse" else None

    def plan(device_parts: tuple[int, int], lengths: Sequence[int]) -> MemoryPlan:
        same = device_parts == store.device_parts
        return plan_memory(
            model,
            tokens,
            prune=prune,
            token_bytes=store.shape.bytes_per_token,
            device_parts=device_parts,
            free=free_bytes(model.device, kv.host_bytes if model.device == "cpu" else kv.gpu_bytes),
            host_free=free_bytes("cpu", kv.host_bytes),
            held_bytes=store.device_bytes if same else 0,
            host_held_bytes=store.host_bytes if same else 0,
            # torch's sparse attention keeps rotated keys for as long as it is dense
            rotated_tokens=min(tokens, backend.dense_below) if backend.name == "torch" else 0,
            dense_tokens=min(tokens, backend.dense_below),
            keys_read=keys_read(model, settings, runtime, tokens),
            rate=matmul_rate(model.dtype, model.device),
            chunk_lengths=lengths,
        )

    tried = places(model, store, kv.place)
    for device_parts in tried:
        found = plan(device_parts, chunk_lengths)
        if found.fits:
            break
    if found.fits and len(tried) > 1 and device_parts == tried[-1]:
        # the chunks stay as long as they are without any layer: short ones would stream the prefix more often
        return plan(most_device_parts(found, model.layers, store.shape.bytes_per_token, prune), (found.chunk_tokens,))
    return found


def places(model: LoadedModel, store: KVStore, place: str) -> tuple[tuple[int, int], ...]:
    """Layers whose keys and values to keep on the device, in the order to try. What is held already stays where it is."""
    everything = model.layers, model.layers
    if model.device == "cpu":
        return (everything,)
    if place != "auto":
        return ((0, 0) if place == "host" else everything,)
    return (store.device_parts,) if store.length else (everything, (0, 0))


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
    if plan.device_parts == store.device_parts:
        return store
    store.close()
    return open_store(store.shape, plan.device_parts)


def does_not_fit(plan: MemoryPlan) -> DoesNotFit:
    """The refusal of a plan, with the ways out."""
    need, have, kind, way = plan.peak_bytes, plan.available_bytes, "GPU memory", "run with --device cpu, "
    if plan.device == "cpu":
        kind, way = "memory", ""
    else:
        way = "halve keys and values by --kv-dtype fp8, " + way
        if not plan.on_host:
            way = "keep keys and values on the host by --kv host, " + way
        elif plan.host_bytes > plan.host_available_bytes:
            need, have, kind = plan.host_bytes, plan.host_available_bytes, "host memory"
    return DoesNotFit(f"{plan.tokens:,} tokens need {need / 2**30:.1f} GiB of {kind} and {have / 2**30:.1f} GiB are free", way + WAYS_OUT)
