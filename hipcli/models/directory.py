"""Whether a directory holds a model that can be loaded, and a fingerprint of it.

Reads headers and settings only: an 8 GB model is judged in milliseconds. Knows nothing of where the
directory came from.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hipcli.errors import ModelError

_INDEX = "model.safetensors.index.json"
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def check_directory(path: Path) -> int:
    """Checks config.json, tokenizer.json and every *.safetensors of a model and returns their size in bytes.

    Raises:
        ModelError: one of them is missing, damaged, cut short, or of a kind that hip does not open.
    """
    if not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"give the file itself: {ggufs[0]}" if ggufs else "a model directory has config.json, tokenizer.json and *.safetensors"
        raise ModelError(f"{path} is not a model directory: it has no config.json", hint)
    _json(path / "config.json")
    weights = weight_files(path)
    if not (path / "tokenizer.json").is_file():
        raise ModelError(
            f"{path} has no tokenizer.json",
            "save the model's tokenizer there with transformers: AutoTokenizer.from_pretrained(…).save_pretrained(…)",
        )
    _json(path / "tokenizer.json")
    for file in weights:
        _check_safetensors(file)
    return sum(file.stat().st_size for file in (*weights, path / "config.json", path / "tokenizer.json"))


def weight_files(path: Path) -> list[Path]:
    """The *.safetensors files of a model directory, in order: those the index names, where there is one.

    Raises:
        ModelError: there are none, or one that the index names is missing.
    """
    if (path / _INDEX).is_file():
        table = _json(path / _INDEX).get("weight_map")
        if not isinstance(table, dict) or not table:
            raise ModelError(f"{path / _INDEX} is damaged: it maps no weights")
        names = sorted({str(name) for name in table.values()})
        for name in names:
            if Path(name).name != name or not (path / name).is_file():
                raise ModelError(f"{path} is incomplete: its index names {name}, which is not there", "get the model again")
        return [path / name for name in names]
    found = sorted(path.glob("*.safetensors"))
    if found:
        return found
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in path.glob(pattern))
    if pickled:
        raise ModelError(
            f"{path} has its weights as {pickled[0]} only, a format that can run code when it is opened, so hip does not",
            "use a version of the model with *.safetensors",
        )
    raise ModelError(f"{path} has no *.safetensors", "get the model again")


def fingerprint(path: Path) -> str:
    """Hex digest that changes with the model: settings and tokenizer whole, weights by header, size and samples.

    Another training of the same shapes differs in every sample; reading it all would take minutes.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        if (path / name).is_file():
            digest.update(name.encode() + b"\0" + (path / name).read_bytes())
    for file in weight_files(path):
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with open(file, "rb") as weights:
            head = weights.read(8)
            digest.update(weights.read(int.from_bytes(head, "little")))
            for i in range(_SAMPLES):
                weights.seek(size * i // _SAMPLES)
                digest.update(weights.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {error}", "get the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is damaged: it is not a JSON object", "get the model again")
    return value


def _check_safetensors(path: Path) -> None:
    """A file's header must be JSON and account for every byte that follows it."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if 2 <= length <= size - 8 else b""
    if size < 200 and header == b"" and path.read_bytes().startswith(b"version https://git-lfs"):
        raise ModelError(f"{path} is a Git LFS pointer, not the weights themselves", "run `git lfs pull` in that directory")
    try:
        table = json.loads(header)
        end = max(entry["data_offsets"][1] for key, entry in table.items() if key != "__metadata__")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ModelError(f"{path} is damaged: its header cannot be read", "get the model again") from error
    if 8 + length + end != size:
        raise ModelError(f"{path} is damaged: it has {size:,} bytes instead of {8 + length + end:,}", "get the model again")
