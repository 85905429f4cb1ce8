"""Names, numbers, codes and filler sentences, all drawn from a seeded generator. No two of a kind are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import TypeVar

T = TypeVar("T")


def _split(text: str, separator: str = " ") -> tuple[str, ...]:
    return tuple(text.split(separator))


ADJECTIVES = _split(
    "agile amber ancient arctic ashen autumn azure bald blunt bold brass brave brief bright brisk bronze calm candid chilly civil clever "
    "coastal cobalt copper coral cosmic crimson crisp curly damp daring dusky dusty eager early earnest elastic elder famous feral fierce "
    "fleet floral foggy formal frail frosty frugal gaudy gentle gilded glad glossy golden grand grave hardy hasty hazel hidden hollow "
    "honest humble icy idle inner ivory jolly keen kind lanky lavish lean level linen lively lofty lone loud loyal lucid lunar marble "
    "mellow merry mild misty modest mossy muted narrow neat nimble noble northern oaken odd olive opal outer pale patient pearly plain "
    "polar polite proud quaint quick quiet rapid rare rigid rosy royal rural rusty salty scarlet secret serene sharp shiny silent silver "
    "sleek slender slow smoky snowy sober solar solemn stark steady stern stout sturdy subtle sunny supple swift tall tame tardy tender "
    "thrifty tidy timid tiny tranquil upper urban valiant velvet vivid warm wary wicker wild windy wise wooden woolly young zesty"
)
NOUNS = _split(
    "acorn almond anchor anvil apron arbor atlas badger banjo barley barrel basin basket beacon beaver bell birch bishop blanket boulder "
    "bracket bramble bridge bucket buckle button cabin cactus camel candle canoe canyon carpet castle cedar cellar chapel cherry chisel "
    "cider cinder clover cobble comet compass cottage cradle cricket crown cymbal daisy dolphin donkey dragon drum eagle easel elbow "
    "ember engine falcon feather fennel ferry fiddle finch flagon flute forge fossil fountain fox galley garden garnet gate gazelle "
    "ginger glacier goblet goose granite grape griffin grotto hammer hamlet harbor harp hatchet hawk hazelnut hedge helmet heron hinge "
    "honey hornet iris island jackal jasmine jasper jetty juniper kettle kite ladder lagoon lantern lark lattice lemon lentil lily "
    "lizard locket lobster lute magnet magpie mallet mantle maple meadow melon mill mirror mitten monk mortar mulberry mule mustard nectar "
    "needle nettle nutmeg oar oboe onion orchard orchid osprey otter oyster paddle palace panther parrot parsley peach pebble pelican "
    "pepper pigeon pillar pine pistol plum poplar poppy potter pulley pumpkin quarry quartz quill quilt rabbit radish raft raven reef "
    "ribbon river robin rocket rudder saddle saffron salmon sandal satchel sparrow spindle spruce squirrel stable stallion statue "
    "stork summit swan tailor tambourine teapot temple thicket thimble thistle thorn thrush timber torch trellis trumpet tulip tunnel "
    "turnip turtle turret valley vessel viola violet walnut walrus wagon weasel whistle willow windmill wolf wren yarrow zebra"
)
# what a number or code may belong to: packed single needles differ in more than their key
THINGS = _split(
    "locker ticket berth parcel ledger permit cargo bicycle mailbox telephone room badge licence invoice carriage stall cabinet vault "
    "contract tram hangar customer shelf garage library racing platform policy voucher membership storage meter mooring reference patent "
    "chapter docket lottery manifest hotel furnace orchard pump shipment seat turbine warehouse workshop antenna valve"
)
_SUBJECTS = _split(
    "cloud field road stream hill bird leaf breeze fence pond stone morning evening barn path shore shadow roof branch garden well lane "
    "tide moth bell"
)
_VERBS = _split(
    "rests lingers turns waits brightens fades settles drifts shimmers leans stirs gathers slows glows bends sways opens darkens rises "
    "sinks"
)
_MANNERS = _split("slowly softly again quietly gently lightly early late calmly evenly freely idly barely plainly warmly coolly")
_PLACES = _split(
    "the mill|the orchard|the old wall|the river|the chapel|the far gate|the meadow|the lake|the valley|the harbour|the village|the ridge|"
    "the marsh|the footbridge|the oak wood|the haystack|the ford|the pasture|the cliff|the inn",
    "|",
)
_LINKS = _split("beside behind above near beyond before below past")


def distinct(make: Callable[[], T], taken: set[T]) -> Iterator[T]:
    """Endless values of `make`, none of which is in `taken` or came before; each is added to it."""
    while True:
        value = make()
        if value not in taken:
            taken.add(value)
            yield value


def absent(make: Callable[[], str], text: str, count: int) -> list[str]:
    """`count` distinct strings of which none stands in `text`, in whatever case."""
    lower = text.lower()
    return list(islice((value for value in distinct(make, set()) if value.lower() not in lower), count))


def keys(draw: Random, parts: int = 2) -> Callable[[], str]:
    """Names such as amber-falcon; with three parts there are millions of them."""
    return lambda: "-".join([*draw.sample(ADJECTIVES, parts - 1), draw.choice(NOUNS)])


def numbers(draw: Random, digits: int = 7) -> Callable[[], str]:
    return lambda: str(draw.randrange(10 ** (digits - 1), 10**digits))


def uuids(draw: Random) -> Callable[[], str]:
    """Random identifiers in the form of a UUID of version 4."""

    def make() -> str:
        digits = f"{draw.getrandbits(128):032x}"
        digits = f"{digits[:12]}4{digits[13:16]}{draw.choice('89ab')}{digits[17:]}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    return make


def letters(draw: Random, length: int, alphabet: str) -> Callable[[], str]:
    return lambda: "".join(draw.choices(alphabet, k=length))


def syllables(draw: Random, count: int = 3) -> Callable[[], str]:
    """Words of no language that can be spoken, such as "velomi"."""
    return lambda: "".join(draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(count))


def noise(draw: Random, characters: int) -> str:
    """At least so many characters of plain sentences that say nothing; no sentence comes twice."""
    choices: Sequence[Sequence[str]] = (ADJECTIVES, _SUBJECTS, _VERBS, _MANNERS, _LINKS, _PLACES)

    def sentence() -> str:
        return "The {} {} {} {} {} {}.".format(*(draw.choice(words) for words in choices))

    lines, held = [], 0
    for line in distinct(sentence, set()):
        if held >= characters:
            return " ".join(lines)
        lines.append(line)
        held += len(line) + 1
    raise AssertionError("distinct never ends")
