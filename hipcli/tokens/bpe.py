"""A fast encoder for byte-level BPE: the model's own merges and split pattern put into tiktoken.

Built only where it can be shown to give the ids of the model's tokenizer; otherwise there is none and
the caller keeps the `tokenizers` library. Knows nothing of documents, templates or control tokens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hipcli.tokens.probe import PROBE

if TYPE_CHECKING:
    import tokenizers

Json = dict[str, Any]

CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
GPT2_PATTERN = CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# a Digits step runs first, so white space before a number is at the end of its fragment, as before nothing
DIGITS_PATTERN = CONTRACTIONS + r"|{number}| ?\p{{L}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?![^\s\p{{N}}])|\s+"

# tiktoken's regex engine panics when it has to step back over a million white-space characters
LONG_SPACE = re.compile(r"\s{100000}")
SAMPLE_CHARS = 20_000


class FastEncoder:
    """tiktoken with the ids of the model.

    ordered: token bytes → id, in merge order.
    """

    def __init__(self, pattern: str, ordered: dict[bytes, int]) -> None:
        import tiktoken

        ranks = {raw: rank for rank, raw in enumerate(ordered)}
        self._encoding = tiktoken.Encoding("model", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        self._ids = np.fromiter(ordered.values(), dtype=np.int32, count=len(ordered))
        self._lengths = np.fromiter(map(len, ordered), dtype=np.int32, count=len(ordered))
        # a vocabulary may lack bytes that its training text never held
        self._missing = bytes(byte for byte in range(256) if bytes([byte]) not in ordered)

    def can_encode(self, text: str) -> bool:
        """Whether tiktoken knows every byte of text and survives it."""
        raw = text.encode()
        return len(raw) == len(raw.translate(None, self._missing)) and not LONG_SPACE.search(text)

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids of text (int32) and the UTF-8 length of each, or None where only the model's tokenizer can tell them.

        text: already normalised as the tokenizer's normaliser would, without lone surrogates.
        """
        if not self.can_encode(text):
            return None
        try:
            ranks = self._encoding.encode_ordinary(text)
        except BaseException as fault:
            # a Rust panic is not an Exception; anything else, such as Ctrl-C, is not ours to hold
            if type(fault).__name__ != "PanicException":
                raise
            return None
        index = np.array(ranks, dtype=np.int32)
        lengths = self._lengths[index]
        # tiktoken drops what its pattern does not match, the model's tokenizer keeps it
        return (self._ids[index], lengths) if lengths.sum(dtype=np.int64) == len(text.encode()) else None


def build_fast_encoder(spec: Json, reference: tokenizers.Tokenizer) -> FastEncoder | None:
    """tiktoken for a parsed tokenizer.json, or None where its ids could differ from reference's.

    reference: the same tokenizer without added tokens; it judges.
    """
    pattern = split_pattern(spec.get("pre_tokenizer"))
    ordered = _merge_order(spec["model"]) if pattern and is_byte_level(spec) else None
    if pattern is None or ordered is None:
        return None
    try:
        fast = FastEncoder(pattern, ordered)
    except ValueError:
        # the pattern uses what tiktoken's engine does not know
        return None
    return fast if _agrees(fast, spec, reference, list(ordered)) else None


def is_byte_level(spec: Json) -> bool:
    """Whether it is BPE over the bytes of the text as it stands, but for Unicode composition (NFC)."""
    model, steps = spec["model"], list(open_steps(spec.get("pre_tokenizer")))
    return (
        model.get("type") == "BPE"
        and not model.get("dropout")
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and (spec.get("decoder") or {}).get("type") == "ByteLevel"
        and all(step["type"] == "NFC" for step in open_steps(spec.get("normalizer")))
        and any(step["type"] == "ByteLevel" for step in steps)
        and not any(step.get("add_prefix_space") for step in steps)
    )


def composes(spec: Json) -> bool:
    """Whether a byte-level tokenizer normalises text to NFC first."""
    return any(step["type"] == "NFC" for step in open_steps(spec.get("normalizer")))


