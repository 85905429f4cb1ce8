"""What a session depends on, by name: the same fields give the same keys and values, other fields another session.

Two groups. Those of the computation decide what a model makes of given ids; sessions that agree in them may share
chunks. Those of the text decide the ids. Knows nothing of tensors or folders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.sessions.weights import weights_digest

if TYPE_CHECKING:
    from hipcli.document import Document
    from hipcli.engine import Engine
    from hipcli.options import RunOptions

FORMAT = 1  # raised when files or manifests are laid out differently
COMPUTATION = 1  # raised when hip would compute other keys and values from the same ids and settings
KEY_LENGTH = 16
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class Fingerprint:
    """computation, text: field → what it is now, as JSON values."""

    computation: Mapping[str, Any]
    text: Mapping[str, Any]

    @property
    def fields(self) -> dict[str, Any]:
        """All fields, those that tell users most first."""
        return {**self.text, **self.computation}

    @property
    def key(self) -> str:
        """The name of the session, hex."""
        return key_of(self.fields)


def key_of(fields: Mapping[str, Any]) -> str:
    """The name of the session with these fields."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:KEY_LENGTH]


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Each field that differs, with both values, in words; empty when all agree."""
    names = [name for name in [*now, *(name for name in stored if name not in now)] if stored.get(name) != now.get(name)]
    return [_difference(name, stored.get(name), now.get(name)) for name in names]


def _difference(name: str, stored: Any, now: Any) -> str:
    """One field's; of a field that has fields, those that differ, so that shortening cuts none of them."""
    if isinstance(stored, dict) and isinstance(now, dict):
        return f"{name}: {', '.join(differences(stored, now))}"
    return f"{name} was {_short(stored)} and is {_short(now)}"


def _short(value: Any) -> str:
    text = "not recorded" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:48]}…"


def fingerprint_of(
    document: Document, options: RunOptions, model_dir: Path, prefix_ids: Sequence[int], engine: Engine, cache_dir: Path
) -> Fingerprint:
    """The fields of a run. model_dir: the model's files. prefix_ids: what stands before the document."""
    from hipcli.readers import READERS_VERSION
    from hipcli.readers.normalize import NORMALIZER_VERSION

    model, formats = engine.model, {source.format for source in document.sources}
    engines = {name: metadata.version(name) for name in ("pypdf", "pypdfium2")} if "pdf" in formats else {}
    text = {
        "document": [source.sha256 for source in document.sources],
        "source types": [source.format for source in document.sources],
        # only the names that the model is shown
        "file names": [source.name for source in document.sources[1:]],
        "encoding": [source.encoding for source in document.sources],
        "readers": {"version": READERS_VERSION, "normaliser": NORMALIZER_VERSION, **engines},
        "tokenizer": _digest_files(model_dir),
        "prompt": hashlib.sha256(json.dumps(list(prefix_ids)).encode()).hexdigest(),
    }
    computation = {
        "model": weights_digest(model_dir, cache_dir),
        "attention": engine.attention,
        "attention plan": asdict(engine.runtime.backend.plan),
        "dtype": model.dtype_name,
        "keys and values": engine.kv_dtype,
        "device": model.device,
        # a library of another version may round otherwise
        "libraries": {name: metadata.version(name) for name in ("torch", "transformers")},
        "computation": COMPUTATION,
        "format": FORMAT,
    }
    # as it will be read back: tuples become lists
    return Fingerprint(json.loads(json.dumps(computation)), json.loads(json.dumps(text)))


def _digest_files(model_dir: Path) -> str:
    digest = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        if (path := model_dir / name).is_file():
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
