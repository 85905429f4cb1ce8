"""A GGUF file's settings and tensor names in transformers' terms, for the dense families hip runs.

What has no counterpart is refused by name. Knows nothing of tensor values, except the rotary factors that
some files carry in place of a setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hipcli.errors import ModelError

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# settings that change the arithmetic in ways these families' classes cannot express
_REFUSED = ("expert_count", "attention.sliding_window", "attention.scale", "logit_scale", "residual_scale", "embedding_scale")

rotary_factors_name = "rope_freqs.weight"
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str | None:
    """The transformers name of a GGUF tensor, None if these families have no such tensor."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer:
        part = _LAYER.get(layer[2])
        return part and f"model.layers.{layer[1]}.{part}.{layer[3]}"
    stem, _, kind = name.partition(".")
    return f"{_TOP[stem]}.weight" if stem in _TOP and kind == "weight" else None


def config_of(name: str, meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a GGUF file. name: the file's, for messages.

    Raises:
        ModelError: another architecture, or a setting that cannot be carried over.
    """
    family = meta.get("general.architecture")
    if family not in _CLASSES:
        raise ModelError(
            f"{name} is of the architecture {family!r}, which hip cannot convert",
            f"GGUF files of {', '.join(_CLASSES)} (Mistral is llama) can be used",
        )
    get = _getter(name, family, meta)
    for key in _REFUSED:
        if meta.get(f"{family}.{key}"):
            raise ModelError(f"{name} uses {family}.{key}, which hip cannot convert")
    heads = get("attention.head_count")
    config = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": _head_dim(name, get),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _decimal(get("attention.layer_norm_rms_epsilon")),
        "vocab_size": int(_tensor(name, tensors, "token_embd.weight").shape[-1]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": _rope(name, get, tensors),
    }
    if len(meta.get("tokenizer.ggml.tokens", ())) > config["vocab_size"]:
        raise ModelError(f"{name} is damaged: it has more tokens than embeddings")
    if family == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    config.update(_token_ids(meta))
    return config


def check_tensors(name: str, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Holds the file's tensors against what its settings call for: nothing missing, nothing over, every shape right.

    Raises:
        ModelError: naming the first tensor at fault.
    """
    layers = {int(found[1]) for tensor in tensors if (found := re.match(r"blk\.(\d+)\.", tensor))}
    if layers != set(range(len(layers))) or len(layers) != config["num_hidden_layers"]:
        raise ModelError(f"{name} is damaged: it states {config['num_hidden_layers']} layers and holds {len(layers)}")
    wanted = {f"blk.{i}.{part}": shape for i in layers for part, shape in _layer_shapes(config).items()}
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    wanted |= {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise ModelError(f"{name} lacks the tensor {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    wanted["output.weight"] = (vocab, hidden)
    if surplus := sorted(tensors.keys() - wanted.keys() - {rotary_factors_name}):
        raise ModelError(f"{name} holds the tensor {surplus[0]}, which hip cannot convert")
    for tensor in sorted(wanted.keys() & tensors.keys()):
        shape = tuple(int(size) for size in reversed(tensors[tensor].shape))
        if shape != wanted[tensor]:
            raise ModelError(f"{name} is damaged: its tensor {tensor} has the shape {shape} instead of {wanted[tensor]}")


def _layer_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, as [out, in], by GGUF name."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    attention = {"attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q)}
    mlp = {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    shapes = {f"{part}.weight": shape for part, shape in {**attention, **mlp}.items()}
    shapes |= {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    family = config["model_type"]
    if family == "qwen3":
        shapes |= {"attn_q_norm.weight": (dim,), "attn_k_norm.weight": (dim,)}
    biased = [*attention] if config.get("attention_bias") else ["attn_q", "attn_k", "attn_v"] if family == "qwen2" else []
    biased += mlp if config.get("mlp_bias") else []
    return shapes | {f"{part}.bias": shapes[f"{part}.weight"][:1] for part in biased}


def _getter(name: str, family: str, meta: Mapping[str, Any]) -> Callable[..., Any]:
    def get(key: str, default: Any = ...) -> Any:
        value = meta.get(f"{family}.{key}", default)
        if value is ...:
            raise ModelError(f"{name} does not state {family}.{key}")
        if isinstance(value, list):
            raise ModelError(f"{name} has a different {family}.{key} in each layer, which hip cannot convert")
        return value

    return get


def _tensor(name: str, tensors: Mapping[str, Any], wanted: str) -> Any:
    if wanted not in tensors:
        raise ModelError(f"{name} lacks the tensor {wanted}")
    return tensors[wanted]


def _head_dim(name: str, get: Callable[..., Any]) -> int:
    head_dim = get("attention.key_length", None) or get("embedding_length") // max(1, get("attention.head_count"))
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_dim) != head_dim:
            raise ModelError(f"{name} has {key} {get(key)} beside heads of {head_dim}, which hip cannot convert")
    return head_dim


def _rope(name: str, get: Callable[..., Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    theta = _decimal(get("rope.freq_base", 10000.0))
    kind = get("rope.scaling.type", "none")
    factor = _decimal(get("rope.scaling.factor", get("rope.scale_linear", 0.0)))
    if rotary_factors_name in tensors:
        return _llama3(name, theta, tensors[rotary_factors_name].data.astype("float64").ravel())
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = get("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": original}
    raise ModelError(f"{name} scales its positions by {kind!r}, which hip cannot convert")


def _llama3(name: str, theta: float, factors: Any) -> dict[str, Any]:
    """Llama 3's scaling, which GGUF keeps as one divisor per frequency, found again from its published form."""
    import numpy as np

    low, high, original, factor = 1.0, 4.0, 8192, float(round(factors.max(), 3))
    wavelengths = 2 * np.pi * theta ** (np.arange(len(factors)) / len(factors))
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-3):
        raise ModelError(f"{name} scales its positions by factors of its own ({rotary_factors_name}), which hip cannot convert")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _token_ids(meta: Mapping[str, Any]) -> dict[str, int]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {key: meta.get(f"tokenizer.ggml.{short}_token_id") for key, short in keys.items()}
    return {key: value for key, value in found.items() if value is not None}


def _decimal(value: float) -> float:
    """The shortest decimal a 32-bit float stands for: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))