def split_pattern(pre_tokenizer: Json | None) -> str | None:
    """The one regular expression that splits as a pre-tokenizer does, or None where there is none known."""
    steps = list(open_steps(pre_tokenizer))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return GPT2_PATTERN
    if kinds == ["Digits", "ByteLevel"] and steps[1].get("use_regex", True):
        return DIGITS_PATTERN.format(number=r"\p{N}" if steps[0].get("individual_digits") else r"\p{N}+")
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        keeps_matches = (steps[0].get("behavior"), steps[0].get("invert")) in (("Isolated", False), ("Removed", True))
        return steps[0]["pattern"].get("Regex") if keeps_matches else None
    return None


def byte_alphabet() -> dict[str, int]:
    """The 256 characters by which byte-level vocabularies write bytes, each with its byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def token_bytes(spec: Json) -> list[bytes]:
    """What each id of a byte-level tokenizer stands for; b"" for ids without a token."""
    alphabet = str.maketrans({char: chr(byte) for char, byte in byte_alphabet().items()})
    entries = [(token_id, _raw(token, alphabet)) for token, token_id in spec["model"]["vocab"].items()]
    entries += [(token["id"], token["content"].encode()) for token in spec.get("added_tokens") or ()]
    table = [b""] * (max(token_id for token_id, _ in entries) + 1)
    for token_id, raw in entries:
        table[token_id] = raw
    return table


def _raw(token: str, alphabet: dict[int, str]) -> bytes:
    try:
        return token.translate(alphabet).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def open_steps(node: Json | None) -> Iterator[Json]:
    """The steps of a normaliser or pre-tokenizer in order, sequences opened."""
    if node is None:
        return
    if node["type"] == "Sequence":
        for inner in node.get("normalizers") or node.get("pretokenizers") or ():
            yield from open_steps(inner)
    else:
        yield node


def merge_pairs(model: Json) -> Iterator[tuple[str, str]]:
    """The merges of a BPE model in order, whichever way the file writes them."""
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def _merge_order(model: Json) -> dict[bytes, int] | None:
    """Token bytes → id in merge order, the order of priority; None where one order cannot say what the merges say."""
    vocab = model["vocab"]
    alphabet = str.maketrans({char: chr(byte) for char, byte in byte_alphabet().items()})
    order = {bytes([byte]): vocab[char] for char, byte in byte_alphabet().items() if char in vocab}
    newest = b""
    for left, right in merge_pairs(model):
        token = left + right
        raw = _raw(token, alphabet)
        if token not in vocab or (raw in order and raw != newest):
            return None
        order[raw] = vocab[token]
        newest = raw
    # with ignore_merges a word of the vocabulary is taken whole even if no merge leads to it
    whole = {token for token in vocab if _raw(token, alphabet) not in order} if model.get("ignore_merges") else ()
    return None if whole else order


def _agrees(fast: FastEncoder, spec: Json, reference: tokenizers.Tokenizer, tokens: list[bytes]) -> bool:
    """Whether both give the same ids: on the probe, on a sample of the vocabulary, and for every token alone."""
    if not spec["model"].get("ignore_merges"):
        # tiktoken takes a known word whole, so every token must be what its own characters merge to
        letters = {byte: char for char, byte in byte_alphabet().items()}
        words = (raw.decode("latin-1").translate(letters) for raw in tokens)
        if any(len(reference.model.tokenize(word)) != 1 for word in words):
            return False
    step = max(1, sum(map(len, tokens)) // SAMPLE_CHARS)
    sample = b"".join(tokens[::step]).decode("utf-8", "ignore")
    for text in (PROBE, sample):
        # NFC leaves a text alone that has it already, so this serves tokenizers with and without
        text = "".join(filter(fast.can_encode, unicodedata.normalize("NFC", text)))
        encoded = fast.encode(text)
        if encoded is None or encoded[0].tolist() != reference.encode(text, add_special_tokens=False).ids:
            return False
    return True
