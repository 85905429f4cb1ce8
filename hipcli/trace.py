"""Traces what a question weighs of the prefix before it: attention mass by blocks of keys, at the layers that look far back.

An engine calls a trace as its `watch`, so whatever backend then attends is traced alike. Knows tensors and layers; no text.
"""

from __future__ import annotations

import time
from functools import partial

import torch

from hipcli.attention import AttentionRuntime
from hipcli.devices import settle
from hipcli.kernels.mass import block_mass

SAMPLED_ROWS = 32
LEAD_ROWS = 4
DISTANCE = 512  # tokens from every key to every row: within any model's window, and beyond the pull of neighbours


def traced_layers(layers: int) -> list[int]:
    """The sixth that ends at two thirds: as good as the whole middle third, at half the cost (docs/citations.md)."""
    return list(range(layers // 2, max(layers // 2 + 1, 2 * layers // 3)))


class Trace:
    """Mass of one question's rows on the keys of the prefix, and that of the words that lead in every question.

    held: tokens of the prefix. lead: rows that every question begins with; no row sees what is behind it, so what these draw
    any question draws. rows: of the question, the lead among them; those after it are the template's. seconds: spent measuring.
    """

    def __init__(self, runtime: AttentionRuntime, held: int, lead: int, rows: int) -> None:
        if not 0 < lead < rows:
            raise ValueError(f"lead must be within 1 and {rows - 1}, got {lead}")
        self._runtime, self._held = runtime, held
        self._layers = frozenset(traced_layers(runtime.store.shape.layers))
        own, kept = rows - lead, min(rows - lead, SAMPLED_ROWS)
        self._lead = held + torch.arange(max(0, lead - LEAD_ROWS), lead)
        self._own = held + lead - 1 + torch.arange(1, kept + 1) * own // kept
        # by layer and first position: a chunk that ran out of memory comes again, and counts once
        self._sums: dict[tuple[int, int], torch.Tensor] = {}
        self.seconds = 0.0

    def __call__(self, layer: int, q: torch.Tensor, keys: torch.Tensor) -> None:
        """q: [H, n, D], the last n positions of keys [KV, T, D], as the backend stores them."""
        start = keys.shape[1] - q.shape[1]
        groups = [at[(at >= start) & (at < keys.shape[1])] - start for at in (self._lead, self._own)]
        rows = torch.cat(groups)
        if layer not in self._layers or not rows.numel():
            return
        settle(q.device.type)
        began, backend, sizes = time.monotonic(), self._runtime.question_backend, [len(group) for group in groups]
        asked, held = q[:, rows.to(q.device)], keys[:, : self._held]
        plain = partial(self._plain, layer, q.dtype)
        self._sums[layer, start] = block_mass(asked, held, DISTANCE, backend.rope, sizes, plain).cpu()
        self.seconds += time.monotonic() - began

    def _plain(self, layer: int, dtype: torch.dtype, keys: torch.Tensor, start: int) -> torch.Tensor:
        return self._runtime.question_backend.keys_from_store(layer, keys, start, dtype)

    def mass(self) -> torch.Tensor:
        """[layers traced, H, blocks] fp32, mean over the question's own rows: each head's blocks sum to 1."""
        return self._total(1) / len(self._own)

    def idle(self) -> torch.Tensor:
        """The same of the lead: what any question draws."""
        return self._total(0) / len(self._lead)

    def _total(self, group: int) -> torch.Tensor:
        layers = sorted({layer for layer, _ in self._sums})
        return torch.stack([sum(mass[group] for (of, _), mass in self._sums.items() if of == layer) for layer in layers])
