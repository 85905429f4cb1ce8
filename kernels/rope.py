"""Rotary positions from tables: no trigonometry in a hot loop, no table longer than the positions in use.

Un-rotated keys are stored; every use rotates them to the positions it wants (paper section 3.3).
"""

from __future__ import annotations

import torch


class Rope:
    """Phase table of one model.

    inv_freq: [D/2] fp32, the model's inverse frequencies. scaling: the model's factor on cos and sin (YaRN).
    """

    def __init__(self, inv_freq: torch.Tensor, scaling: float = 1.0) -> None:
        self.inv_freq = inv_freq.detach().float()
        self.scaling = float(scaling)
        self._table = torch.empty(0, inv_freq.numel(), dtype=torch.complex64, device=inv_freq.device)
        self._cos_sin: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}
        self._handed_out: list[tuple[torch.Tensor, torch.Tensor]] = []

    def table(self, length: int) -> torch.Tensor:
        """[length, D/2] complex64 phases of positions 0 .. length-1; grown once and kept."""
        if self._table.shape[0] < length:
            grown = max(length, 2 * self._table.shape[0], 1024)
            positions = torch.arange(grown, device=self.inv_freq.device, dtype=torch.float32)
            # angles as the stock models form them, in fp32, so that the dense path agrees with them
            angles = positions[:, None] * self.inv_freq
            self._table = torch.polar(torch.full_like(angles, self.scaling), angles)
        return self._table[:length]

    def cos_sin(self, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The table as kernels read it for keys of `dtype`: cos and sin, each [N, D/2] with N >= length.

        In fp16 beside two-byte keys: its 11 bits lose nothing that rounding the rotated key to bf16 keeps. Tables that were
        handed out stay alive when a longer one takes their place: a captured graph may still read them.
        """
        kind = torch.float32 if dtype.itemsize > 2 else torch.float16
        if kind not in self._cos_sin or self._cos_sin[kind][0].shape[0] < length:
            table = self.table(max(length, self._table.shape[0]))
            self._cos_sin[kind] = table.real.to(kind).contiguous(), table.imag.to(kind).contiguous()
            self._handed_out.append(self._cos_sin[kind])
        return self._cos_sin[kind]

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """positions: [...] int64 -> [..., D/2] complex64."""
        top = int(positions.max()) + 1 if positions.numel() else 0
        return self.table(top)[positions]

    def one(self, position: int) -> torch.Tensor:
        """Phases of one position, [D/2] complex64."""
        return self.table(position + 1)[position]


def rotate(x: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """Rotate x by phases; the result keeps the two halves of each pair side by side.

    x: [..., D], halves split as in the stock models. phases: [..., D/2] complex64, broadcastable.
    Returns [..., D] in x.dtype with pairs adjacent: right only in dot products with another such result,
    which is all attention asks, and one pass over memory instead of five.
    """
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half].float(), x[..., half:].float())
    # [..., D/2, 2] -> [..., D]
    return torch.view_as_real(pairs * phases).flatten(-2).to(x.dtype)


def split_pairs(x: torch.Tensor) -> torch.Tensor:
    """Back from adjacent pairs to split halves: [..., D] -> [..., D]."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
