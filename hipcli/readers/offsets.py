"""Edit a text and keep the way back: which character of the original each character of the result came from.

Knows nothing of what the edits mean.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class OffsetMap:
    """Maps offsets in an edited text to offsets in the text it was made from.

    Stored as runs: from `starts[k]` on, offset i came from `origins[k] + i - starts[k]`. An unedited text is one run.
    """

    __slots__ = ("starts", "origins")

    def __init__(self) -> None:
        self.starts = array("q", [0])
        self.origins = array("q", [0])

    def __len__(self) -> int:
        return len(self.starts)

    def origin(self, offset: int) -> int:
        """The offset in the original of the character at `offset` of the result."""
        run = bisect_right(self.starts, offset) - 1
        return self.origins[run] + offset - self.starts[run]

    def add(self, start: int, origin: int) -> None:
        """Say that from `start` on the result follows the original from `origin` on; calls go up in `start`."""
        if origin - start == self.origins[-1] - self.starts[-1]:
            return
        if start == self.starts[-1]:
            self.origins[-1] = origin
            return
        self.starts.append(start)
        self.origins.append(origin)

    def over(self, inner: OffsetMap) -> OffsetMap:
        """This map followed by `inner`: from this result to the original of `inner`."""
        if len(inner) == 1 and inner.origins[0] == 0:
            return self
        joined = OffsetMap()
        for run, start in enumerate(self.starts):
            middle = self.origins[run]
            joined.add(start, inner.origin(middle))
            if run + 1 < len(self.starts):
                end = middle + self.starts[run + 1] - start
                last = bisect_left(inner.starts, end)
            else:
                last = len(inner.starts)
            for k in range(bisect_right(inner.starts, middle), last):
                joined.add(start + inner.starts[k] - middle, inner.origins[k])
        return joined


def edit(text: str, changes: Iterable[tuple[int, int, str]]) -> tuple[str, OffsetMap]:
    """Apply `changes`, each (start, end, replacement), ascending and not overlapping.

    Every character of a replacement maps to the first character that it replaces.
    """
    pieces: list[str] = []
    offsets = OffsetMap()
    position = length = 0
    for start, end, replacement in changes:
        pieces.append(text[position:start])
        length += start - position
        for _ in replacement:
            offsets.add(length, start)
            length += 1
        pieces.append(replacement)
        position = end
        offsets.add(length, end)
    if not pieces:
        return text, offsets
    pieces.append(text[position:])
    return "".join(pieces), offsets
