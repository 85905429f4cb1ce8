"""Loads a causal language model through transformers and makes it attend our way, or refuses it by name.

Knows model files and architectures; no text, no documents.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from hipcli.attention import AttentionRuntime, bind, open_backend, take_over
from hipcli.cache.base import StoreShape
from hipcli.cache.resident import ResidentStore
from hipcli.dtype_probe import choose_dtype
from hipcli.errors import DoesNotFit, HipError, ModelError
from hipcli.fused import fuse_norms
from hipcli.kernels.rope import Rope
from hipcli.memory import free_bytes
from hipcli.settings import AttentionSettings

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
CHECK_TOKENS = 32


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be run by an Engine. trained_window: longest position it was trained on, in tokens."""

    name: str
    network: torch.nn.Module
    rope: Rope
    dtype: torch.dtype
    device: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    trained_window: int
    vocab: int
    parameters: int
    check_error: float

    @property
    def store_shape(self) -> StoreShape:
        """Of a store that keeps numbers as the model makes them."""
        return StoreShape(self.layers, self.kv_heads, self.head_dim, self.dtype, self.device)

    @property
    def kv_bytes_per_token(self) -> int:
        return self.store_shape.bytes_per_token

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state."""
        return self.network.config.hidden_size

    @property
    def intermediate_size(self) -> int:
        """Width inside the MLP."""
        return self.network.config.intermediate_size

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def read_config(path: Path):
    """The model's configuration. Raises ModelError."""
    from transformers import AutoConfig

    with named_faults(f"the model in {path} cannot be read"), quiet():
        return AutoConfig.from_pretrained(path, trust_remote_code=False)


