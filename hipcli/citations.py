"""Finds the pages that an answer's own words stand on.

Works on text alone: verbatim runs of words shared by answer and page, weighted by how rare the words
are in the document. Knows nothing of tokens or attention, so it says where the words stand, not what
the model looked at.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hipcli.document import Document, Page, place
from hipcli.words import CJK, WORD, substance, words_of

_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+|[。！？]|\n\s*\n")
_ANSWER_SENTENCE = re.compile(r"(?<=[.!?])\s+|[。！？]|\n")
MAX_CITATIONS = 3
_MAX_CANDIDATES = 40
_MAX_QUOTE_CHARS = 240
_MAX_ANSWER_WORDS = 1500
# the question's own words say less about where the answer stands
_ECHO = 0.5
# an answer's first sentence is the answer, what follows is often chatter
_FADE = 0.6
# stands between sentences, equal to no word, so that no run crosses
_BREAK = "\n"


@dataclass(frozen=True)
class Citation:
    """One page and a passage of it, word for word.

    page: physical number in its source. label: printed number, or time, or None. title: of the section, or None.
    quote: a substring of the page's text after white space is folded; start and end are offsets in that page's text.
    """

    source: str
    page: int
    label: str | None
    quote: str
    start: int
    end: int
    title: str | None = None

    @property
    def place(self) -> str:
        """p. 12, or p. 12 (printed "iv"), The Lamp."""
        return f"p. {self.page}{place(self.page, self.label, self.title)}"


@dataclass(frozen=True)
class Match:
    """What a page (an index into Document.pages) shares with an answer: a score, and its heaviest run of words [start, end)."""

    index: int
    score: float
    start: int
    end: int


def cite(answer: str, question: str, document: Document) -> list[Citation]:
    """Up to three pages that hold the answer's words, best first; empty when none does."""
    matches = match_pages(answer, question, document)
    best = matches[0].score if matches else 0.0
    return [make_citation(document, match.index, match.start, match.end) for match in matches[:MAX_CITATIONS] if match.score >= 0.5 * best]


def match_pages(answer: str, question: str, document: Document) -> list[Match]:
    """The pages that share telling words with an answer, best first."""
    words = [word for sentence in _ANSWER_SENTENCE.split(answer.strip()) for word in (*words_of(sentence), _BREAK)][:_MAX_ANSWER_WORDS]
    weights, echoes, candidates = _weigh(set(words), set(words_of(question)), document)
    matches = [match for index in candidates if (match := _match(index, document.pages[index], words, weights, echoes))]
    return sorted(matches, key=lambda match: (-match.score, match.index))


def _weigh(answer: set[str], question: set[str], document: Document) -> tuple[dict[str, float], dict[str, float], list[int]]:
    """Weights of the answer's words, weights of the question's, and the pages worth a closer look."""
    present = [(answer | question).intersection(words_of(page.text)) for page in document.pages]
    frequency = Counter(word for words in present for word in words)
    rarity = {word: math.log(1 + len(present) / count) * substance(word) for word, count in frequency.items()}
    weights = {word: rarity[word] * (_ECHO if word in question else 1.0) for word in answer if word in rarity}
    echoes = {word: rarity[word] for word in question if word in rarity}
    # exact, since a set's words come in another order in every process
    totals = [math.fsum(weights.get(word, 0.0) for word in words) for words in present]
    ranked = sorted((index for index, total in enumerate(totals) if total > 0), key=lambda index: (-totals[index], index))
    return weights, echoes, ranked[:_MAX_CANDIDATES]


def _match(index: int, page: Page, words: Sequence[str], weights: dict[str, float], echoes: dict[str, float]) -> Match | None:
    """The page's score and its heaviest run of words shared with the answer."""
    spans = [(found.group(), found.start(), found.end()) for found in WORD.finditer(page.text)]
    spans = [(word.casefold(), start, end) for word, start, end in spans]
    longest = [0] * len(words)
    fades = [_FADE**sentence for sentence in accumulate((word == _BREAK for word in words), initial=0)]
    best, best_run = 0.0, (0, 0)
    for first, length, at in _runs(spans, words):
        for offset in range(length):
            longest[at + offset] = max(longest[at + offset], length)
        weight = sum(weights.get(word, 0.0) for word in words[at : at + length]) * _lift(length) * fades[at]
        if _tells(words[at : at + length], weights) and weight > best:
            best, best_run = weight, (first, first + length - 1)
    if not best:
        return None
    score = sum(weights.get(word, 0.0) * _lift(length) * fade for word, length, fade in zip(words, longest, fades) if length)
    here = {word for word, _, _ in spans}
    score += 0.15 * math.fsum(weight for word, weight in echoes.items() if word in here)
    return Match(index, score, spans[best_run[0]][1], spans[best_run[1]][2])


def _runs(spans: Sequence[tuple[str, int, int]], words: Sequence[str]):
    """Maximal common runs as (index on the page, length, index in the answer)."""
    places: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        places.setdefault(word, []).append(at)
    for first, (word, _, _) in enumerate(spans):
        for at in places.get(word, ()):
            if first and at and spans[first - 1][0] == words[at - 1]:
                continue
            length = 1
            while first + length < len(spans) and at + length < len(words) and spans[first + length][0] == words[at + length]:
                length += 1
            yield first, length, at


def _lift(length: int) -> float:
    """Words in a row are worth more than the same words apart."""
    return min(1.0, 0.3 + 0.175 * (length - 1))


def _tells(run: Sequence[str], weights: dict[str, float]) -> bool:
    """Whether a shared run is evidence: three words with some substance, or a rare name or number."""
    heaviest = max(weights.get(word, 0.0) for word in run)
    if len(run) >= 3:
        return sum(weights.get(word, 0.0) for word in run) >= 1.0
    return heaviest >= 0.6 and any(len(word) >= 4 or word[0].isdigit() or re.match(f"[{CJK}]", word) for word in run)


def make_citation(document: Document, index: int, start: int, end: int) -> Citation:
    """The sentence around [start, end) of a page, cut out of its text."""
    page = document.pages[index]
    start, end = _sentence(page.text, start, end)
    quote = " ".join(page.text[start:end].split())
    return Citation(document.sources[page.source].name, page.number, page.label, quote, start, end, page.title)


def sentences_of(text: str) -> list[int]:
    """The first character of each of a page's sentences, white space left out."""
    starts = [0, *(found.end() for found in _SENTENCE_END.finditer(text))]
    return [
        start + len(text[start:stop]) - len(text[start:stop].lstrip())
        for start, stop in zip(starts, [*starts[1:], len(text)])
        if text[start:stop].strip()
    ]


def _sentence(text: str, start: int, end: int) -> tuple[int, int]:
    """Bounds of the sentence around [start, end), cut at words to a readable length."""
    low = 0
    for found in _SENTENCE_END.finditer(text, max(0, start - 2000), start):
        low = found.end()
    after = _SENTENCE_END.search(text, end)
    high = after.end() if after else len(text)
    low, high = max(low, start - 2000), min(high, end + 2000)
    if high - low > _MAX_QUOTE_CHARS:
        low = max(low, start - max(0, _MAX_QUOTE_CHARS - (end - start)) // 2)
        high = min(high, max(end, low + _MAX_QUOTE_CHARS))
        while low < start and low > 0 and not text[low - 1].isspace():
            low += 1
        while high > start + 1 and high < len(text) and not text[high].isspace():
            high -= 1
    while low < high and text[low].isspace():
        low += 1
    while high > low and text[high - 1].isspace():
        high -= 1
    return low, high
