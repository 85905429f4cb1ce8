"""A model's tokenizer.json, and the variants of it that a prompt needs.

As it stands it recognises control tokens, for text of the template. Without control tokens it is for text of
a document. Without prefix space it is for text that continues another. Knows nothing of documents.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.errors import ModelError
from hipcli.tokens.bpe import is_byte_level, merge_pairs

if TYPE_CHECKING:
    import tokenizers

Json = dict[str, Any]


def read_spec(model_dir: Path) -> Json:
    """The parsed tokenizer.json of a model directory.

    Raises:
        ModelError: it is missing, or is not a tokenizer.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"the model in {model_dir} has no tokenizer.json",
            hint="point --model to a complete directory in the transformers format, or fetch the model again",
        )
    spec = read_json(path)
    if not isinstance(spec.get("model"), dict) or "vocab" not in spec["model"]:
        raise ModelError(f"{path} is damaged: it holds no vocabulary", hint="fetch the model again")
    # older files leave the kind out
    spec["model"].setdefault("type", "BPE" if "merges" in spec["model"] else "WordPiece")
    return spec


def read_json(path: Path) -> Json:
    """A JSON object from a file; an empty one where there is no such file.

    Raises:
        ModelError: the file cannot be read or holds something else.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise ModelError(f"{path} is damaged: {fault}", hint="fetch the model again") from fault
    if not isinstance(value, dict):
        raise ModelError(f"{path} is damaged: it holds no JSON object", hint="fetch the model again")
    return value


def build_backend(spec: Json, *, prefix_space: bool = True) -> tokenizers.Tokenizer:
    """A tokenizer from a parsed tokenizer.json.

    Args:
        spec: tokenizer.json, or its variant without control tokens.
        prefix_space: put a space before a text where the model's tokenizer does.

    Raises:
        ModelError: the library does not accept it.
    """
    from tokenizers import Tokenizer

    spec = {**spec, "truncation": None, "padding": None}
    if not prefix_space:
        for part in ("normalizer", "pre_tokenizer"):
            spec[part] = _without_prefix_space(copy.deepcopy(spec.get(part)))
    try:
        return Tokenizer.from_str(json.dumps(spec))
    # the library raises bare Exception
    except Exception as fault:
        raise ModelError(f"the model's tokenizer.json is damaged: {fault}", hint="fetch the model again") from fault


def special_ids(spec: Json) -> frozenset[int]:
    """Ids that may never stand for text of a document; the unknown token may, where a vocabulary needs it."""
    # a byte-level vocabulary has no use for it, and some name their end of text so
    unknown = set() if is_byte_level(spec) else {spec["model"].get("unk_token"), spec["model"].get("unk_id")}
    specials = [token for token in spec.get("added_tokens") or () if token["special"]]
    return frozenset(token["id"] for token in specials if not unknown & {token["content"], token["id"]})


def without_control(spec: Json) -> Json:
    """The same without added tokens, and with special ones that are in the vocabulary out of reach of any text."""
    reserved = special_ids(spec)
    names = {token["content"] for token in spec.get("added_tokens") or () if token["id"] in reserved}
    model = dict(spec["model"])
    if is_byte_level(spec):
        model["unk_token"] = None
    if model["type"] == "BPE" and names & model["vocab"].keys():
        model["vocab"] = {token: token_id for token, token_id in model["vocab"].items() if token not in names}
        model["merges"] = [[left, right] for left, right in merge_pairs(model) if not names & {left, right, left + right}]
    elif model["type"] == "Unigram":
        # the lattice takes any piece it finds in the text, so these get a name that no text holds
        model["vocab"] = [[f"\uffff{n}\uffff" if n in reserved else piece, score] for n, (piece, score) in enumerate(model["vocab"])]
    return {**spec, "model": model, "added_tokens": [], "post_processor": None}


def _without_prefix_space(node: Json | None) -> Json | None:
    """A normaliser or pre-tokenizer that adds nothing before a text."""
    if node is None or node["type"] == "Prepend":
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in node:
            node[key] = [kept for inner in node[key] if (kept := _without_prefix_space(inner))]
    if node.get("prepend_scheme"):
        node["prepend_scheme"] = "never"
    if "add_prefix_space" in node:
        node["add_prefix_space"] = False
    return node
