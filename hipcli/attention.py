"""Where kernels, cache and model meet: each layer's attention stores its new K and V, then reads what the backend picks.

The only file that uses kernels and cache together. Knows tensors and layers; no ids, no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import AttentionInterface

from hipcli.cache.base import KVStore
from hipcli.errors import UsageError
from hipcli.fused import skip_empty_rotation
from hipcli.kernels.backend import Backend
from hipcli.kernels.backends import backend_class
from hipcli.kernels.coding import Coding
from hipcli.kernels.presets import preset
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan
from hipcli.settings import AttentionSettings

Watch = Callable[[int, torch.Tensor, torch.Tensor], None]
ATTENTION_NAME = "hip"
DENSE_BELOW = 8192  # below this, and below the trained window, dense attention is exact and cheap


def preset_name(settings: AttentionSettings, device: str) -> str:
    """The preset of these settings, with what "auto" stands for on this device."""
    name, colon, changes = settings.preset.partition(":")
    if name == "auto":
        name = "cpu" if device == "cpu" else "default"
    return name + colon + changes


def resolve_plan(settings: AttentionSettings, device: str) -> PrunePlan:
    """The plan that settings name. Raises UsageError naming the presets there are."""
    try:
        return preset(preset_name(settings, device), settings.share)
    except ValueError as error:
        raise UsageError(str(error)) from error


def open_backend(
    settings: AttentionSettings, rope: Rope, trained_window: int, device: str, codings: Sequence[Coding] | None = None
) -> Backend:
    """The one place where a backend is chosen. codings: of every layer's stored keys and values, None when they are not coded."""
    dense_below = settings.dense_below
    if dense_below is None:
        dense_below = min(DENSE_BELOW, trained_window)
    name = settings.backend
    if name == "auto":
        name = "triton" if device.startswith("cuda") else "torch"
    if settings.mode == "dense":
        name = "dense"
    return backend_class(name)(resolve_plan(settings, device), rope, dense_below, codings)


@dataclass(frozen=True)
class DeviceStep:
    """A decode step that a CUDA graph can hold: only the device knows its position.

    position: [1] int32, of the new token. stages: per layer the first stage to refresh, None to reuse its list.
    states: per layer, alive as long as the graph. dense: attend to every key. scanned: per layer where a full refresh finds the
    keys, None for the store's buffers.
    """

    position: torch.Tensor
    stages: Sequence[int | None]
    states: Sequence[object]
    dense: bool
    scanned: Sequence[torch.Tensor | None]


class AttentionRuntime:
    """Attention of all layers over one store.

    decode_step: number of the decode step the next call of the model makes, None while prefilling. device_step: set
    while the model's call is one that the device alone follows; it takes the place of decode_step. question: whether the
    new tokens ask about those before them. watch: is shown every layer's queries and keys of a question, (layer,
    q [H, n, D], keys [KV, T, D]).
    """

    def __init__(self, backend: Backend, store: KVStore) -> None:
        self.backend, self.store, self.question = backend, store, False
        self.question_backend = backend.for_questions()
        self.decode_step: int | None = None
        self.device_step: DeviceStep | None = None
        self.watch: Watch | None = None
        self.reset_states()

    def reset_states(self) -> None:
        """Forget what layers keep between calls; needed after tokens were cut off."""
        self.states = [self.backend.new_state() for _ in range(self.store.shape.layers)]

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q: [H, n, D], k, v: [KV, n, D] of the new tokens, un-rotated -> [H, n, D]."""
        if self.device_step is not None:
            step, (keys, values) = self.device_step, self.store.buffers(layer)
            stage, state = step.stages[layer], step.states[layer]
            where = {"dense": step.dense, "far": self.store.far(layer), "scanned": step.scanned[layer]}
            return self.backend.decode_at(layer, q, k, v, keys, values, state, stage, step.position, **where)
        held = self.store.view(layer)[0].shape[1]
        self.store.append(layer, *self.backend.to_store(layer, k, v, held))
        keys, values = self.store.view(layer)
        if self.decode_step is None:
            if self.watch is not None and self.question:
                self.watch(layer, q, keys)
            backend = self.question_backend if self.question else self.backend
            return backend.prefill(layer, q, keys, values, self.states[layer])
        plan, layers = self.backend.plan, self.store.shape.layers
        stage = plan.refresh_stage(self.decode_step, layer, layers)
        return self.backend.decode(layer, q, keys, values, self.states[layer], stage)


def hip_attention(module, query, key, value, attention_mask=None, scaling=None, **kwargs):
    """The function transformers calls in each layer: query [1, H, n, D] -> [1, n, H, D]."""
    q = query[0]
    natural = 1 / math.sqrt(q.shape[-1])
    if scaling is not None and abs(scaling - natural) > 1e-9:
        q = q * (scaling / natural)
    o = module.hip_runtime.attend(module.layer_idx, q, key[0], value[0])
    return o.transpose(0, 1)[None], None


class NoRotation(torch.nn.Module):
    """Stands in for a model's rotary module, so that q and k arrive un-rotated, bit for bit.

    Gives empty phases where the model's code skips them, else cos 1 and sin 0.
    """

    def __init__(self, head_dim: int, skipped: bool) -> None:
        super().__init__()
        self.head_dim, self.skipped = head_dim, skipped

    def forward(self, x: torch.Tensor, position_ids=None, **kwargs):
        shape = (0,) if self.skipped else (1, x.shape[1], self.head_dim)
        return x.new_ones(shape), x.new_zeros(shape)


def take_over(model, head_dim: int) -> Rope:
    """Make `model` (a causal LM of transformers) call hip_attention with un-rotated q and k.

    Returns the rotary table of the module that was replaced, so that Llama-3, YaRN and linear scaling keep working.
    """
    AttentionInterface.register(ATTENTION_NAME, hip_attention)
    rotary = model.model.rotary_emb
    rope = Rope(rotary.inv_freq, float(getattr(rotary, "attention_scaling", 1.0)))
    model.model.rotary_emb = NoRotation(head_dim, skip_empty_rotation(rotary))
    model.config._attn_implementation = ATTENTION_NAME
    return rope


def bind(model, runtime: AttentionRuntime | None) -> None:
    """Let the model's layers attend through `runtime`."""
    for layer in model.model.layers:
        layer.self_attn.hip_runtime = runtime
