"""RULER's tracing and counting tasks: variables that pass a value on, common words, frequent words."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from random import Random
from string import ascii_lowercase, ascii_uppercase

from hipcli.suite import words
from hipcli.suite.fit import plant, until
from hipcli.suite.metrics import recall
from hipcli.suite.needles import CHARACTERS_PER_TOKEN, PADDING_CHARACTERS, filler
from hipcli.suite.tasks import Draft, Question, Source, Task

HOPS = 4
COMMON = 10
MOST_CHAINS = 10
SHORT_CONTEXT = 4096  # below it common words come less often, as published
MANY_WORDS = 50_000  # more than three syllables make with ease
WORDS_PER_RANK = 50
ZETA_2 = math.pi**2 / 6
_VARIABLES = "In the text below variables are given values, and one variable may pass its value on to another. Keep track of them.\n\n"
_NUMBERED = "Below is a numbered list of words. Remember which of them come most often.\n\n"
_CODED = "Below is a text in coded words. Dots say nothing. Keep track of how often each coded word comes.\n\n"


def _chain(names: list[str], value: str) -> list[str]:
    return [f"VAR {names[0]} = {value}.", *(f"VAR {new} = VAR {old}." for old, new in pairwise(names))]


def _trace(names: list[str], value: str) -> Question:
    return Question(
        f"Which variables have the value {value}? Name all of them.", tuple(names), f"The variables with the value {value} are:"
    )


def variable_tracking(source: Source) -> Draft:
    """Chains of four hops, in order at random places; a solved chain comes first. Packed, each chain is asked for."""
    draw, text = source.draw, filler(source, prose=False)
    statements = " ".join(_chain(["ABCDE"] * (HOPS + 1), "12345"))
    chains = min(MOST_CHAINS, source.affordable(statements))
    names = words.absent(words.letters(draw, 5, ascii_uppercase), text, (chains + 1) * (HOPS + 1))
    values = words.absent(words.numbers(draw, 5), text, chains + 1)
    groups = [names[start : start + HOPS + 1] for start in range(0, len(names), HOPS + 1)]
    solved, (example, *asked) = _trace(groups[0], values[0]), groups
    shown = f"{' '.join(_chain(example, values[0]))}\nQuestion: {solved.text}\n{solved.lead} {', '.join(example)}.\n\n"
    places, lines = [], []
    for group, value in zip(asked, values[1:]):
        lines += _chain(group, value)
        places += sorted(draw.random() for _ in group)
    questions = tuple(_trace(group, value) for group, value in zip(asked, values[1:]))
    return Draft(questions, lambda size: _VARIABLES + "Example: " + shown + plant(until(text, size), lines, places), len(text))


def common_words(source: Source) -> Draft:
    """A numbered list in which ten words come more often than the rest; a short solved list comes first."""
    draw, (often, seldom) = source.draw, (30, 3) if source.context >= SHORT_CONTEXT else (6, 1)
    # a line of the list takes four tokens at least
    most = source.context // 4
    make_word = words.syllables(draw, 3 if most < MANY_WORDS else 4)
    vocabulary = list(islice(words.distinct(make_word, set()), 2 * COMMON + most))
    shown, common, others = vocabulary[:COMMON], vocabulary[COMMON : 2 * COMMON], vocabulary[2 * COMMON :]
    example = _listed(draw.sample(shown * 2 + shown[: COMMON // 2] * 2, 3 * COMMON))
    head = f"{_NUMBERED}Example: {example}\nThe words that come most often: {', '.join(shown[: COMMON // 2])}.\n\nThe list: "
    order = draw.getrandbits(64)

    def make(size: int) -> str:
        return head + _listed(Random(order).sample([*common * often, *others[:size] * seldom], COMMON * often + size * seldom))

    question = Question(
        f"Which {COMMON} words come most often in the list?", tuple(common), f"The {COMMON} words that come most often are:", ordered=False
    )
    return Draft((question,), make, most, words.noise(draw, PADDING_CHARACTERS))


def _listed(items: list[str]) -> str:
    return " ".join(f"{number}. {item}" for number, item in enumerate(items, 1))


def frequent_words(source: Source) -> Draft:
    """Coded words whose counts fall with the square of their rank; the first rank is dots, the next three are asked for."""
    draw = source.draw
    vocabulary = max(PADDING_CHARACTERS // WORDS_PER_RANK, source.context // WORDS_PER_RANK)
    coded = list(islice(words.distinct(words.letters(draw, 6, ascii_lowercase), set()), vocabulary))
    ranked, order = ["......", *coded], draw.getrandbits(64)

    def make(size: int) -> str:
        rows = [word for rank, word in enumerate(ranked, 1) for _ in range(int(size / (ZETA_2 * rank**2)))]
        return _CODED + " ".join(Random(order).sample(rows, len(rows)))

    lead = "The three coded words that come most often are:"
    question = Question("Which three coded words come most often? Leave the dots out.", tuple(coded[:3]), lead)
    return Draft((question,), make, CHARACTERS_PER_TOKEN * source.context, words.noise(draw, PADDING_CHARACTERS))


TASKS = (
    Task("vt", "ruler", variable_tracking, recall),
    Task("cwe", "ruler", common_words, recall),
    Task("fwe", "ruler", frequent_words, recall),
)
