"""Where in a document a question looked: attention mass by blocks of tokens, against what any question draws, and by page.

Knows numbers and page borders; no models, no terminal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_FLOOR = 0.01  # of the mean block's mass: below it a block's mass counts as nothing


@dataclass(frozen=True)
class Gaze:
    """What one question drew from a document.

    drawn: [blocks] >= 0, of each block of `block_tokens` tokens of the prefix: nats by which the question's attention, mean
    over the heads traced, parts there from that of a question about nothing. pages: [blocks] int64, index of the page in
    which a block lies, -1 outside the document. by_page: [pages], sums of drawn.
    """

    drawn: np.ndarray
    pages: np.ndarray
    by_page: np.ndarray
    block_tokens: int
    first_token: int

    @staticmethod
    def of(mass, idle, page_starts: np.ndarray, first_token: int, tokens: int, block_tokens: int) -> Gaze:
        """From mass and idle, [layers, heads, blocks] each: what the question and what a question about nothing weigh.

        page_starts: [pages] index of each page's first token in the document, whose first token is prefix token `first_token`
        and which has `tokens` tokens.
        """
        starts = np.arange(mass.shape[-1]) * block_tokens - first_token
        middles = np.minimum(starts + block_tokens // 2, tokens - 1)
        # a block that the prompt before the document has most of is not the document's
        inside = (middles >= 0) & (starts < tokens)
        # an empty page begins where the next begins: the last of those that begin at a place holds it
        pages = np.where(inside, np.searchsorted(page_starts, middles, side="right") - 1, -1)
        drawn = np.zeros(mass.shape[-1])
        floor = _FLOOR / max(1, int(inside.sum()))
        # a layer at a time: a million tokens have 130,000 blocks in each head
        for asked, other in zip(mass, idle):
            asked, other = _shares(asked, inside), _shares(other, inside)
            drawn += (np.maximum(asked - other, 0) * np.log((asked + floor) / (other + floor))).mean(0)
        drawn /= len(mass)
        by_page = np.bincount(pages[inside], weights=drawn[inside], minlength=len(page_starts))
        return Gaze(drawn, pages, by_page, block_tokens, first_token)

    @property
    def total(self) -> float:
        """Nats drawn in all."""
        return float(self.by_page.sum())

    def shares(self) -> np.ndarray:
        """[pages], of what was drawn; zeros when nothing was."""
        return self.by_page / self.total if self.total > 0 else np.zeros_like(self.by_page)

    def peak(self, page: int, width: int = 4) -> tuple[int, int] | None:
        """Document tokens [start, stop) of the page's heaviest run of `width` blocks, None where it has no block."""
        here = np.flatnonzero(self.pages == page)
        if not here.size:
            return None
        sums = np.convolve(self.drawn[here], np.ones(min(width, here.size)), "valid")
        first = here[int(sums.argmax())]
        start = int(first) * self.block_tokens - self.first_token
        return max(0, start), start + min(width, here.size) * self.block_tokens

    def columns(self, count: int) -> np.ndarray:
        """[count] shares of what was drawn, of equal stretches of the document in order."""
        inside = np.flatnonzero(self.pages >= 0)
        total = self.drawn[inside].sum()
        if not inside.size or total <= 0:
            return np.zeros(count)
        at = np.arange(inside.size) * count // inside.size
        return np.bincount(at, weights=self.drawn[inside], minlength=count)[:count] / total


def _shares(mass: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Each head's mass within the document, as shares of it."""
    kept = np.where(inside, mass, 0.0).astype(np.float64)
    return kept / np.maximum(kept.sum(-1, keepdims=True), 1e-12)
