"""BABILong's first three tasks: a small world whose events are scattered over real prose, and questions about where it ended.

Own wording, people and things; the rules of the world are bAbI's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hipcli.suite.fit import plant, until
from hipcli.suite.metrics import one_label
from hipcli.suite.tasks import Draft, Question, Source, Task

PEOPLE = (
    "Agneta",
    "Bruno",
    "Celeste",
    "Dmitri",
    "Esmeralda",
    "Fergus",
    "Gwendolyn",
    "Hamish",
    "Ingeborg",
    "Joaquin",
    "Katarina",
    "Lorenzo",
)
OBJECTS = ("trumpet", "pineapple", "wrench", "teddy", "helmet", "violin", "umbrella", "candlestick")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
PUBLISHED_PEOPLE, PUBLISHED_OBJECTS = 4, 3
MOVES_PER_PERSON = 3
TOURS = 2  # times each object is carried about
_INTRO = (
    "Scattered over the text below are short facts about where people go and what they carry. Keep track of them.\n"
    "For example: Walter went to the attic. Walter moved to the cellar. Where is Walter now? Walter is now in the cellar.\n\n"
)


@dataclass
class World:
    """Who and what is where. events: sentences so far. trails: the places an object has been at, in order, none twice in a row."""

    draw: Random
    at: dict[str, str] = field(default_factory=dict)
    carrier: dict[str, str] = field(default_factory=dict)
    lies: dict[str, str] = field(default_factory=dict)
    trails: dict[str, list[str]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def move(self, person: str, place: str | None = None) -> None:
        """Let a person walk, with all that is carried, to a place or to any other than where they are."""
        self.at[person] = place or self.draw.choice([name for name in PLACES if name != self.at.get(person)])
        self.events.append(f"{person} {self.draw.choice(('went to', 'walked to', 'moved to'))} the {self.at[person]}.")
        for thing, owner in self.carrier.items():
            if owner == person:
                self._trace(thing, self.at[person])

    def take(self, person: str, thing: str) -> None:
        """Let a person pick up a thing, walking to where it lies first."""
        if thing in self.lies and self.at.get(person) != self.lies[thing]:
            self.move(person, self.lies[thing])
        elif person not in self.at:
            self.move(person)
        self.lies.pop(thing, None)
        self.carrier[thing] = person
        self._trace(thing, self.at[person])
        self.events.append(f"{person} {self.draw.choice(('picked up', 'took'))} the {thing} there.")

    def drop(self, thing: str) -> None:
        person = self.carrier.pop(thing)
        self.lies[thing] = self.at[person]
        self.events.append(f"{person} {self.draw.choice(('put down', 'dropped'))} the {thing} there.")

    def _trace(self, thing: str, place: str) -> None:
        trail = self.trails.setdefault(thing, [])
        if trail[-1:] != [place]:
            trail.append(place)

    def where(self, thing: str) -> str:
        return self.at[self.carrier[thing]] if thing in self.carrier else self.lies[thing]


def _walks(world: World, people: list[str]) -> None:
    turns = world.draw.sample(people * MOVES_PER_PERSON, len(people) * MOVES_PER_PERSON)
    for person in turns:
        world.move(person)


def _tours(world: World, people: list[str], things: list[str]) -> None:
    """Each thing is taken, carried to one or two places and put down (the last time perhaps not), among other walks."""
    for thing in world.draw.sample(things * TOURS, len(things) * TOURS):
        if thing in world.carrier:
            world.drop(thing)
        person = world.draw.choice(people)
        world.take(person, thing)
        for _ in range(world.draw.randint(1, 2)):
            world.move(person)
        if world.draw.random() < 0.7:
            world.drop(thing)
        world.move(world.draw.choice(people))


def _question(text: str, place: str, lead: str) -> Question:
    return Question(text, (place,), lead, labels=tuple(PLACES))


def _people_questions(world: World) -> list[Question]:
    return [_question(f"Where is {person} now?", place, f"{person} is now in the") for person, place in world.at.items()]


def _object_questions(world: World) -> list[Question]:
    return [_question(f"Where is the {thing} now?", world.where(thing), f"The {thing} is now in the") for thing in world.trails]


def _history_questions(world: World) -> list[Question]:
    """Where a thing was before a place it has been at once."""
    asked = []
    for thing, trail in world.trails.items():
        steps = [step for step in range(1, len(trail)) if trail.count(trail[step]) == 1]
        if steps:
            step = world.draw.choice(steps)
            text, lead = f"Where was the {thing} before the {trail[step]}?", f"Before the {trail[step]} the {thing} was in the"
            asked.append(_question(text, trail[step - 1], lead))
    return asked


def story(ask: Callable[[World], list[Question]], carrying: bool) -> Callable[[Source], Draft]:
    """A task whose world ends before it is asked about; packed, there are more people and things, and all are asked about."""

    def build(source: Source) -> Draft:
        draw, text = source.draw, source.prose
        one = " ".join(["Gwendolyn picked up the candlestick there."] * (8 if carrying else MOVES_PER_PERSON))
        several = source.affordable(one)
        people = draw.sample(PEOPLE, min(len(PEOPLE), max(PUBLISHED_PEOPLE if source.pack == 1 else 2, several)))
        things = draw.sample(OBJECTS, min(len(OBJECTS), PUBLISHED_OBJECTS if source.pack == 1 else several))
        questions: list[Question] = []
        while not questions:
            world = World(draw)
            _walks(world, people)
            if carrying:
                _tours(world, people, things)
            questions = ask(world)
        asked = draw.sample(questions, min(source.pack, len(questions)))
        places = sorted(draw.random() for _ in world.events)
        return Draft(tuple(asked), lambda size: _INTRO + plant(until(text, size), world.events, places), len(text))

    return build


TASKS = (
    Task("qa1", "babi", story(_people_questions, carrying=False), one_label, needs_prose=True),
    Task("qa2", "babi", story(_object_questions, carrying=True), one_label, needs_prose=True),
    Task("qa3", "babi", story(_history_questions, carrying=True), one_label, needs_prose=True),
)
