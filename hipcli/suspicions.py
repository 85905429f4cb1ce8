"""Passages that look written for a model, not for a reader: found by rules, shown to the user, acted on by nothing.

Knows texts and pages; no model, no terminal. A hint, not a guard: what a document says is data to hip either way.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hipcli.document import Page

ADDRESSES = "addresses an assistant"
IMITATES = "imitates control tokens"
SMUGGLES = "holds invisible text"
INVISIBLE = "hides characters in words"
REORDERS = "changes the order of characters"
UNSEEN = "shows nobody"

_GAP = r"[^.!?。]{0,50}?"
_MODEL = r"(?:an?\s+|the\s+|any\s+|all\s+)?(?:AI|LLM|large language model|language model|chat ?bot|assistant|ChatGPT|GPT-\d|Claude|Gemini|Copilot)s?"
_SPEECH = re.compile(
    "|".join(
        (
            rf"\b(?:ignore|disregard|forget|override|bypass)\b{_GAP}\b(?:instruction|prompt|rule|direction|guideline|safeguard)s?\b",
            rf"\b(?:dear|attention|note\s+to|message\s+(?:to|for)|instructions?\s+(?:to|for)|if\s+you\s+are)\s*:?\s+{_MODEL}\b",
            rf"\byou\s+are\s+(?:now\s+)?{_MODEL}\b",
            r"\b(?:new|updated|hidden|secret|real)\s+(?:system\s+)?(?:instructions?|prompt)\s*:",
            rf"\b(?:reveal|print|repeat|output|leak|show)\b{_GAP}\b(?:system\s+prompt|your\s+(?:instructions|prompt|rules))\b",
            rf"\b(?:do\s+not|don't|never)\s+(?:tell|mention|inform|reveal|show){_GAP}\b(?:the\s+|your\s+)?user\b",
            rf"\bignorier\w*{_GAP}\b(?:anweisung|vorgabe|regel)\w*",
            rf"\bignor(?:e|ez|er|a|ar|ad|e)\b{_GAP}\b(?:instructions|consignes|instrucciones|istruzioni|instruções)\b",
            rf"\b(?:игнорируй|забудь)\w*{_GAP}\b(?:инструкци|указани)\w*",
            r"(?:忽略|无视|忘记|無視)[^。！？]{0,20}(?:指令|指示|提示)",
        )
    ),
    re.IGNORECASE,
)
# of ChatML, Llama 2 and 3, Mistral, Gemma, DeepSeek, Phi, Granite, GPT, Alpaca and models that think or call tools
_TOKENS = re.compile(
    r"<\|[A-Za-z0-9_ ▁]{2,40}\|>|<｜[^｜<>]{2,40}｜>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>|<(?:bos|eos)>|</s>\s*<s>"
    r"|\[/?(?:SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|</?(?:think|tool_call|tool_response)>"
    r"|(?m:^\#\#\#[ \t]*(?:Instruction|Response|System|Human|Assistant):)"
)
# letters of the alphabet as tag characters, or bytes as variation selectors; a flag is a black flag and tags
_HIDDEN = re.compile(r"(?<!\U0001f3f4)(?<![\U000e0000-\U000e007f])[\U000e0000-\U000e007f]+|[\U000e0100-\U000e01ef]{3,}|[\ufe00-\ufe0f]{3,}")
_ZERO = "\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\ufeff\u180e"
# between Latin letters only: Persian, Hindi, Khmer and emoji need them
_WITHIN = re.compile(rf"(?<=[A-Za-z0-9])[{_ZERO}]+(?=[A-Za-z0-9])")
_BIDI = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_UNSEEN = re.compile(rf"[{_ZERO}]")
_SPELLED = re.compile(rf"[{_ZERO}\u202a-\u202e\u2066-\u2069\ufe00-\ufe0f\U000e0000-\U000e01ef]")
_AROUND = 60


@dataclass(frozen=True)
class Suspicion:
    """page: index of the page among those searched. kind: one of the above. quote: the passage, what is unseen in it spelled out."""

    page: int
    kind: str
    quote: str


def suspicions(pages: Iterable[Page]) -> Iterator[Suspicion]:
    """Suspicious passages of pages, in order; one for each kind and place, invisible characters of a page counted as one."""
    for index, page in enumerate(pages):
        for kind, words in page.hidden:
            yield Suspicion(index, f"{UNSEEN} ({kind})", _quote(words, 0, len(words), UNSEEN))
        text = page.text
        found = sorted({(start, kind): (start, end, kind) for start, end, kind in _passages(text)}.values())
        for start, end, kind in found:
            yield Suspicion(index, kind, _quote(text, start, end, kind))


def _passages(text: str) -> Iterator[tuple[int, int, str]]:
    plain, place = _without_unseen(text)
    for pattern, kind in ((_SPEECH, ADDRESSES), (_TOKENS, IMITATES)):
        for match in pattern.finditer(plain):
            yield place(match.start()), place(match.end() - 1) + 1, kind
    if text.isascii():
        return
    for match in _HIDDEN.finditer(text):
        yield *match.span(), SMUGGLES
    for pattern, kind in ((_WITHIN, INVISIBLE), (_BIDI, REORDERS)):
        # a page of such characters is one finding: the first shows what they are
        if match := pattern.search(text):
            yield *match.span(), kind


def _without_unseen(text: str):
    """The text without zero-width characters, which would hide words from the rules, and the way back to places in `text`."""
    cuts = [match.start() for match in _UNSEEN.finditer(text)]
    if not cuts:
        return text, lambda position: position
    # the n-th cut stands before position cut - n of the plain text
    bounds = [cut - number for number, cut in enumerate(cuts)]
    return _UNSEEN.sub("", text), lambda position: position + bisect_right(bounds, position)


def _quote(text: str, start: int, end: int, kind: str) -> str:
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    if start > _AROUND:
        before = "…" + before[before.find(" ") + 1 :]
    if end + _AROUND < len(text):
        after = (after[: after.rfind(" ")] if " " in after else after) + "…"
    said = f" (reads: {_decoded(text[start:end])})" if kind == SMUGGLES and _decoded(text[start:end]) else ""
    return " ".join(_spell(before + text[start:end] + after).split()) + said


def _decoded(hidden: str) -> str:
    """What tag characters spell, or bytes that were written as variation selectors; '' when that is no text."""
    if hidden[0] <= "\U000e007f" and hidden[0] >= "\U000e0000":
        return "".join(chr(ord(tag) - 0xE0000) for tag in hidden if 0xE0020 <= ord(tag) <= 0xE007E)
    values = bytes(ord(mark) - 0xFE00 if mark <= "\ufe0f" else ord(mark) - 0xE0100 + 16 for mark in hidden)
    text = values.decode("utf-8", "replace")
    return text if text.isprintable() and "\ufffd" not in text else ""


def _spell(text: str) -> str:
    return _SPELLED.sub(lambda match: f"\\u{ord(match[0]):04x}" if ord(match[0]) < 0x10000 else f"\\U{ord(match[0]):08x}", text)
