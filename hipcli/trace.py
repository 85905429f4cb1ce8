"""Traces what a question weighs of the prefix before it: attention mass by blocks of keys, at the layers that look far back.

An engine calls a trace as its `watch`, so whatever backend then attends is traced alike. Knows tensors and layers; no text.
"""

from __future__ import annotations

import time

import torch

from hipcli.attention import AttentionRuntime
from hipcli.devices import settle
from hipcli.kernels.mass import block_mass

SAMPLED_ROWS = 32
DISTANCE = 512  # tokens from every key to every row: within any model's window, and beyond the pull of neighbours


def traced_layers(layers: int) -> list[int]:
    """The middle third."""
    return list(range(layers // 3, max(layers // 3 + 1, 2 * layers // 3)))


class Trace:
    """Mass of one question's rows on the keys of the prefix.

    held: tokens of the prefix. rows: of the question, from the first on, that count; those after it are the template's.
    seconds: spent measuring.
    """

    def __init__(self, runtime: AttentionRuntime, held: int, rows: int) -> None:
        self._runtime, self._held = runtime, held
        self._layers = frozenset(traced_layers(runtime.store.shape.layers))
        self._at = (
            held + torch.arange(rows) if rows <= SAMPLED_ROWS else held + torch.arange(1, SAMPLED_ROWS + 1) * rows // SAMPLED_ROWS - 1
        )
        # by layer and first position: a chunk that ran out of memory comes again, and counts once
        self._sums: dict[tuple[int, int], torch.Tensor] = {}
        self.seconds = 0.0

    def __call__(self, layer: int, q: torch.Tensor, keys: torch.Tensor) -> None:
        """q: [H, n, D], the last n positions of keys [KV, T, D], as the backend stores them."""
        start = keys.shape[1] - q.shape[1]
        rows = self._at[(self._at >= start) & (self._at < keys.shape[1])] - start
        if layer not in self._layers or not rows.numel():
            return
        settle(q.device.type)
        began, backend = time.monotonic(), self._runtime.question_backend
        asked, held = q[:, rows.to(q.device)], keys[:, : self._held]
        mass = block_mass(asked, held, DISTANCE, backend.rope, lambda part, at: backend.keys_from_store(layer, part, at, q.dtype))
        self._sums[layer, start] = mass.cpu() * rows.numel()
        self.seconds += time.monotonic() - began

    def mass(self) -> torch.Tensor:
        """[layers traced, H, blocks] fp32, mean over the rows: each head's blocks sum to 1."""
        layers = sorted({layer for layer, _ in self._sums})
        total = [sum(mass for (of, _), mass in self._sums.items() if of == layer) for layer in layers]
        return torch.stack(total) / len(self._at)
