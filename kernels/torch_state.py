"""What one layer keeps between calls: keys of the dense region already rotated, and the list and span of decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hipcli.kernels.rope import Rope, rotate

if TYPE_CHECKING:
    from hipcli.kernels.torch_decode import Span
    from hipcli.kernels.torch_prune import Selection


class TurnedKeys:
    """Keys rotated to their true positions, each once, for as long as attention is dense."""

    def __init__(self) -> None:
        self._keys: torch.Tensor | None = None
        self._done = 0

    def upto(self, k: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Rotated copy of k, of which the keys before those last seen are known: [KV, T, D] -> [KV, T, D]."""
        kv, total, dim = k.shape
        if self._keys is None or self._keys.shape[1] < total:
            # doubling keeps the copying of a growing prefix in proportion
            grown = k.new_empty(kv, max(total, 2 * self._done), dim)
            if self._keys is not None:
                grown[:, : self._done] = self._keys[:, : self._done]
            self._keys = grown
        if total > self._done:
            self._keys[:, self._done : total] = rotate(k[:, self._done :], rope.table(total)[self._done :])
            self._done = total
        return self._keys[:, :total]


class LayerState:
    """State of one layer; a new one whenever tokens were cut off the store."""

    def __init__(self) -> None:
        self.turned: TurnedKeys | None = None
        self.selection: Selection | None = None
        self.span: Span | None = None

    def turned_keys(self, k: torch.Tensor, rope: Rope) -> torch.Tensor:
        self.turned = self.turned or TurnedKeys()
        return self.turned.upto(k, rope)
