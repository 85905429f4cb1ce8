"""GGUF file → a directory that transformers loads: config.json, model.safetensors, tokenizer.json.

Every tensor and every setting is either carried over or refused by name; nothing is dropped quietly.
Tensors stream through in slabs of rows, so memory stays small whatever the model. Knows nothing of downloads or of where
models are kept.

Storage: F32, F16 and BF16 tensors keep their type. Dequantised values are a 16-bit scale times a small
integer (plus an offset), which neither fp16 nor bf16 holds exactly, so they are stored in fp32; above
`EXACT_VALUES` of them in fp16, whose rounding (at most 2^-11 of a value) is far below the quantisation's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.errors import ModelError
from hipcli.models.gguf_config import check_tensors, config_of, hf_name, rotary_factors_name
from hipcli.models.gguf_tokenizer import stop_ids, write_tokenizer
from hipcli.models.progress import ProgressSink, phase
from hipcli.models.store import require_space

if TYPE_CHECKING:
    import numpy as np

EXACT_VALUES = 1_000_000_000
SLAB_VALUES = 1 << 23
_WIDTH = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class _Plan:
    """One tensor on its way: its name and type in safetensors, its shape, and the reader's record of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Any

    @property
    def nbytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * _WIDTH[self.dtype]


def convert_gguf(gguf: Path, out: Path, progress: ProgressSink) -> str:
    """Converts `gguf` into the existing directory `out` and returns the main type of the weights stored.

    Raises:
        ModelError: the file is damaged, cut short, or of an architecture, tensor or tokenizer hip cannot carry over.
        DiskError: `out` has no room for it.
        OSError: `out` cannot be written.
    """
    with phase(progress, f"reading {gguf.name}"):
        meta, tensors = read_gguf(gguf)
        config = config_of(gguf.name, meta, tensors)
        check_tensors(gguf.name, config, tensors)
        write_tokenizer(gguf, meta, out)
    plans = _plan(tensors)
    config["dtype"] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[_main_type(plans)]
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", _generation(config, stop_ids(meta)))
    total = sum(plan.nbytes for plan in plans)
    require_space(out, total)
    with phase(progress, f"converting {gguf.name}", total) as advance:
        with open(out / "model.safetensors", "wb") as file:
            file.write(_header(plans))
            for data in _converted(gguf.name, plans, config):
                file.write(data)
                advance(len(data))
    return _main_type(plans)


def read_gguf(gguf: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's metadata as plain values, and its tensors by name, not read yet.

    Raises:
        ModelError: not a GGUF file, damaged, or one part of several.
    """
    from gguf import GGUFReader

    with open(gguf, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{gguf.name} is not a GGUF file")
    try:
        reader = GGUFReader(gguf)
        meta = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ModelError(f"{gguf.name} is damaged or cut short", "get the file again") from error
    if meta.get("split.count", 1) > 1:
        raise ModelError(
            f"{gguf.name} is one of {meta['split.count']} parts of a model",
            "join the parts with llama.cpp's `llama-gguf-split --merge` and give the joined file",
        )
    return meta, tensors


def _plan(tensors: Mapping[str, Any]) -> list[_Plan]:
    exact = {"F32", "F16", "BF16"}
    quantised = sum(int(t.n_elements) for t in tensors.values() if t.tensor_type.name not in exact)
    loose = "F32" if quantised <= EXACT_VALUES else "F16"
    return [
        _Plan(
            hf_name(name),
            tensor.tensor_type.name if tensor.tensor_type.name in exact else loose,
            tuple(int(size) for size in reversed(tensor.shape)),  # ggml lists the fastest dimension first
            tensor,
        )
        for name, tensor in tensors.items()
        if name != rotary_factors_name
    ]


def _main_type(plans: list[_Plan]) -> str:
    return max(_WIDTH, key=lambda dtype: sum(plan.nbytes for plan in plans if plan.dtype == dtype))


def _header(plans: list[_Plan]) -> bytes:
    """The head of a safetensors file: its length, then names, types, shapes and offsets as JSON."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for plan in plans:
        table[plan.name] = {"dtype": plan.dtype, "shape": plan.shape, "data_offsets": [offset, offset + plan.nbytes]}
        offset += plan.nbytes
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # the data that follows is aligned
    return len(text).to_bytes(8, "little") + text


def _converted(name: str, plans: list[_Plan], config: Mapping[str, Any]) -> Iterator[bytes]:
    """The data section of the safetensors file, slab by slab."""
    import numpy as np
    from gguf import dequantize

    for plan in plans:
        heads = _rotated_heads(plan.name, config)
        for slab in _slabs(plan, whole=heads is not None):
            try:
                values = np.asarray(dequantize(slab, plan.source.tensor_type), dtype=np.float32).reshape(-1, *plan.shape[1:])
            except (ValueError, NotImplementedError) as error:
                raise ModelError(f"{name}: tensor {plan.source.name} cannot be read: {error}") from error
            data = _stored(values if heads is None else _rotary_halves(values, heads), plan.dtype)
            if not np.isfinite(values).all() or (plan.dtype == "F16" and not np.isfinite(data).all()):
                raise ModelError(f"{name} is damaged: tensor {plan.source.name} holds values that are not numbers", "get the file again")
            yield data.tobytes()


def _slabs(plan: _Plan, whole: bool) -> Iterator[Any]:
    rows = plan.source.data
    step = len(rows) if whole or len(plan.shape) == 1 else max(1, SLAB_VALUES // plan.shape[-1])
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _rotated_heads(name: str, config: Mapping[str, Any]) -> int | None:
    """The number of heads in a tensor whose rows GGUF keeps in another order: Llama's q and k."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    return heads.get(name.split(".")[-2]) if config["model_type"] == "llama" else None


def _rotary_halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Undoes GGUF's interleaving of the rotated dimensions: pairs (0, 1), (2, 3), … back to two halves."""
    # [heads · D, …] → [heads, D / 2, 2, …] → [heads, 2, D / 2, …]
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _stored(values: np.ndarray, dtype: str) -> np.ndarray:
    import numpy as np

    if dtype == "BF16":  # these came from bf16, so their low half is zero
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):  # an overflow is reported by name later
        return values.astype(np.float32 if dtype == "F32" else np.float16)


def _generation(config: Mapping[str, Any], stops: list[int]) -> dict[str, Any]:
    keys = ("bos_token_id", "pad_token_id")
    generation: dict[str, Any] = {key: config[key] for key in keys if key in config}
    if stops:
        generation["eos_token_id"] = stops
    return generation


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
