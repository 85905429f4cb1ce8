"""Cutting a long text where no token can lie across the cut, so that its pieces can be encoded one by one.

A cut follows a letter or digit and precedes white space (or a CJK stop). In the split patterns of byte-level
tokenizers letters and digits only end a word, and no word holds a space after one. Metaspace tokenizers
merge over the whole text; there the vocabulary must show that no token has a space after another character.
Knows nothing of pages or models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hipcli.tokens.bpe import is_byte_level, open_steps
from hipcli.tokens.probe import PROBE

PIECE_CHARS = 1 << 16

# scripts with plain letters only: no marks, no signs, nothing that Unicode versions disagree about
_LETTERS = (
    "0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03ce\u0410-\u044f\u05d0-\u05ea"
    "\u0620-\u064a\u0904-\u0939\u0e01-\u0e30\u3041-\u3096\u30a1-\u30fa\u3400-\u4db5\u4e00-\u9fa5\uac00-\ud7a3"
)
BYTE_LEVEL_CUT = re.compile(f"(?<=[{_LETTERS}])(?=[ \n，。、；：？！])")
# look-behinds and anchors could see across a cut
LOOKS_BACK = re.compile(r"\(\?<|\\[bBAGK]|(?<![\[\\])\^")
METASPACE_CUT = re.compile(f"(?<=[{_LETTERS}])(?= )")


def cut_rule(spec: dict[str, Any], encode: Callable[[str, bool], Sequence[int]]) -> re.Pattern[str] | None:
    """Where a text may be cut for a parsed tokenizer.json, or None where it must be encoded in one go.

    encode: (text, is_first) → ids, is_first being False for pieces after a cut.
    """
    if is_byte_level(spec) and _splits_locally(spec):
        rule = BYTE_LEVEL_CUT
    elif _is_plain_metaspace(spec):
        rule = METASPACE_CUT
    else:
        return None
    segments = rule.split(PROBE)
    pieces = [token for n, segment in enumerate(segments) for token in encode(segment, n == 0)]
    return rule if pieces == list(encode(PROBE, True)) else None


def split_pieces(parts: Iterable[str], rule: re.Pattern[str] | None, size: int = PIECE_CHARS) -> Iterator[str]:
    """The joined parts again, in pieces of about size characters cut by rule; one piece where rule is None.

    A piece grows past size until a place to cut comes.
    """
    held: list[str] = []
    held_chars, limit = 0, size
    for part in parts:
        held.append(part)
        held_chars += len(part)
        if rule is None or held_chars < limit:
            continue
        text = "".join(held)
        start = 0
        for piece in _full_pieces(text, rule, size):
            start += len(piece)
            yield piece
        held, held_chars = [text[start:]], len(text) - start
        # a text without a place to cut is searched again only when it has doubled
        limit = max(size, 2 * held_chars)
    if held_chars:
        yield "".join(held)


def _full_pieces(text: str, rule: re.Pattern[str], size: int) -> Iterator[str]:
    """Pieces of at least size characters from the front of text; what follows the last one is left."""
    start = 0
    while cut := rule.search(text, start + size):
        yield text[start : cut.start()]
        start = cut.start()


def _splits_locally(spec: dict[str, Any]) -> bool:
    """Whether a byte-level tokenizer's words depend on nothing before them."""
    steps = list(open_steps(spec.get("pre_tokenizer")))
    patterns = [step["pattern"].get("Regex", "") for step in steps if step["type"] == "Split"]
    known = all(step["type"] in ("Split", "Digits", "ByteLevel") for step in steps)
    return known and not any(LOOKS_BACK.search(pattern) for pattern in patterns)


def _is_plain_metaspace(spec: dict[str, Any]) -> bool:
    """Whether it is BPE with "▁" for a space, only at the front of tokens, and nothing else changed in the text."""
    model = spec["model"]
    steps = [*open_steps(spec.get("normalizer")), *open_steps(spec.get("pre_tokenizer"))]
    marks = [step["type"] == "Metaspace" and step.get("replacement", "▁") == "▁" or _replaces_spaces(step) for step in steps]
    others = [step["type"] for step, mark in zip(steps, marks, strict=True) if not mark]
    return (
        model.get("type") == "BPE"
        and not model.get("dropout")
        and "▁" in model["vocab"]
        and any(marks)
        and all(kind == "Prepend" for kind in others)
        and not any("▁" in token.lstrip("▁") for token in model["vocab"])
    )


def _replaces_spaces(step: dict[str, Any]) -> bool:
    return step["type"] == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == "▁"
