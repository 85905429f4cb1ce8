"""What a task is: questions about a text that can be made as long as wanted. Pure data and functions of a seed.

Knows nothing of models; of tokens only that they can be counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

TIGHTNESS = 0.99  # a prompt takes at least this share of the context asked for
NEEDLE_SHARE = 4  # packed questions take at most one part in so many of the context


@dataclass(frozen=True)
class Question:
    """One question and what answers it.

    parts: what the answer must hold, in the order expected; scored. lead: start of the answer, which the model is given.
    opening: what an answer begins with before its parts, which one-pass scoring gives. separator: between parts.
    ordered: False when parts may come in any order, so that only free decoding can be judged. labels: the answers that a
    classification chooses from.
    """

    text: str
    parts: tuple[str, ...]
    lead: str = ""
    opening: str = ""
    separator: str = ","
    ordered: bool = True
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """What a task draws from.

    draw: the only source of chance. context: tokens of the whole prompt. pack: questions at most. prose: real text, at
    a random start, no part of it twice. tokens: counts those of a text.
    """

    draw: Random
    context: int
    pack: int
    prose: str
    tokens: Callable[[str], int]

    def affordable(self, statements: str) -> int:
        """How many questions whose statements are about as long as these may be packed, at least 1."""
        return max(1, min(self.pack, self.context // NEEDLE_SHARE // self.tokens(statements)))


@dataclass(frozen=True)
class Draft:
    """A haystack before its length is known.

    make: the text of a size, 0 to `most`; longer with every step. padding: sentences that say nothing, of which as many
    words go in front as the last whole piece leaves room for.
    """

    questions: tuple[Question, ...]
    make: Callable[[int], str]
    most: int
    padding: str = field(default="", repr=False)


@dataclass(frozen=True)
class Haystack:
    """A text and the questions about it. tokens: those of the text."""

    text: str
    tokens: int
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Example:
    """A text and a question of somebody else's data, as they are. max_tokens: of the answer."""

    text: str
    question: Question
    max_tokens: int


@dataclass(frozen=True)
class Task:
    """One task. build: drafts a haystack. metric: 0 to 1 for a free answer. needs_prose: whether build uses Source.prose.

    examples: data that takes the place of what build would draft; answers to it are decoded only.
    """

    name: str
    suite: str
    build: Callable[[Source], Draft]
    metric: Callable[[str, Question], float]
    needs_prose: bool = False
    examples: tuple[Example, ...] = ()


def no_draft(source: Source) -> Draft:
    """The build of a task that has examples."""
    raise ValueError("a task with examples drafts nothing")
