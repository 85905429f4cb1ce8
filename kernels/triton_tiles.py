"""Tile sizes of every kernel, chosen from sizes alone: no autotuning, so results and the first call's time are stable.

The figures were found on an H200; other GPUs run with them, untuned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton


@dataclass(frozen=True)
class Tiles:
    """block: keys or chunks of one product. tiles: products of one program. warps, pipeline: of the launch."""

    block: int
    tiles: int
    warps: int
    pipeline: int


def _narrow(dtype: torch.dtype) -> bool:
    """Whether two bytes hold an element: fp32 products run without matrix units, in small tiles."""
    return dtype.itemsize <= 2


def picker_tile(rows: int, rest: int, head_dim: int, dtype: torch.dtype) -> int:
    """Query rows of one product of the scan, at least 16. rest: keys of a chunk that are scored whole."""
    if not _narrow(dtype):
        return 16 if rows <= 16 else 32
    # a product of a whole long chunk with more rows would not fit the registers
    most = 64 if rest > 64 else 256 if head_dim <= 128 else 128
    tile = min(most, max(16, triton.next_power_of_2(rows)))
    # rows that fill the last tile badly go in smaller ones
    if rows > 64 and triton.cdiv(rows, 64) * 64 * 5 < triton.cdiv(rows, tile) * tile * 4:
        return 64
    return tile


def descend_tiles(chunks: int, blocks: int, rows: int, head_dim: int, dtype: torch.dtype) -> tuple[Tiles, int]:
    """Of a descent over `chunks` candidates of each of `blocks` blocks; and the query rows it takes at a time."""
    if not _narrow(dtype):
        return Tiles(16, 1, 4, 1), min(rows, 16)
    wide = blocks > 1 and head_dim <= 128
    return Tiles(128 if wide else 32, 1, 8 if wide else 4, 1), min(rows & -rows, 64)


def rest_tiles(keys: int, blocks: int, rest: int, rows: int, turned: bool, head_dim: int, dtype: torch.dtype) -> Tiles:
    """Of scoring `keys` keys, in runs of `rest`, for each of `blocks` blocks; turned: they are rotated on the way."""
    if not _narrow(dtype):
        return Tiles(max(rest, 32), 8 if blocks > 1 else 1, 4, 1)
    if blocks > 1 or rows > 64:
        return Tiles(max(rest, 64), 32 if blocks > 1 else 4, 8 if rest > 128 else 4, 2)
    if rest > 128:
        return Tiles(rest, 4, 8, 2)
    return Tiles(max(rest, 128 if head_dim <= 128 else 64), 4 if keys > 1 << 14 else 1, 4, 3 if not turned else 2)


def attend_tiles(rows: int, head_dim: int, dtype: torch.dtype) -> tuple[int, Tiles]:
    """Query rows of a program, and the keys it takes at a time, of prefill attention."""
    if not _narrow(dtype):
        return 16, Tiles(16, 1, 4, 1)
    if head_dim > 128:
        return min(64, max(16, triton.next_power_of_2(rows))), Tiles(32, 1, 8, 1)
    return min(256, max(16, triton.next_power_of_2(rows))), Tiles(64, 1, 8 if rows > 64 else 4, 2)


def decode_tiles(head_dim: int, dtype: torch.dtype) -> Tiles:
    """Of decode attention."""
    if not _narrow(dtype) or head_dim > 128:
        return Tiles(32, 1, 4, 1)
    return Tiles(64, 2, 4, 2)
