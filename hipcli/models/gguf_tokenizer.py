"""The tokenizer a GGUF file describes, written as tokenizer.json.

A byte-level vocabulary says by name (`tokenizer.ggml.pre`) how text is cut before merging; a wrong cut gives
ids the model never saw, so an unknown name is refused. Sentencepiece vocabularies are left to transformers.
Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # values of tokenizer.ggml.token_type

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _REST
_QWEN2 = _WORDS + r"|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Cut:
    """How text is cut: every pattern in turn isolates its matches.

    whole_words: a piece that is itself in the vocabulary is taken whole, whatever the merges say.
    bos: whether BOS is added where the file does not say.
    nfc: the text is NFC-normalised first.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    bos: bool = False
    nfc: bool = False


_DIGITS_THEN_WORDS = Cut((r"\p{N}", _GPT2))
_PLAIN = Cut((_GPT2,))
_CUT_LLAMA3 = Cut((_LLAMA3,), whole_words=True, bos=True)
_CUTS = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo"), _PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_THEN_WORDS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _CUT_LLAMA3),
    "smaug-bpe": Cut((_LLAMA3,)),
    "tekken": Cut((_TEKKEN,), whole_words=True, bos=True),
    "qwen2": Cut((_QWEN2,), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2"), Cut((_QWEN2,))),
    "default": Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


def write_tokenizer(gguf: Path, meta: Mapping[str, Any], out: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and the chat template of `gguf` into `out`.

    Args:
        gguf: the file itself, read again only for sentencepiece vocabularies.
        meta: its metadata, values as plain Python.

    Raises:
        ModelError: the vocabulary is missing, damaged, or of a kind that cannot be rebuilt faithfully.
    """
    kind = meta.get("tokenizer.ggml.model")
    if kind == "gpt2":
        _save(byte_level_tokenizer(gguf.name, meta), meta, out)
    elif kind == "llama":
        _save_sentencepiece(gguf, meta, out)
    else:
        raise ModelError(
            f"{gguf.name} has a tokenizer of kind {kind!r}, which hip cannot rebuild",
            "use the model's original directory (config.json, *.safetensors, tokenizer.json) instead",
        )


def byte_level_tokenizer(name: str, meta: Mapping[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer of a GGUF file's metadata. name: the file's, for messages.

    Raises:
        ModelError: unknown pre-tokenizer, or a vocabulary or merges that are missing or malformed.
    """
    from tokenizers import Tokenizer, decoders, models

    cut = _cut(name, meta)
    tokens, types = _vocabulary(name, meta)
    vocab = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    try:
        merges = [_pair(merge) for merge in meta["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=cut.whole_words))
    except KeyError:
        raise ModelError(f"{name} lacks the merges of its tokenizer") from None
    except Exception as error:  # the tokenizers library raises bare Exception for a bad merge
        raise ModelError(f"{name} has a damaged tokenizer: {error}") from error
    tokenizer.pre_tokenizer = _pre_tokenizer(cut)
    tokenizer.decoder = decoders.ByteLevel()
    _add_marked_tokens(tokenizer, tokens, types)
    _finish(tokenizer, cut, meta, tokens)
    return tokenizer


def stop_ids(meta: Mapping[str, Any]) -> list[int]:
    """Ids that end an answer: the file's EOS first, then control tokens known by name to end a turn."""
    tokens, types = meta.get("tokenizer.ggml.tokens", []), meta.get("tokenizer.ggml.token_type", [])
    enders = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"}
    named = [i for i, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind == CONTROL and token in enders]
    first = [meta[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in meta]
    return list(dict.fromkeys(first + named))


def _cut(name: str, meta: Mapping[str, Any]) -> Cut:
    pre = meta.get("tokenizer.ggml.pre")
    if pre is None and meta.get("general.architecture") in ("qwen2", "qwen3"):
        pre = "qwen2"  # older files leave the key out, and this family has one way only
    if pre in _CUTS:
        return _CUTS[pre]
    what = "does not say how its tokenizer cuts text" if pre is None else f"needs the pre-tokenizer {pre!r}, which hip does not know"
    raise ModelError(
        f"{name} {what}; a guess would give the model wrong tokens",
        "use the model's original directory, or a GGUF made by a recent converter",
    )


def _vocabulary(name: str, meta: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    tokens = meta.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{name} holds no vocabulary")
    types = meta.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(f"{name} has a damaged vocabulary: token types missing or tokens repeated")
    for role in ("bos", "eos", "unknown", "padding"):
        if meta.get(f"tokenizer.ggml.{role}_token_id", 0) >= len(tokens):
            raise ModelError(f"{name} has a damaged vocabulary: its {role} token lies beyond the last one")
    return tokens, types


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(cut: Cut) -> Any:
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as pre

    # the shapes published tokenizer.json files use, which other readers of them recognise
    if cut == _PLAIN:
        return pre.ByteLevel(add_prefix_space=False, use_regex=True)
    if cut == _DIGITS_THEN_WORDS:
        return pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)])
    splits = [pre.Split(Regex(pattern), behavior="isolated") for pattern in cut.patterns]
    return pre.Sequence([*splits, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def _add_marked_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    from tokenizers import AddedToken

    # both kinds are matched whole in text; only control tokens are special
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types, strict=True) if k == CONTROL]
    )
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t, k in zip(tokens, types, strict=True) if k == USER_DEFINED])


def _finish(tokenizer: Tokenizer, cut: Cut, meta: Mapping[str, Any], tokens: list[str]) -> None:
    from tokenizers import normalizers, processors

    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    bos = meta.get("tokenizer.ggml.bos_token_id")
    if bos is not None and meta.get("tokenizer.ggml.add_bos_token", cut.bos):
        text = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[text, "$A"], pair=[text, "$A", text, "$B:1"], special_tokens=[(text, bos)]
        )


def _save(tokenizer: Tokenizer, meta: Mapping[str, Any], out: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokens = meta["tokenizer.ggml.tokens"]
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: meta.get(f"tokenizer.ggml.{key}_token_id") for role, key in keys.items()}
    special = {role: tokens[i] for role, i in ids.items() if i is not None}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
    wrapped.chat_template = meta.get("tokenizer.chat_template")
    wrapped.save_pretrained(out)


def _save_sentencepiece(gguf: Path, meta: Mapping[str, Any], out: Path) -> None:
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for a vocabulary that it cannot rebuild
        raise ModelError(f"the tokenizer of {gguf.name} cannot be rebuilt: {error}") from error
    if meta.get("tokenizer.ggml.add_space_prefix") is False:  # transformers adds the prefix all the same
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save_pretrained(out)
