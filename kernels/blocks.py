"""Which queries form a block, and which blocks are dense: the part of the contract every backend shares.

A block depends on absolute positions alone, never on how a call was cut, so chunked prefill equals unchunked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Blocks:
    """`count` consecutive blocks of `rows` queries each, the first at position `first`."""

    first: int
    rows: int
    count: int

    @property
    def stop(self) -> int:
        return self.first + self.rows * self.count


def split_blocks(start: int, stop: int, block_len: int) -> list[Blocks]:
    """Cut queries [start, stop) at multiples of block_len: a ragged head, a run of whole blocks, a ragged tail.

    A call that starts between two multiples (a question suffix) starts a new, shorter block.
    """
    runs = []
    head = min(stop, -(-start // block_len) * block_len)
    if head > start:
        runs.append(Blocks(start, head - start, 1))
    whole = (stop - head) // block_len
    if whole > 0:
        runs.append(Blocks(head, block_len, whole))
    tail = head + max(0, whole) * block_len
    if tail < stop:
        runs.append(Blocks(tail, stop - tail, 1))
    return runs


def dense_stop(start: int, stop: int, block_len: int, dense_below: int, window: int = 0) -> int:
    """First query of [start, stop) that is not dense.

    A block is dense when its last query is below dense_below, or when its first is below `window`: nothing then lies
    before its window, and dense attention is the same thing.
    """
    end = start
    for run in split_blocks(start, stop, block_len):
        below = max(0, dense_below - run.first) // run.rows
        inside = -(-max(0, window - run.first) // run.rows)
        dense = min(run.count, max(below, inside))
        end = run.first + dense * run.rows
        if dense < run.count:
            break
    return end
