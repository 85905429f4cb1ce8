"""MRCR: a long dialogue of requests for short writings, some of them the same; one of those is to be repeated word for word."""

from __future__ import annotations

import string
from collections.abc import Callable
from itertools import islice

from hipcli.suite import words
from hipcli.suite.fit import even_places
from hipcli.suite.metrics import same_writing
from hipcli.suite.needles import PADDING_CHARACTERS
from hipcli.suite.tasks import Draft, Question, Source, Task

FORMS = ("poem", "riddle", "letter", "toast", "proverb", "sermon", "diary entry", "postcard", "speech", "ballad")
VERBS = ("remembers", "follows", "carries", "forgives", "answers", "measures", "borrows", "outlives")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
LINES = 3
MARK_LENGTH = 10
_LEAST_EXCHANGE_TOKENS = 24
_FEW = 10_000
_INTRO = "Below is a dialogue. A user asks for short writings, and a writer supplies them.\n\n"


def _writings(source: Source) -> Callable[[str], str]:
    """Makes writings about a subject, no two of which are alike."""
    draw, seen = source.draw, set()

    def thing() -> str:
        return f"{draw.choice(words.ADJECTIVES)} {draw.choice(words.NOUNS)}"

    def line() -> str:
        return f"{thing()} {draw.choice(VERBS)} the {thing()}"

    lines = words.distinct(line, seen)
    return lambda subject: ", ".join(f"the {text}" for text in islice(lines, LINES)).capitalize() + f", for the {subject}."


def _exchange(form: str, subject: str, writing: str) -> str:
    return f"User: Write a {form} about the {subject}.\nWriter: {writing}\n"


def dialogue(same: int) -> Callable[[Source], Draft]:
    """A task with `same` equal requests a group; packed, there are several groups and each of their writings is asked for."""

    def build(source: Source) -> Draft:
        draw, write = source.draw, _writings(source)
        most = source.context // _LEAST_EXCHANGE_TOKENS
        # two words make some 28,000 subjects
        qualities = 1 if most < _FEW else 2
        subjects = words.distinct(lambda: " ".join([*draw.sample(words.ADJECTIVES, qualities), draw.choice(words.NOUNS)]), set())
        requests = words.distinct(lambda: (draw.choice(FORMS), next(subjects)), set())
        sample = _exchange(FORMS[0], "patient tambourine", write("patient tambourine"))
        groups = max(1, source.affordable(sample) // same)
        wanted = []
        for form, subject in islice(requests, groups):
            wanted.append((form, subject, [write(subject) for _ in range(same)]))
        turns = draw.sample([*range(groups)] * same, groups * same)
        supplies = [iter(writings) for _, _, writings in wanted]
        asked = [_exchange(*wanted[group][:2], next(supplies[group])) for group in turns]
        others = [_exchange(form, subject, write(subject)) for form, subject in islice(requests, most)]
        places = even_places(len(asked)) if source.pack > 1 else sorted(draw.random() for _ in asked)

        def make(size: int) -> str:
            rows, done = [], 0
            for place, exchange in zip(places, asked):
                upto = round(place * size)
                rows += [*others[done:upto], exchange]
                done = upto
            return _INTRO + "\n".join([*rows, *others[done:size]])

        return Draft(tuple(_questions(source, wanted)), make, most, words.noise(draw, PADDING_CHARACTERS))

    return build


def _questions(source: Source, wanted: list[tuple[str, str, list[str]]]) -> list[Question]:
    mark = words.letters(source.draw, MARK_LENGTH, string.ascii_letters + string.digits)
    asked = []
    for form, subject, writings in wanted:
        for ordinal, writing in zip(ORDINALS, writings):
            opening = mark()
            wish = f"the {ordinal} {form} about the {subject}"
            text = f"Write {opening} and after it, word for word, {wish} of the dialogue. Write nothing else."
            asked.append(Question(text, (writing,), opening=opening, separator=""))
    return source.draw.sample(asked, min(source.pack, len(asked)))


TASKS = tuple(Task(f"mrcr_{same}", "mrcr", dialogue(same), same_writing) for same in (2, 4, 8))
