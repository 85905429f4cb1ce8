"""The accuracy suite's texts: of the length asked for, the same for the same seed, each answer in the text and derivable from it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from hipcli.suite.catalogue import SUITES, TASKS, choose
from hipcli.suite.fit import CannotBuild, TextTooShort, fit, plant, until
from hipcli.suite.prompt import build_cell
from hipcli.suite.prose import Prose, load_prose
from hipcli.suite.stories import PLACES
from hipcli.tokens.tokenizer import PromptParts

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
NEEDLE = re.compile(r"Note that the ([a-z]+ (?:number|code|value)) for ([\w-]+) is ([\w-]+)\.")
BY_NAME = {task.name: task for task in TASKS}
NEEDLES = [task.name for task in TASKS if task.name.startswith("niah")]


class Words:
    """A tokenizer of whole words, blanks and signs, in which every id stands for a text."""

    def __init__(self):
        self.texts, self.ids = [], {}

    def encode(self, text):
        pieces = re.findall(r" ?\w{1,5}| ?[^\w\s]|\s", text)
        for piece in pieces:
            if piece not in self.ids:
                self.ids[piece] = len(self.texts)
                self.texts.append(piece)
        return [self.ids[piece] for piece in pieces]

    def decode(self, ids):
        return "".join(self.texts[token] for token in ids)

    def prompt(self):
        return PromptParts(self.encode("<user>"), self.encode("<answer>"), lambda question: self.encode("\n\n" + question))


@pytest.fixture(scope="module")
def prose():
    return load_prose([str(SAMPLES / "handbook.md"), str(SAMPLES / "lighthouse.md")])


@pytest.fixture(scope="module")
def make(prose):
    def build(name, context=4096, pack=50, sample=0, seed=0):
        tokenizer = Words()
        cell = build_cell(BY_NAME[name], context, sample, seed, pack, prose, tokenizer)
        return tokenizer.decode(cell.ids).removeprefix("<user>"), [asked.question for asked in cell.asked], cell

    return build


@pytest.mark.parametrize("name", BY_NAME)
def test_length_and_seeds(make, name):
    for context in (2048, 8000):
        for pack in (1, 2, 50):
            _, questions, cell = make(name, context, pack)
            assert 0.99 * context <= cell.tokens <= context
            assert 1 <= len(questions) <= pack
            assert len({question.text for question in questions}) == len(questions)
            assert cell.tokens == len(cell.ids) + max(asked.room for asked in cell.asked)
    assert make(name) == make(name)
    assert make(name)[0] != make(name, sample=1)[0] and make(name)[0] != make(name, seed=1)[0]


@pytest.mark.parametrize("name", BY_NAME)
def test_expected_answers_as_ids(make, name, prose):
    tokenizer = Words()
    cell = build_cell(BY_NAME[name], 4096, 0, 0, 3, prose, tokenizer)
    for asked in cell.asked:
        parts = [tokenizer.decode(asked.answer_ids[start:stop]).strip() for start, stop in asked.spans]
        assert tuple(parts) == asked.question.parts
        assert tokenizer.decode(asked.ids).endswith(f"<answer>{asked.question.lead}")
        assert asked.max_tokens > len(asked.answer_ids)


@pytest.mark.parametrize("pack", [1, 50])
@pytest.mark.parametrize("name", NEEDLES)
def test_needles_stand_in_the_text_once_and_answer_the_questions(make, name, pack):
    text, questions, _ = make(name, pack=pack)
    told: dict[tuple[str, str], list[str]] = {}
    for kind, key, value in NEEDLE.findall(text):
        told.setdefault((kind, key), []).append(value)
        assert text.count(value) == 1
    several = 4 if name == "niah_multivalue" else 1
    assert all(len(values) == several for values in told.values())
    for question in questions:
        kind, keys = re.search(r"the (\w+ \w+?)s? for (.+?)(?:, as the text| that the text)", question.text).groups()
        expected = [value for key in re.split(r", | and ", keys) for value in told[(kind, key)]]
        assert list(question.parts) == expected
    if name.startswith("niah_single"):
        assert len({kind for kind, _ in told}) == len(told) == len(questions)
        assert all(len(value) == (36 if name.endswith("3") else 7) for values in told.values() for value in values)
    if (name, pack) == ("niah_multikey_1", 1):
        assert len(told) == 4
    if name in ("niah_multikey_2", "niah_multikey_3"):
        assert len(told) > 2 * len(questions)


@pytest.mark.parametrize("name", ["niah_single_2", "niah_multivalue", "qa2"])
def test_the_rest_is_a_stretch_of_the_prose_that_is_never_repeated(make, name, prose):
    text, _, _ = make(name, 8000)
    body = re.sub(r"[A-Z]\w+ [a-z ]+ the \w+(?: there)?\. ", "", NEEDLE.sub("", text)) if name == "qa2" else NEEDLE.sub("", text)
    squeezed, twice = re.sub(r"\s+", " ", body), re.sub(r"\s+", " ", f"{prose.text}\n\n{prose.text}")
    pieces = [squeezed[at : at + 60] for at in range(600, len(squeezed) - 400, 400)]
    found = [twice.find(piece) for piece in pieces if piece in twice]
    assert len(found) > 0.9 * len(pieces)
    assert all(squeezed.count(piece) == 1 for piece in pieces)


def test_noise_never_repeats_a_sentence(make):
    text, _, _ = make("niah_single_1", 8000)
    sentences = re.findall(r"The [a-z ]+\.", text)
    assert len(sentences) > 300 and len(set(sentences)) == len(sentences)


def test_packed_needles_are_spread_evenly(make):
    text, questions, _ = make("niah_multikey_1", 8000)
    places = [match.start() / len(text) for match in NEEDLE.finditer(text)]
    assert len(places) == len(questions) == 50
    assert all(abs(place - (at + 0.5) / 50) < 0.02 for at, place in enumerate(places))
    order = [questions[0].parts[0]] + [question.parts[0] for question in questions[1:]]
    assert order != sorted(order, key=text.index)


@pytest.mark.parametrize("pack", [1, 50])
def test_key_value_pairs(make, pack):
    text, questions, _ = make("kv_retrieval", pack=pack)
    pairs = json.loads(text[text.index("{") :])
    assert len({*pairs, *pairs.values()}) == 2 * len(pairs) > 2 * len(questions)
    for question in questions:
        assert question.parts == (pairs[re.search(r'"(.+?)"', question.text)[1]],)


@pytest.mark.parametrize("name", ["passkey", "number_string"])
def test_passkeys(make, name):
    what, digits = {"passkey": ("pass key", 5), "number_string": ("sequence of digits", 10)}[name]
    for pack in (1, 50):
        text, questions, _ = make(name, pack=pack)
        told = dict(re.findall(rf"The {what}((?: for [\w-]+)?) is (\d+)\. Remember it", text))
        assert len(told) == len(questions) and (pack > 1 or set(told) == {""})
        for question in questions:
            assert question.parts == (told[re.search(rf"What is the {what}(.*)\?", question.text)[1]],)
            assert len(question.parts[0]) == digits
            if name == "number_string":
                assert question.parts[0][::2] == question.parts[0][1::2]


@pytest.mark.parametrize("pack", [1, 50])
def test_variables(make, pack):
    text, questions, _ = make("vt", pack=pack)
    values, chains = {}, {}
    for new, old in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
        values[new] = values.get(old, old)
        chains.setdefault(values[new], []).append(new)
    assert len(chains) == len(questions) + 1 and len(questions) == (1 if pack == 1 else 10)
    for question in questions:
        value = re.search(r"\d+", question.text)[0]
        assert list(question.parts) == chains[value] and len(question.parts) == 5
    # the solved one comes first
    assert text.index("Question:") < text.index(questions[0].parts[0])


def test_common_and_frequent_words(make):
    for context, often, seldom in ((2048, 6, 1), (8000, 30, 3)):
        text, (question,), _ = make("cwe", context)
        items = re.findall(r"\d+\. (\w+)", text.split("The list: ")[1])
        counts = Counter(items)
        assert {word for word, count in counts.items() if count == often} == set(question.parts)
        assert len(question.parts) == 10 and set(counts.values()) == {often, seldom} and not question.ordered
    text, (question,), _ = make("fwe", 8000)
    counts = Counter(text[text.index("......") :].split()).most_common()
    assert counts[0][0] == "......" and [word for word, _ in counts[1:4]] == list(question.parts)
    assert counts[1][1] > counts[2][1] > counts[3][1] > counts[4][1]


def told_world(text):
    """Where the events of a text leave people and things, worked out from its sentences alone."""
    at, carrier, trails = {}, {}, {}

    def trace(thing, place):
        if trails.setdefault(thing, [])[-1:] != [place]:
            trails[thing].append(place)

    verbs = "went to|walked to|moved to|picked up|took|put down|dropped"
    for person, verb, what in re.findall(rf"([A-Z][a-z]+) ({verbs}) the (\w+)(?: there)?\.", text):
        if verb.endswith(" to"):
            at[person] = what
            for thing in [thing for thing, owner in carrier.items() if owner == person]:
                trace(thing, what)
        elif verb in ("picked up", "took"):
            assert what not in carrier and trails.get(what, [at[person]])[-1] == at[person], "taken where it was not"
            carrier[what] = person
            trace(what, at[person])
        else:
            assert carrier.pop(what) == person
    return at, trails


@pytest.mark.parametrize("pack", [1, 50])
@pytest.mark.parametrize("name", ["qa1", "qa2", "qa3"])
def test_stories(make, name, pack):
    for sample in range(6):
        text, questions, _ = make(name, pack=pack, sample=sample)
        at, trails = told_world(text)
        for question in questions:
            assert question.labels == PLACES and question.parts[0] in PLACES
            if name == "qa1":
                assert question.parts == (at[question.text.split()[2]],)
            elif name == "qa2":
                assert question.parts == (trails[question.text.split()[3]][-1],)
            else:
                thing, place = re.search(r"the (\w+) before the (\w+)", question.text).groups()
                assert trails[thing].count(place) == 1
                assert question.parts == (trails[thing][trails[thing].index(place) - 1],)


@pytest.mark.parametrize("same", [2, 4, 8])
def test_dialogues(make, same):
    for pack in (1, 50):
        text, questions, _ = make(f"mrcr_{same}", 8000, pack)
        said: dict[tuple[str, str], list[str]] = {}
        for form, subject, writing in re.findall(r"User: Write a (.+?) about the (.+?)\.\nWriter: (.+)\n", text):
            said.setdefault((form, subject), []).append(writing)
        assert len({tuple(writings) for writings in said.values()}) == len(said)
        ordinals = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
        for question in questions:
            mark, ordinal, form, subject = re.search(
                r"Write (\w{10}) and .* the (\w+) (.+) about the (.+) of the dia", question.text
            ).groups()
            assert question.opening == mark and len(said[(form, subject)]) == same
            assert question.parts == (said[(form, subject)][ordinals.index(ordinal)],)
            assert text.count(question.parts[0]) == 1 and mark not in text


def test_too_short_a_text_and_too_short_a_context(make):
    with pytest.raises(TextTooShort, match=r"the text has only [\d,]+ tokens, give a longer one by --text"):
        make("niah_single_2", 1 << 17)
    for name in ("cwe", "vt", "mrcr_8"):
        with pytest.raises(CannotBuild):
            make(name, 128)


def test_prose_turned_holds_everything_once():
    import random

    prose = Prose("One is one.\n\nTwo is two.\n\nThree is three.", "x")
    turned = {prose.turned(random.Random(seed)) for seed in range(20)}
    assert len(turned) == 3 and all(sorted(text.split("\n\n")) == sorted(prose.text.split("\n\n")) for text in turned)


def test_fitting():
    measured = []

    def tokens(text):
        measured.append(len(text))
        return len(text)

    text, held, size = fit(lambda size: "ab" * size, tokens, 1_000_000, 10_000_000)
    assert 990_000 <= held == len(text) == 2 * size <= 1_000_000 and len(measured) < 8
    assert fit(lambda size: "ab" * size, len, 1000, 30) == ("ab" * 30, 60, 30)
    # no size is near enough: the largest below is taken
    assert fit(lambda size: "x" * 300 * size, len, 1000, 99)[1] == 900
    with pytest.raises(CannotBuild):
        fit(lambda size: "x" * 2000, len, 1000, 9)


def test_planting_between_sentences():
    text = "A b. C d! E f? G h"
    assert plant(text, ["X.", "Y."], [0.0, 1.0]) == "X. A b. C d! E f? Y. G h"
    assert plant(text, ["X.", "Y."], [0.5, 0.5]) == "A b. X. Y. C d! E f? G h"
    assert [until(text, n) for n in (0, 1, 2, 6, 99)] == ["", "A", "A", "A b. C", text]


def test_choosing_tasks():
    assert SUITES == ("ruler", "kv", "passkey", "babi", "mrcr")
    assert len(choose(["ruler"])) == 11 and [task.name for task in choose(["ruler", "kv"], ["kv_retrieval", "vt"])] == [
        "kv_retrieval",
        "vt",
    ]
