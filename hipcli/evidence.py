"""The pages an answer rests on, from three witnesses: the answer's words, the question's words, and where the question looked.

Also says when they point nowhere. Knows documents and numbers; no models, no terminal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hipcli.citations import MAX_CITATIONS, Citation, Match, make_citation, match_pages, sentences_of
from hipcli.document import Document
from hipcli.gaze import Gaze
from hipcli.words import substance, words_of

# characters [start, end) of a page's text for tokens [start, stop) of the document: (page, start, stop) -> (start, end)
CharsOf = Callable[[int, int, int], tuple[int, int]]

DIGITS = 4
LEAST_SHARE = 0.5  # a page that scores less than this share of the best one is not cited
SAID_WEIGHT = 0.5  # of the answer's words beside the other two: a small model's answer is often wrong, its question never
TRUSTED_SUPPORT = 0.46  # docs/citations.md has the false alarms on either side
# words that stand in every question and say nothing of where its answer is
_EMPTY = frozenset(
    "a an the of to in on at by for with from and or is are was were be been it its that this these those what which who whom whose "
    "when where why how many much long did does do has have had as into not no than then there may can must he she they his her their".split()
)


@dataclass(frozen=True)
class Evidence:
    """What an answer rests on.

    citations: up to three, best first; cited: their pages, as indices into Document.pages. support: 0 to 1, the share of the
    question's words in one passage. gaze: where the question looked, None when it was not traced.
    """

    citations: tuple[Citation, ...]
    cited: tuple[int, ...]
    support: float
    gaze: Gaze | None = None

    @property
    def is_supported(self) -> bool:
        """Whether the document seems to hold what was asked."""
        return bool(self.citations) and self.support >= TRUSTED_SUPPORT


def gather(answer: str, question: str, document: Document, gaze: Gaze | None = None, chars_of: CharsOf | None = None) -> Evidence:
    """Weigh the witnesses; without a gaze only the words speak."""
    matches = {match.index: match for match in match_pages(answer, question, document)}
    asked = QuestionWords(question, document)
    said = np.array([matches[index].score if index in matches else 0.0 for index in range(len(document.pages))])
    scores = combine(asked.by_page, said, gaze.by_page if gaze is not None else None)
    order = [int(index) for index in np.argsort(-scores, kind="stable")[:MAX_CITATIONS]]
    cited = tuple(index for index in order if scores[index] > 0 and scores[index] >= LEAST_SHARE * scores[order[0]])
    citations = tuple(_quote(index, matches.get(index), asked, words_of(answer), document, gaze, chars_of) for index in cited)
    return Evidence(citations, cited, asked.passage, gaze)


def combine(asked: np.ndarray, said: np.ndarray, drawn: np.ndarray | None = None) -> np.ndarray:
    """[pages] scores, from question's words, answer's words and attention, each against its own best."""
    scores = _against_best(asked) + SAID_WEIGHT * _against_best(said)
    return scores if drawn is None else scores + _against_best(drawn)


def _against_best(scores: np.ndarray) -> np.ndarray:
    return scores / max(float(scores.max(initial=0.0)), 1e-12)


class QuestionWords:
    """A question's telling words in a document.

    weights: of each word, by how rare it is; a word that stands nowhere weighs as one that stands on one page. by_page: [pages]
    summed weights of those that stand there. passage: share of all weights in the two sentences in a row that have most.
    """

    def __init__(self, question: str, document: Document) -> None:
        words = [word for word in dict.fromkeys(words_of(question)) if word not in _EMPTY]
        present = [set(words).intersection(words_of(page.text)) for page in document.pages]
        frequency = Counter(word for here in present for word in here)
        pages = len(present)
        self.weights = {word: math.log(1 + pages / max(1, frequency[word])) * substance(word) for word in words}
        self.by_page = np.array([math.fsum(self.weights[word] for word in here) for here in present])
        total = sum(self.weights.values())
        self.passage = self._best_passage(document) / total if total else 0.0

    def _best_passage(self, document: Document) -> float:
        best = 0.0
        for index in np.argsort(-self.by_page, kind="stable"):
            # no passage has more than its page
            if self.by_page[index] <= best:
                break
            text = document.pages[index].text
            starts = [*sentences_of(text), len(text)]
            best = max(best, *(self.weigh(text[start:stop]) for start, stop in zip(starts, [*starts[2:], len(text)])))
        return best

    def weigh(self, text: str) -> float:
        """Summed weights of those in a text."""
        # exact: words come in another order in every process, and passages that weigh the same must stay equal
        return math.fsum(self.weights[word] for word in set(words_of(text)) if word in self.weights)


def _quote(index: int, match: Match | None, asked: QuestionWords, said: list[str], document: Document, gaze, chars_of) -> Citation:
    """The sentence of a page that has most of what was asked and said: where the words match, where the question looked, or any."""
    text, spans = document.pages[index].text, []
    if match is not None:
        spans.append((match.start, match.end))
    if gaze is not None and chars_of is not None and (peak := gaze.peak(index)) is not None:
        spans.append(chars_of(index, *peak))
    spans += [(start, start + 1) for start in sentences_of(text)]
    rare = {word for word in said if word not in _EMPTY}
    made = [make_citation(document, index, start, end) for start, end in spans]
    return max(made, key=lambda citation: asked.weigh(citation.quote) + 0.5 * len(rare.intersection(words_of(citation.quote))))
