"""Makes a text of a wanted length in tokens, and puts statements into it. Knows no model and no task."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

from hipcli.errors import HipError
from hipcli.suite.tasks import TIGHTNESS, Draft, Haystack

_SENTENCE_END = re.compile(r"[.!?][\"'”’)]*\s+")
_AIM = (1 + TIGHTNESS) / 2


class CannotBuild(HipError):
    """A haystack of this length cannot be made; the message says why."""


class TextTooShort(CannotBuild):
    """The prose ends before the length is reached."""


def fit(make: Callable[[int], str], tokens: Callable[[str], int], budget: int, most: int) -> tuple[str, int, int]:
    """The text of a size up to `most` that comes nearest below `budget` tokens, or within 1 % of it.

    Returns text, its tokens and its size. Each try costs a pass over the text, so sizes are guessed from those before.
    Raises CannotBuild when even the smallest is too long.
    """
    text = make(0)
    low = (0, tokens(text))
    if low[1] > budget:
        raise CannotBuild(f"the task takes {low[1]:,} tokens at least and {budget:,} are left for it")
    high: tuple[int, int] | None = None
    size, tries = min(most, max(1, budget // 16)), 0
    while size > low[0] and low[1] < TIGHTNESS * budget:
        candidate = make(size)
        point = (size, tokens(candidate))
        if point[1] <= budget:
            text, low = candidate, point
        else:
            high = point
        tries += 1
        size = _next_size(low, high, budget, most, halve=tries > 12)
    return text, low[1], low[0]


def _next_size(low: tuple[int, int], high: tuple[int, int] | None, budget: int, most: int, halve: bool) -> int:
    """A size between the largest that fits and the smallest that does not, by a straight line; low's when there is none."""
    stop = high[0] - 1 if high else most
    if stop <= low[0]:
        return low[0]
    if high:
        share = 0.5 if halve else (_AIM * budget - low[1]) / max(1, high[1] - low[1])
        guess = low[0] + int(share * (high[0] - low[0]))
    elif low[0] and low[1]:
        guess = int(low[0] * _AIM * budget / low[1])
    else:
        guess = 2 * low[0] + 1
    return min(stop, max(low[0] + 1, guess))


def finish(draft: Draft, tokens: Callable[[str], int], budget: int) -> Haystack:
    """A haystack within 1 % below `budget` tokens. Raises CannotBuild, TextTooShort."""
    body, held, size = fit(draft.make, tokens, budget, draft.most)
    text = body
    if held < TIGHTNESS * budget and size < draft.most and draft.padding:
        text, held, _ = fit(lambda characters: _padded(draft.padding, characters, body), tokens, budget, len(draft.padding))
    if held < TIGHTNESS * budget:
        if size == draft.most:
            raise TextTooShort(f"{held:,} of {budget:,} tokens are reached")
        raise CannotBuild(f"no text of this task comes within 1 % of {budget:,} tokens")
    return Haystack(text, held, draft.questions)


def _padded(padding: str, characters: int, text: str) -> str:
    return f"{until(padding, characters)}\n\n{text}" if characters else text


def until(text: str, characters: int) -> str:
    """The text up to the end of the last word that ends within so many characters."""
    if characters >= len(text) or text[characters].isspace():
        return text[:characters]
    return text[: max(0, _last_space(text, characters))]


def _last_space(text: str, before: int) -> int:
    return max(text.rfind(" ", 0, before), text.rfind("\n", 0, before))


def plant(text: str, statements: Sequence[str], places: Sequence[float]) -> str:
    """Text with each statement between two sentences, at its place from 0 (start) to 1 (end); equal places keep their order."""
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text))]
    pieces, done = [], 0
    for place, statement in sorted(zip(places, statements), key=lambda pair: pair[0]):
        at = ends[bisect_right(ends, place * len(text)) - 1]
        pieces += [text[done:at], statement, " "]
        done = at
    return "".join([*pieces, text[done:]])


def even_places(count: int) -> list[float]:
    """The middles of `count` equal parts of a text."""
    return [(index + 0.5) / count for index in range(count)]
