"""Intervals and paired comparisons of shares of right answers. Numbers only."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959963984540054  # 95 %


def wilson(successes: float, count: int, z: float = Z) -> tuple[float, float]:
    """Wilson's interval of a share. successes may be a sum of partial credits, for which it is wide enough."""
    if count == 0:
        return 0.0, 1.0
    share, square = successes / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(cells: Sequence[tuple[float, int]], z: float = Z) -> tuple[float, float, float]:
    """Mean of the tasks' shares, each of equal weight, and its interval. cells: (successes, count) of each task.

    The variance of each share is taken at Wilson's middle, so that a task with all right is not taken as certain.
    """
    mean = sum(successes / count for successes, count in cells) / len(cells)
    variance = 0.0
    for successes, count in cells:
        middle = (successes + z * z / 2) / (count + z * z)
        variance += middle * (1 - middle) / (count + z * z)
    half = z * math.sqrt(variance) / len(cells)
    return mean, max(0.0, mean - half), min(1.0, mean + half)


@dataclass(frozen=True)
class Paired:
    """Two ways on the same questions: how many both, only the first, only the second and neither had right."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def p(self) -> float:
        """McNemar's exact two-sided probability of a split at least as uneven where both ways are as good."""
        split, least = self.only_first + self.only_second, min(self.only_first, self.only_second)
        tail = sum(math.comb(split, k) for k in range(least + 1))
        return min(1.0, 2 * tail / 2**split)


def paired(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """Counts of two rows of verdicts on the same questions in the same order."""
    pairs = list(zip(first, second, strict=True))
    return Paired(*(pairs.count(case) for case in ((True, True), (True, False), (False, True), (False, False))))


def rank_auc(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """Probability that a figure of a right answer is above that of a wrong one, ties by half; None where one kind is missing."""
    if not right or not wrong:
        return None
    ordered = sorted(wrong)
    below = sum(bisect_left(ordered, figure) + bisect_right(ordered, figure) for figure in right)
    return below / (2 * len(right) * len(wrong))
