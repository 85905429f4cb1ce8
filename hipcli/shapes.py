"""Published model shapes with random weights: what a speed measurement needs of a model, without its download.

Knows sizes and devices. The weights are noise, so nothing such a model says means anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from hipcli.errors import DoesNotFit, UsageError
from hipcli.model import LoadedModel, checked, named_faults, parameter_count, quiet

WEIGHT_SCALE = 0.02  # standard deviation that these families themselves start training from


@dataclass(frozen=True)
class Shape:
    """Sizes as published with the model of that name. rope: rotary parameters in transformers' own words."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    trained_window: int
    tied: bool
    norm_eps: float
    rope: dict[str, Any] = field(default_factory=dict)

    def config(self):
        """The configuration transformers builds the network from."""
        from transformers import LlamaConfig, Qwen2Config

        kind = {"llama": LlamaConfig, "qwen2": Qwen2Config}[self.family]
        return kind(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab,
            max_position_embeddings=self.trained_window,
            tie_word_embeddings=self.tied,
            rms_norm_eps=self.norm_eps,
            rope_parameters=dict(self.rope),
        )


def _plain(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip


SHAPES = {
    "llama-3.1-8b": Shape("llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, False, 1e-5, _llama3(8.0)),
    "qwen2.5-7b": Shape("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 131072, False, 1e-6, _plain(1e6)),
    "llama-3.2-1b": Shape("llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, True, 1e-5, _llama3(32.0)),
    "qwen2.5-0.5b": Shape("qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, True, 1e-6, _plain(1e6)),
    "smollm2-135m": Shape("llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, True, 1e-5, _plain(1e5)),
}


def require_shape(name: str) -> None:
    """Refuse a shape that is not listed; raises UsageError."""
    if name not in SHAPES:
        raise UsageError(f"--shape must be one of {', '.join(SHAPES)}, got {name!r}")


def random_model(name: str, device: str, dtype: torch.dtype, free_bytes: int) -> LoadedModel:
    """The model of SHAPES[name] with random weights, attending our way. Raises UsageError, DoesNotFit, ModelError.

    free_bytes: memory the weights may take on `device`.
    """
    require_shape(name)
    with named_faults(f"the shape {name} cannot be built"), torch.inference_mode(False):
        network = empty_network(SHAPES[name], dtype)
        need = parameter_count(network) * dtype.itemsize
        if need > free_bytes:
            hint = "choose a smaller --shape"
            raise DoesNotFit(f"the weights of {name} take {need / 2**30:.1f} GiB and {free_bytes / 2**30:.1f} GiB are free", hint)
        fill_weights(network, device)
        return checked(network.eval().requires_grad_(False), name, dtype, device)


def empty_network(shape: Shape, dtype: torch.dtype):
    """The network without memory for its weights: sizes only."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), quiet():
        return AutoModelForCausalLM.from_config(shape.config(), dtype=dtype, attn_implementation="sdpa")


@torch.no_grad()
def fill_weights(network, device: str) -> None:
    """Give every weight memory on `device` and noise made there; what the network computes itself is computed again."""
    network.to_empty(device=device)
    # memory of its own was given to each of two tied weights
    network.tie_weights()
    generator = torch.Generator(device).manual_seed(0)
    for name, weight in network.named_parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, WEIGHT_SCALE, generator=generator)
        else:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
    rotary = network.model.rotary_emb
    with torch.device(device):
        network.model.rotary_emb = type(rotary)(config=network.config)
