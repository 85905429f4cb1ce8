"""New keys and values to codes in one launch, for prefill and for a decode step inside a graph. Kernel and launcher, Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hipcli.kernels.coding import CODE, CODE_MAX, Coding

ROWS = 16  # of one program
FARTHEST = tl.constexpr(CODE_MAX)
STEP = tl.constexpr(1.5 * 2**14)  # fp32 numbers around it lie 2^-9 apart, as e4m3 does below 2^-6


@triton.jit
def rounded(x):
    """fp32 -> the nearest number that e4m3 has, ties to even. The interpreter's own cast loses the carry into the exponent."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    near = tl.where(tl.abs(x) < 2**-6, (x + STEP) - STEP, normal)
    return tl.minimum(tl.maximum(near, -FARTHEST), FARTHEST)


@triton.jit(do_not_specialize=["rows"])
def encode_kernel(
    k, v, k_codes, v_codes, table, k_stride_h, k_stride_t, v_stride_h, v_stride_t, rows,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """code = (number - centre) / scale, of BR rows of one head's keys and values."""
    i_r, i_kv = tl.program_id(0), tl.program_id(1)
    o_r, o_d = i_r * BR + tl.arange(0, BR), tl.arange(0, BD)
    m_d = o_d < D
    mask = (o_r < rows)[:, None] & m_d[None, :]
    to = (i_kv.to(tl.int64) * rows + o_r)[:, None] * D + o_d[None, :]
    p_table = table + i_kv * (4 * D) + o_d
    for i_part in tl.static_range(2):
        if i_part == 0:
            at = k + i_kv.to(tl.int64) * k_stride_h + o_r.to(tl.int64)[:, None] * k_stride_t + o_d[None, :]
        else:
            at = v + i_kv.to(tl.int64) * v_stride_h + o_r.to(tl.int64)[:, None] * v_stride_t + o_d[None, :]
        scale = tl.load(p_table + 2 * i_part * D, mask=m_d, other=1.0)
        centre = tl.load(p_table + (2 * i_part + 1) * D, mask=m_d, other=0.0)
        numbers = (tl.load(at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) / scale[None, :]
        numbers = rounded(numbers)
        if i_part == 0:
            tl.store(k_codes + to, numbers.to(k_codes.dtype.element_ty), mask=mask)
        else:
            tl.store(v_codes + to, numbers.to(v_codes.dtype.element_ty), mask=mask)


def encode(k: torch.Tensor, v: torch.Tensor, coding: Coding) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of k and v, [KV, n, D] each with adjacent channels; as Coding.encode_keys and encode_values have them."""
    kv, rows, dim = k.shape
    codes = torch.empty(2, kv, rows, dim, dtype=CODE, device=k.device)
    encode_kernel[(triton.cdiv(rows, ROWS), kv)](
        k, v, codes[0], codes[1], coding.table, k.stride(0), k.stride(1), v.stride(0), v.stride(1), rows,
        D=dim, BD=max(16, triton.next_power_of_2(dim)), BR=ROWS,
    )  # fmt: skip
    return codes[0], codes[1]
