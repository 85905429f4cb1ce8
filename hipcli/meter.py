"""Watches a question being read and measures, at some layers and rows, what pruning left out of dense attention.

Knows tensors and layers; no text, no terminal.
"""

from __future__ import annotations

import time
from dataclasses import fields

import torch

from hipcli.attention import AttentionRuntime
from hipcli.devices import settle
from hipcli.kernels.blocks import dense_stop, split_blocks
from hipcli.kernels.coverage import Coverage, measure

SAMPLED_LAYERS = 8
FIRST_LAYERS = 3  # always among them: they are scanned in another way and keep more
SAMPLED_ROWS = 32


def sampled_layers(layers: int) -> list[int]:
    """The first three, the last, and others evenly between: SAMPLED_LAYERS in all, or every layer where there are fewer."""
    if layers <= SAMPLED_LAYERS:
        return list(range(layers))
    steps, last_first = SAMPLED_LAYERS - FIRST_LAYERS, FIRST_LAYERS - 1
    later = [last_first + round(i * (layers - 1 - last_first) / steps) for i in range(1, steps + 1)]
    return [*range(FIRST_LAYERS), *later]


def sampled_rows(start: int, stop: int) -> torch.Tensor:
    """Positions [R] int64 among [start, stop): all, or SAMPLED_ROWS evenly spread, the last among them."""
    count = stop - start
    if count <= SAMPLED_ROWS:
        return torch.arange(start, stop)
    return start + torch.arange(1, SAMPLED_ROWS + 1) * count // SAMPLED_ROWS - 1


class Meter:
    """Measures one question; an engine calls it as its `watch`. seconds: spent measuring; tokens: held when the last row was measured."""

    def __init__(self, runtime: AttentionRuntime) -> None:
        self._backend = runtime.question_backend
        self._layers = frozenset(sampled_layers(runtime.store.shape.layers))
        # by layer and first position of a block: a chunk that ran out of memory comes again, and counts once
        self._blocks: dict[tuple[int, int], Coverage] = {}
        self.seconds, self.tokens = 0.0, 0

    def __call__(self, layer: int, q: torch.Tensor, keys: torch.Tensor) -> None:
        """q: [H, n, D], the last n positions of keys [KV, T, D] as stored, both un-rotated."""
        if layer not in self._layers or self._backend.name == "dense":
            return
        start, stop, plan = keys.shape[1] - q.shape[1], keys.shape[1], self._backend.plan
        edge = dense_stop(start, stop, plan.block_len, self._backend.dense_below, plan.window_tokens)
        if edge == stop:
            return
        settle(q.device.type)
        began, rows = time.monotonic(), sampled_rows(edge, stop)
        numbers = self._backend.keys_from_store(layer, keys, 0, q.dtype)
        for run in split_blocks(edge, stop, plan.block_len):
            for first in range(run.first, run.stop, run.rows):
                at = rows[(rows >= first) & (rows < first + run.rows)]
                if at.numel():
                    block = q[:, first - start : first - start + run.rows]
                    self._blocks[layer, first] = self._measure(layer, block, keys, numbers, first, at)
        self.seconds, self.tokens = self.seconds + time.monotonic() - began, stop

    def _measure(self, layer: int, block, keys, numbers, first: int, at: torch.Tensor) -> Coverage:
        """Coverage of the rows at positions `at` of one block, on the CPU. keys: as stored; numbers: what they stand for."""
        plan, at = self._backend.plan, at.to(block.device)
        kept = self._backend.kept_keys(layer, block, keys, first)
        found = measure(block[:, at - first], numbers, at, kept, plan.sink_tokens, first - plan.window_tokens + 1, self._backend.rope)
        return Coverage(*(getattr(found, field.name).cpu() for field in fields(found)))

    def layers(self) -> dict[int, Coverage]:
        """Of each layer that was measured, ascending, the rows of all its blocks in order; empty when nothing was pruned."""
        found: dict[int, list[Coverage]] = {}
        for (layer, _), coverage in sorted(self._blocks.items(), key=lambda item: item[0]):
            found.setdefault(layer, []).append(coverage)
        return {layer: _joined(parts) for layer, parts in found.items()}


def _joined(parts: list[Coverage]) -> Coverage:
    """Rows of several blocks one after another."""
    return Coverage(*(torch.cat([getattr(part, field.name) for part in parts], dim=1) for field in fields(Coverage)))