@contextmanager
def named_faults(what: str, hint: str | None = None):
    """Turn what libraries raise over damaged files, of whatever type, into a ModelError that begins with `what`."""
    try:
        yield
    except (HipError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{what}: {first_line(error)}", hint) from error


def refuse_unsupported(config, name: str) -> None:
    """Raise ModelError naming the first thing about this architecture that our attention cannot honour."""
    reason = unsupported(config)
    if reason:
        hint = f"use a Llama, Mistral, Qwen2 or Qwen3 model ({', '.join(FAMILIES)})"
        raise ModelError(f"the model {name} cannot be used: {reason}", hint)


def unsupported(config) -> str | None:
    """Why a configuration cannot work, None when it can."""
    if config.model_type not in FAMILIES:
        return f"its architecture {config.model_type!r} is not supported"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return "it has sliding-window layers"
    if config.model_type == "mistral" and getattr(config, "sliding_window", None):
        return f"it has a sliding window of {config.sliding_window} tokens"
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        return f"its rotary scaling {kind!r} is not supported"
    partial = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1
    if partial != 1:
        return "it rotates only part of each head"
    if getattr(config, "quantization_config", None):
        return "its weights are quantised in a format that needs its own kernels"
    return None


def load_model(path: Path, *, dtype: str = "auto", device: str = "cpu", name: str | None = None, backend: str = "auto") -> LoadedModel:
    """Load the model directory `path`, take over its attention and check it against the stock model.

    dtype: "auto" (probed on a CPU), "float32", "bfloat16" or "float16". device: "cpu" or "cuda". backend: that of the
    check. Raises ModelError for anything that cannot work, DoesNotFit for weights larger than the GPU's free memory.
    """
    name = name or Path(path).name
    with named_faults(f"the model {name} cannot be used"):
        refuse_unsupported(read_config(path), name)
    chosen = choose_dtype(device) if dtype == "auto" else getattr(torch, dtype)
    network = place(load_network(path, name, chosen).eval(), name, device)
    with named_faults(f"the model {name} cannot be run"):
        return checked(network, name, chosen, device, backend)


def place(network: torch.nn.Module, name: str, device: str) -> torch.nn.Module:
    """Move a network to its device. Raises DoesNotFit, before anything is moved, when its weights exceed the free memory."""
    if device == "cpu":
        return network
    need, free = sum(weight.numel() * weight.element_size() for weight in network.parameters()), free_bytes(device)
    if need > free:
        sizes = f"{need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB of the GPU's memory are free"
        raise DoesNotFit(f"the weights of {name} take {sizes}", "run with --device cpu, or use a smaller model")
    return network.to(device)


def load_network(path: Path, name: str, dtype: torch.dtype):
    """The stock model with every weight from the files. Raises ModelError, naming a weight that is missing or does not fit."""
    from transformers import AutoModelForCausalLM

    options = {"attn_implementation": "sdpa", "use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
    with named_faults(f"the model {name} cannot be loaded", "fetch or copy its files again"), quiet():
        network, report = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **options)
    # transformers would fill what is missing with random numbers
    for kind, fault in (("missing_keys", "lacks"), ("mismatched_keys", "has the wrong shape for"), ("unexpected_keys", "has no place for")):
        names = sorted(item if isinstance(item, str) else item[0] for item in report[kind])
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(
                f"the model {name} {fault} the weight {names[0]}{more}", "its config.json and its weights belong to different models"
            )
    return network


@torch.inference_mode()
def checked(network, name: str, dtype: torch.dtype, device: str, backend: str = "auto") -> LoadedModel:
    """Take over the attention of a stock network and compare 32 tokens before and after. Raises ModelError.

    backend: computes our side of the comparison, as in AttentionSettings.
    """
    config = network.config
    ids = torch.randint(0, config.vocab_size, (1, CHECK_TOKENS), generator=torch.Generator().manual_seed(0)).to(device)
    stock = network(input_ids=ids, use_cache=False).logits.float()
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = take_over(network, head_dim)
    if device != "cpu":
        fuse_norms(network)
    fields = (config.num_hidden_layers, heads, config.num_key_value_heads, head_dim)
    sizes = (config.max_position_embeddings, config.vocab_size, parameter_count(network))
    model = LoadedModel(name, network, rope, dtype, device, *fields, *sizes, 0.0)
    ours = self_check_logits(model, ids, backend)
    error = float((ours - stock).norm() / stock.norm())
    if not error <= check_tolerance(dtype, model.layers):
        raise ModelError(f"the model {name} fails its self-check: logits differ from the stock model by {error:.1e}")
    return LoadedModel(name, network, rope, dtype, device, *fields, *sizes, error)


def parameter_count(network) -> int:
    """Weights of a network, tied ones once."""
    return sum(weight.numel() for weight in network.parameters())


def check_tolerance(dtype: torch.dtype, layers: int) -> float:
    """Largest relative difference that rounding explains; a wrong angle or mask is orders above it.

    A few roundings a layer in the model's own format, and long sums in fp32 taken in another order; independent errors
    grow with the square root of the layers they pass.
    """
    return (4 * torch.finfo(dtype).eps + 1e-5) * layers**0.5


def self_check_logits(model: LoadedModel, ids: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """Logits of every position through our attention, half prefilled at once and the rest token by token."""
    opened = open_backend(AttentionSettings(backend=backend), model.rope, model.trained_window, model.device)
    runtime = AttentionRuntime(opened, ResidentStore(model.store_shape))
    bind(model.network, runtime)
    half = ids.shape[1] // 2
    logits = [model.network(input_ids=ids[:, :half], position_ids=positions(0, half, ids), use_cache=False).logits]
    for at in range(half, ids.shape[1]):
        runtime.decode_step = at - half
        step = ids[:, at : at + 1]
        logits.append(model.network(input_ids=step, position_ids=positions(at, at + 1, ids), use_cache=False).logits)
    bind(model.network, None)
    return torch.cat(logits, dim=1).float()


def positions(start: int, stop: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(start, stop, device=like.device)[None]


def first_line(error: Exception) -> str:
    """The first line of a library's message, without its closing full stop."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


@contextmanager
def quiet():
    """Keep transformers' own progress bars and notices off stderr."""
    from transformers.utils import logging as hf_logging

    level, shown = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.CRITICAL)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if shown:
            hf_logging.enable_progress_bar()
