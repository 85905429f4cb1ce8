"""The 8-bit coding of a model's keys and values, from its weights alone. Knows transformers' modules; no ids, no text.

A normed hidden state has length sqrt(N) before its gain g, so a channel of a projection with weights w never exceeds
|w * g| sqrt(N) around its bias (Cauchy-Schwarz): a scale that reaches that far clips nothing, and typical numbers, sqrt(N)
smaller, still lie far above the smallest one of full precision. The bias, which in Qwen2 is many times larger than what
varies, is the centre. Where keys are normed head by head (Qwen3), their reach is sqrt(D) times that norm's gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hipcli.errors import UsageError
from hipcli.kernels.coding import CODE, Coding
from hipcli.settings import AttentionSettings, KvSettings

if TYPE_CHECKING:
    from hipcli.model import LoadedModel


def store_format(model: LoadedModel, settings: AttentionSettings, kv: KvSettings) -> tuple[torch.dtype, list[Coding] | None]:
    """In what a run keeps keys and values, and what that means in each layer, None where they stand for themselves.

    Raises UsageError for a format that this run cannot have.
    """
    if kv.dtype == "fp8":
        refuse_unable(model.device, settings)
        return CODE, codings(model.network, model.kv_heads)
    if kv.dtype == "bf16" and model.dtype != torch.bfloat16:
        raise UsageError(f"--kv-dtype bf16 cannot keep what a model computes in {model.dtype_name}", "give --dtype bfloat16 too")
    return model.dtype, None


def refuse_unable(device: str, settings: AttentionSettings) -> None:
    """Raise UsageError where no kernel reads codes."""
    if device == "cpu" or settings.mode == "dense" or settings.backend not in ("auto", "triton"):
        raise UsageError("--kv-dtype fp8 needs an NVIDIA GPU and sparse attention", "leave out --kv-dtype")
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < (8, 9):
        raise UsageError(
            f"--kv-dtype fp8 needs a GPU of compute capability 8.9 or more; this one has {major}.{minor}", "leave out --kv-dtype"
        )


@torch.inference_mode()
def codings(network: torch.nn.Module, kv_heads: int) -> list[Coding]:
    """Coding of every layer of a causal LM of the supported families."""
    return [_coding(layer, kv_heads) for layer in network.model.layers]


def _coding(layer: torch.nn.Module, kv_heads: int) -> Coding:
    attention, gain = layer.self_attn, layer.input_layernorm.weight.float()
    key_reach, key_centre = _reach(attention.k_proj, gain, kv_heads)
    value_reach, value_centre = _reach(attention.v_proj, gain, kv_heads)
    norm = getattr(attention, "k_norm", None)
    if norm is not None:
        key_reach = (norm.weight.float().abs() * norm.weight.numel() ** 0.5).expand_as(key_reach)
        key_centre = torch.zeros_like(key_centre)
    return Coding.within(key_reach, key_centre, value_reach, value_centre)


def _reach(projection: torch.nn.Linear, gain: torch.Tensor, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """How far a channel gets from its centre at most, and that centre: [KV, D] each."""
    reach = (projection.weight.float() * gain).norm(dim=1) * gain.numel() ** 0.5
    bias = torch.zeros_like(reach) if projection.bias is None else projection.bias.float()
    return reach.view(kv_heads, -1), bias.view(kv_heads, -1)
