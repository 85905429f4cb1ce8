"""Keys and values in 8 bits: what an e4m3 number in the store stands for. Tensors; knows no model and no store.

A number is code * scale + centre, with a scale and a centre of every channel of every head that are known before the first
token: nothing is measured on the way, so a token is coded once, alone, and a store can be cut or continued anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CODE = torch.float8_e4m3fn
CODE_MAX = torch.finfo(CODE).max


@dataclass(frozen=True)
class Coding:
    """Of one layer. table: [KV, 4, D] fp32: scale and centre of its keys, scale and centre of its values."""

    table: torch.Tensor

    @classmethod
    def within(cls, key_reach, key_centre, value_reach, value_centre) -> Coding:
        """For keys within key_centre ± key_reach, values likewise, [KV, D] each: nothing of that is clipped.

        Scales are powers of two: where a centre is 0, what a code stands for is exact in bf16 too.
        """
        scales = (torch.exp2(torch.ceil(torch.log2(reach.float().clamp_min(1e-20) / CODE_MAX))) for reach in (key_reach, value_reach))
        key_scale, value_scale = scales
        return cls(torch.stack((key_scale, key_centre.float(), value_scale, value_centre.float()), dim=1).contiguous())

    def encode_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """[KV, n, D] in any float -> codes, rounded to nearest; beyond the reach the farthest code."""
        return self._encode(keys, 0)

    def encode_values(self, values: torch.Tensor) -> torch.Tensor:
        return self._encode(values, 2)

    def decode_keys(self, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[KV, n, D] codes -> numbers."""
        return self._decode(codes, 0, dtype)

    def decode_values(self, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._decode(codes, 2, dtype)

    def _encode(self, numbers: torch.Tensor, row: int) -> torch.Tensor:
        scale, centre = self.table[:, row, None], self.table[:, row + 1, None]
        # torch's cast gives NaN beyond the largest code
        return ((numbers.float() - centre) / scale).clamp(-CODE_MAX, CODE_MAX).to(CODE)

    def _decode(self, codes: torch.Tensor, row: int, dtype: torch.dtype) -> torch.Tensor:
        scale, centre = self.table[:, row, None], self.table[:, row + 1, None]
        return torch.addcmul(centre, codes.float(), scale).to(dtype)
