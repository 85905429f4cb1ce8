"""Picks sentences that say most of what is particular to a part of a document, word for word with their page.

Works on text alone, by a score that docs/summaries.md writes out. Knows nothing of models.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hipcli.document import Document
from hipcli.outline import Part, Piece
from hipcli.words import WORD, substance, words_of

_STOP = re.compile(r"[.!?][\"')\]”’]*\s+|[。！？]|\n\s*\n|\n")
_ABBREVIATION = re.compile(r"(?:^|[\s(\[])(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|No|Nos|Fig|Sec|pp|vs|cf|e\.g|i\.e|etc)\.$")
_WHOLE = re.compile(r"[\"'(\[“‘]?[^\W_].*[.!?。！？][\"')\]”’]*$", re.DOTALL)
_LIST_MARK = re.compile(r"(?:[-*+•–—|#>]|\(?\d{1,3}[.)])\s")
# a line that ends before this share of the page's widest line was ended on purpose
_FULL_LINE = 0.7
_MOST_CHARS = 400
# so many words are added to a sentence's own, or two-word lines would score best
_LENGTH_PRIOR = 8
_NUMBER, _NAME, _FRAGMENT, _CENTRAL = 1.5, 1.25, 0.5, 0.5
# each sentence from a page makes its next ones count so much less, so that every page has its turn
_SAME_PAGE = 0.8
# a sentence this much of whose weight was said by those chosen before adds nothing
_SAID_BEFORE = 0.6


@dataclass(frozen=True)
class KeySentence:
    """page: index into Document.pages; start and end: offsets in its text; quote: that text with white space folded."""

    page: int
    start: int
    end: int
    quote: str
    score: float


@dataclass(frozen=True)
class _Sentence:
    page: int
    start: int
    end: int
    quote: str
    words: frozenset[str]


def key_sentences(
    document: Document, parts: Sequence[Part], words_per_sentence: int, most: int, focus: str | None = None
) -> list[list[KeySentence]]:
    """For each part its best sentences in the order of the text: one for each `words_per_sentence`, at least one, at most `most`."""
    by_part = [[sentence for piece in part.pieces for sentence in _sentences(piece, document)] for part in parts]
    frequency = Counter(word for sentences in by_part for sentence in sentences for word in sentence.words)
    total = sum(len(sentences) for sentences in by_part)
    rarity = {word: math.log(1 + total / count) * substance(word) for word, count in frequency.items()}
    wanted = {word: rarity[word] for word in words_of(focus or "") if word in rarity}
    chosen = []
    for part, sentences in zip(parts, by_part):
        count = max(1, min(most, round(sum(len(WORD.findall(piece.text)) for piece in part.pieces) / words_per_sentence)))
        local = Counter(word for sentence in sentences for word in sentence.words)
        scores = [_score(sentence, rarity, local, wanted) for sentence in sentences]
        chosen.append(_best(sentences, scores, rarity, count))
    return chosen


def _score(sentence: _Sentence, rarity: dict[str, float], local: Counter[str], wanted: dict[str, float]) -> float:
    """Rare words that the part comes back to, for its length; more for a number, a name or the focus, less for a fragment."""
    # a sorted sum is the same in every process, whatever order its words are hashed in
    weight = math.fsum(rarity[word] * (1 + _CENTRAL * math.log(local[word])) for word in sentence.words)
    score = weight / (len(WORD.findall(sentence.quote)) + _LENGTH_PRIOR)
    if any(char.isdigit() for char in sentence.quote):
        score *= _NUMBER
    if any(word[:1].isupper() for word in WORD.findall(sentence.quote)[1:]):
        score *= _NAME
    if not _WHOLE.match(sentence.quote) or sentence.quote[0].islower():
        score *= _FRAGMENT
    if wanted:
        score *= 1 + 2 * math.fsum(wanted[word] for word in wanted if word in sentence.words) / math.fsum(wanted.values())
    return score


def _best(sentences: Sequence[_Sentence], scores: Sequence[float], rarity: dict[str, float], count: int) -> list[KeySentence]:
    """Best first, each page's next one counting less, without those that repeat what was chosen; in the order of the text."""
    left, chosen = set(range(len(sentences))), []
    said: set[str] = set()
    from_page: Counter[int] = Counter()
    while left and len(chosen) < count:
        at = max(left, key=lambda index: (scores[index] * _SAME_PAGE ** from_page[sentences[index].page], -index))
        left.remove(at)
        words = sentences[at].words
        if math.fsum(rarity[word] for word in words & said) <= _SAID_BEFORE * math.fsum(rarity[word] for word in words):
            chosen.append(at)
            said |= words
            from_page[sentences[at].page] += 1
    picked = [(sentences[at], scores[at]) for at in sorted(chosen)]
    return [KeySentence(found.page, found.start, found.end, found.quote, round(score, 4)) for found, score in picked]


def _sentences(piece: Piece, document: Document) -> Iterator[_Sentence]:
    """Sentences, headings and rows of tables of a piece, those without a word left out."""
    text = document.pages[piece.page].text
    widest = max(len(line) for line in text.split("\n"))
    for low, high in _bounds(piece.text, widest * _FULL_LINE):
        for start, end in _short(piece.text, low, high):
            quote = " ".join(piece.text[start:end].split())
            if words := frozenset(words_of(quote)):
                yield _Sentence(piece.page, piece.start + start, piece.start + end, quote, words)


def _bounds(text: str, full_line: float) -> Iterator[tuple[int, int]]:
    """Where sentences begin and end, white space at their ends left out.

    A line ends one when it is much shorter than lines are and what follows begins anew, as after a heading or in a table.
    """
    low = 0
    for match in _STOP.finditer(text):
        body = text[low : match.end()].rstrip()
        after = text[match.end() : match.end() + 6]
        if match.group() == "\n":
            line = match.start() - text.rfind("\n", 0, match.start()) - 1
            ends = bool(_LIST_MARK.match(after)) or (line < full_line and not after[:1].islower())
        elif match.group()[0] in ".!?":
            ends = not after[:1].islower() and not _ABBREVIATION.search(body[-8:])
        else:
            ends = True
        if ends:
            yield low, low + len(body)
            low = match.end()
    yield low, len(text.rstrip())


def _short(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    """A sentence; what is far too long for one is cut at white space, at the end of a line where there is one."""
    low += len(text[low:high]) - len(text[low:high].lstrip())
    while high - low > _MOST_CHARS:
        cut = max(text.rfind("\n", low + 1, low + _MOST_CHARS), 0) or text.rfind(" ", low + 1, low + _MOST_CHARS)
        cut = cut if cut > low else low + _MOST_CHARS
        yield low, cut
        low = cut + len(text[cut:high]) - len(text[cut:high].lstrip())
    if high > low:
        yield low, high
