"""What a word is, wherever texts are compared by words. Knows no documents."""

from __future__ import annotations

import re

# a CJK character is a word of its own: those scripts put no spaces between words
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
WORD = re.compile(rf"[{CJK}]|[^\W_{CJK}]+")


def words_of(text: str) -> list[str]:
    """Its words in order, without regard to capitals."""
    return WORD.findall(text.casefold())


def substance(word: str) -> float:
    """0 to 1: short words without a digit say little in any language written with an alphabet."""
    if any(char.isdigit() for char in word) or re.match(f"[{CJK}]", word):
        return 1.0
    return min(1.0, len(word) / 6)
