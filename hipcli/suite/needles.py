"""Needles: sentences that give a key's value, hidden in noise, in prose or among their like (RULER's eight, passkeys)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from random import Random

from hipcli.suite import words
from hipcli.suite.fit import even_places, plant, until
from hipcli.suite.metrics import first_number, recall, whole_word
from hipcli.suite.tasks import Draft, Question, Source, Task

PER_KEY = 4  # values of a key, keys of a question, and keys of the published multi-key form
CHARACTERS_PER_TOKEN = 8  # no text of words has more: what makes a filler that is surely long enough
PADDING_CHARACTERS = 4000
_INTRO = "Facts about numbers and codes are hidden in the text below. Remember them: you will be asked for some.\n\n"


def filler(source: Source, prose: bool) -> str:
    """Prose, or noise that is long enough for any tokenizer of words."""
    return source.prose if prose else words.noise(source.draw, CHARACTERS_PER_TOKEN * source.context)


def hidden(intro: str, text: str, statements: Sequence[str], places: Sequence[float]) -> Callable[[int], str]:
    """A haystack of any size: so many characters of text with all the statements in it."""
    return lambda characters: intro + plant(until(text, characters), statements, places)


def _say(thing: str, key: str, value: str) -> str:
    return f"Note that the {thing} for {key} is {value}."


def _ask(thing: str, keys: Sequence[str], values: Sequence[str]) -> Question:
    """The question for the values of some keys, or of one key with several."""
    names = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    if len(values) == 1:
        return Question(f"What is the {thing} for {names}, as the text gives it?", tuple(values), f"The {thing} for {names} is")
    return Question(f"What are all the {thing}s for {names} that the text gives?", tuple(values), f"The {thing}s for {names} are")


def _scattered(source: Source, text: str, needles: Sequence[str]) -> Callable[[int], str]:
    """Needles at even places in an order of their own."""
    mixed = source.draw.sample(needles, len(needles))
    return hidden(_INTRO, text, mixed, even_places(len(mixed)))


def single(prose: bool, codes: bool) -> Callable[[Source], Draft]:
    """One needle of a kind; packed, each needle has a kind and a key of its own and is asked for alone."""

    def build(source: Source) -> Draft:
        draw, text = source.draw, filler(source, prose)
        make = words.uuids(draw) if codes else words.numbers(draw)
        count = source.affordable(_say("customer number", "patient-tambourine", make()))
        kind = "code" if codes else "number"
        things = [f"{thing} {kind}" for thing in islice(cycle(draw.sample(words.THINGS, len(words.THINGS))), count)]
        facts = list(zip(things, words.absent(words.keys(draw), text, count), words.absent(make, text, count)))
        # at one of 40 depths where there is one needle, as published
        places = even_places(count) if count > 1 else [draw.randrange(40) / 39]
        questions = tuple(_ask(thing, [key], [value]) for thing, key, value in facts)
        return Draft(questions, hidden(_INTRO, text, [_say(*fact) for fact in facts], places), len(text))

    return build


def multikey(source: Source) -> Draft:
    """Several keys of the same kind, one asked for: the others distract."""
    text, keys, values = _keyed(source, PER_KEY)
    needles = [_say("magic number", *fact) for fact in zip(keys, values)]
    questions = tuple(_ask("magic number", [key], [value]) for key, value in list(zip(keys, values))[: source.pack])
    return Draft(questions, _scattered(source, text, needles), len(text))


def _keyed(source: Source, least: int) -> tuple[str, list[str], list[str]]:
    """Prose, and at least so many keys and values of one kind which do not stand in it."""
    draw, text = source.draw, filler(source, prose=True)
    count = max(least, source.affordable(_say("magic number", "patient-tambourine", "1234567")))
    return text, words.absent(words.keys(draw), text, count), words.absent(words.numbers(draw), text, count)


def multiquery(source: Source) -> Draft:
    """Four keys asked for at once."""
    text, keys, values = _keyed(source, PER_KEY)
    needles, asked = [_say("magic number", *fact) for fact in zip(keys, values)], []
    for _ in range(min(source.pack, len(keys))):
        chosen = source.draw.sample(range(len(keys)), PER_KEY)
        asked.append(_ask("magic number", [keys[at] for at in chosen], [values[at] for at in chosen]))
    return Draft(tuple(asked), _scattered(source, text, needles), len(text))


def multivalue(source: Source) -> Draft:
    """Keys with four values each, all of which are wanted; the answer is expected in the order of the text."""
    draw, text = source.draw, filler(source, prose=True)
    statement = _say("magic number", "patient-tambourine", "1234567")
    count = source.affordable(" ".join([statement] * PER_KEY))
    keys, values = words.absent(words.keys(draw), text, count), words.absent(words.numbers(draw), text, PER_KEY * count)
    order = draw.sample([*range(count)] * PER_KEY, PER_KEY * count)
    needles = [_say("magic number", keys[owner], value) for owner, value in zip(order, values)]
    owned = [[value for owner, value in zip(order, values) if owner == key] for key in range(count)]
    questions = tuple(_ask("magic number", [key], own) for key, own in zip(keys, owned))
    return Draft(questions, hidden(_INTRO, text, needles, even_places(len(needles))), len(text))


def crowd(source: Source, pair: Callable[[], tuple[str, str]], line: Callable[[str, str], str], join: Callable[[list[str]], str]) -> Draft:
    """A haystack of nothing but needles, some of which, evenly spread, are asked for."""
    sample = line(*pair())
    count = source.affordable(sample)
    taken: set[str] = set()
    most = count + source.context // max(1, source.tokens(sample) // 2)
    facts = []
    while len(facts) < most:
        key, value = pair()
        if not taken & {key, value}:
            taken |= {key, value}
            facts.append((key, value))
    asked, others = facts[:count], facts[count:]
    places = even_places(count) if count > 1 else [source.draw.random()]

    def make(size: int) -> str:
        lines, done = [], 0
        for place, fact in zip(places, asked):
            upto = round(place * size)
            lines += [line(*other) for other in others[done:upto]] + [line(*fact)]
            done = upto
        return join(lines + [line(*other) for other in others[done:size]])

    questions = tuple(_ask("magic value", [key], [value]) for key, value in asked)
    return Draft(questions, make, len(others), words.noise(source.draw, PADDING_CHARACTERS))


def multikey_words(source: Source) -> Draft:
    """Needles from names to numbers all the way."""
    key, value = words.keys(source.draw, 3), words.numbers(source.draw)
    return crowd(source, lambda: (key(), value()), lambda *fact: _say("magic value", *fact), lambda lines: _INTRO + " ".join(lines))


def multikey_codes(source: Source) -> Draft:
    """Needles from UUID to UUID all the way: the hardest."""
    make = words.uuids(source.draw)
    return crowd(source, lambda: (make(), make()), lambda *fact: _say("magic value", *fact), lambda lines: _INTRO + " ".join(lines))


def key_value(source: Source) -> Draft:
    """A JSON object of UUIDs whose value for one key is wanted (InfiniteBench)."""
    make = words.uuids(source.draw)
    head = "Below is a JSON object. Read off from it the value of the key you will be asked for.\n\n"
    draft = crowd(
        source, lambda: (make(), make()), lambda key, value: f'"{key}": "{value}"', lambda rows: head + "{" + ", ".join(rows) + "}"
    )
    text = 'What is the value of the key "{}" in the JSON object?'
    questions = (Question(text.format(key), q.parts, f"The value of the key {key} is") for q in draft.questions if (key := _key(q)))
    return Draft(tuple(questions), draft.make, draft.most, draft.padding)


def _key(question: Question) -> str:
    return question.lead.split(" for ")[1].removesuffix(" is")


def passkey(make: Callable[[Random], Callable[[], str]], what: str) -> Callable[[Source], Draft]:
    """A key in noise; packed, each key opens a door that has a name."""

    def build(source: Source) -> Draft:
        draw, text = source.draw, filler(source, prose=False)
        sample = _door(what, "patient-tambourine", "1234567890")
        count = source.affordable(sample)
        values = words.absent(make(draw), text, count)
        doors = words.absent(words.keys(draw), text, count) if count > 1 else [""]
        places = even_places(count) if count > 1 else [draw.random()]
        statements = [_door(what, *fact) for fact in zip(doors, values)]
        questions = []
        for door, value in zip(doors, values):
            named = f"the {what}" + (f" for {door}" if door else "")
            questions.append(Question(f"What is {named}?", (value,), f"{named.capitalize()} is"))
        intro = "Something important is hidden in a lot of text that is not. Find it and remember it.\n\n"
        return Draft(tuple(questions), hidden(intro, text, statements, places), len(text))

    return build


def _door(what: str, door: str, value: str) -> str:
    named = f"{what} for {door}" if door else what
    return f"The {named} is {value}. Remember it: {value} is the {named}."


def doubled(draw: Random) -> Callable[[], str]:
    """Ten digits, each of them twice in a row: copying them right is hard."""
    return lambda: "".join(digit * 2 for digit in [draw.choice("123456789"), *draw.choices("0123456789", k=4)])


TASKS = (
    Task("niah_single_1", "ruler", single(prose=False, codes=False), recall),
    Task("niah_single_2", "ruler", single(prose=True, codes=False), recall, needs_prose=True),
    Task("niah_single_3", "ruler", single(prose=True, codes=True), recall, needs_prose=True),
    Task("niah_multikey_1", "ruler", multikey, recall, needs_prose=True),
    Task("niah_multikey_2", "ruler", multikey_words, recall),
    Task("niah_multikey_3", "ruler", multikey_codes, recall),
    Task("niah_multivalue", "ruler", multivalue, recall, needs_prose=True),
    Task("niah_multiquery", "ruler", multiquery, recall, needs_prose=True),
    Task("kv_retrieval", "kv", key_value, whole_word),
    Task("passkey", "passkey", passkey(lambda draw: words.numbers(draw, 5), "pass key"), first_number),
    Task("number_string", "passkey", passkey(doubled, "sequence of digits"), first_number),
)
