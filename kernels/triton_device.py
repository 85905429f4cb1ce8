"""Device functions that several kernels share: candidates, probes of keys, rotation, ordering of scores. Triton.

A head of D dims is handled as its two halves of D/2, which rotary positions pair up; BH is D/2 rounded up to a power
of two of at least 16, the least that a matrix product takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

NEVER = tl.constexpr(float("-inf"))
PAD = tl.constexpr(1 << 30)  # start of a chunk that is none: beyond every key


def half_tile(head_dim: int) -> int:
    """BH of a head."""
    return max(16, triton.next_power_of_2(head_dim // 2))


@triton.jit
def first_count(stop, sinks, LEN: tl.constexpr):
    """Candidates of the first stage: chunks of LEN keys in [sinks, stop)."""
    return tl.maximum(stop - sinks + LEN - 1, 0) // LEN


@triton.jit
def candidate_count(stop, counts, place, sinks, LEN: tl.constexpr, RATIO: tl.constexpr):
    """Candidates of a block: counted from its `stop` when they are chunks in a row (RATIO 0), else as `counts` has them."""
    if RATIO == 0:
        return first_count(stop, sinks, LEN)
    else:
        return tl.load(counts + place)


@triton.jit
def candidate_start(p_list, o_c, m_c, sinks, LEN: tl.constexpr, RATIO: tl.constexpr):
    """Start of candidates o_c: chunks in a row when RATIO is 0, else RATIO pieces of each kept coarser chunk."""
    if RATIO == 0:
        return sinks + o_c * LEN
    else:
        coarse = tl.load(p_list + o_c // RATIO, mask=m_c, other=0)
        return coarse + (o_c % RATIO) * LEN


@triton.jit
def load_halves(p_row, m_row, D: tl.constexpr, BH: tl.constexpr):
    """Both halves of the rows that p_row [N] points to: two [N, BH] tiles, zero where masked."""
    o_d = tl.arange(0, BH)
    p_low = p_row[:, None] + o_d[None, :]
    if BH == D // 2:
        mask = m_row[:, None]
    else:
        mask = m_row[:, None] & (o_d < D // 2)[None, :]
    return tl.load(p_low, mask=mask, other=0.0), tl.load(p_low + D // 2, mask=mask, other=0.0)


@triton.jit
def row_pointers(p_rows, o_row, D: tl.constexpr):
    """Pointers to rows of a [rows, D] matrix that may hold more than 2^31 elements."""
    return p_rows + o_row.to(tl.int64) * D


@triton.jit
def load_phases(cos, sin, o_position, m_position, D: tl.constexpr, BH: tl.constexpr):
    """cos and sin of positions, [N, BH] each."""
    o_d = tl.arange(0, BH)
    offset = o_position[:, None] * (D // 2) + o_d[None, :]
    mask = m_position[:, None] & (o_d < D // 2)[None, :]
    return tl.load(cos + offset, mask=mask, other=1.0), tl.load(sin + offset, mask=mask, other=0.0)


@triton.jit
def load_coding(table, i_kv, D: tl.constexpr, BH: tl.constexpr, CODED: tl.constexpr):
    """Scale and centre of a head's keys, two halves of [BH] each; zeros, read by nobody, where keys are not coded."""
    o_d = tl.arange(0, BH)
    p_scale, p_centre = table + i_kv * (4 * D) + o_d, table + i_kv * (4 * D) + D + o_d
    mask = (o_d < D // 2) & CODED
    s_low, s_high = tl.load(p_scale, mask=mask, other=0.0), tl.load(p_scale + D // 2, mask=mask, other=0.0)
    return s_low, s_high, tl.load(p_centre, mask=mask, other=0.0), tl.load(p_centre + D // 2, mask=mask, other=0.0)


@triton.jit
def decoded(b_low, b_high, s_low, s_high, c_low, c_high, dtype: tl.constexpr, CODED: tl.constexpr):
    """The numbers that codes [N, BH] stand for, rounded to `dtype` as a store of that type holds them."""
    if CODED:
        b_low = (b_low.to(tl.float32) * s_low[None, :] + c_low[None, :]).to(dtype)
        b_high = (b_high.to(tl.float32) * s_high[None, :] + c_high[None, :]).to(dtype)
    return b_low, b_high


@triton.jit
def turn(b_low, b_high, b_cos, b_sin):
    """Rotate pairs (low, high) by their phases; in fp32, because a product of two roundings would show in the scores."""
    low, high = b_low.to(tl.float32), b_high.to(tl.float32)
    return (low * b_cos - high * b_sin).to(b_low.dtype), (high * b_cos + low * b_sin).to(b_low.dtype)


@triton.jit
def turn_runs(b_low, b_high, b_cos, b_sin):
    """The same where each run of adjacent rows shares a phase: rows [N * L, BH], phases [N, BH]."""
    N: tl.constexpr = b_cos.shape[0]
    BH: tl.constexpr = b_cos.shape[1]
    L: tl.constexpr = b_low.shape[0] // N
    low, high = tl.reshape(b_low, [N, L, BH]), tl.reshape(b_high, [N, L, BH])
    # [N, L, BH]
    low, high = turn(low, high, b_cos[:, None, :], b_sin[:, None, :])
    return tl.reshape(low, [N * L, BH]), tl.reshape(high, [N * L, BH])


@triton.jit
def dot_halves(a_low, a_high, b_low, b_high):
    """[M, D] x [N, D] -> [M, N] fp32. IEEE products where inputs are fp32."""
    product = tl.dot(a_low, tl.trans(b_low), input_precision="ieee")
    return tl.dot(a_high, tl.trans(b_high), acc=product, input_precision="ieee")


@triton.jit
def best_over_rows(k_low, k_high, p_rows, tiles, D: tl.constexpr, BH: tl.constexpr, RT: tl.constexpr):
    """Best product of each key with the `tiles` * RT query rows at p_rows, [rows, D]: [N] fp32.

    Keys stand on the first axis of the product, so that the maximum runs along what a thread holds.
    """
    o_r = tl.arange(0, RT)
    best = tl.full([k_low.shape[0]], NEVER, tl.float32)
    for i_r in range(0, tiles):
        r_low, r_high = load_halves(row_pointers(p_rows, i_r * RT + o_r, D), o_r >= 0, D, BH)
        best = tl.maximum(best, tl.max(dot_halves(k_low, k_high, r_low, r_high), axis=1))
    return best


@triton.jit
def ordered(score):
    """fp32 -> uint32 of the same order; -0.0 counts as 0.0."""
    bits = score.to(tl.int32, bitcast=True)
    signed = tl.where(bits >= 0, bits, -2147483648 - bits)
    return signed.to(tl.uint32, bitcast=True) ^ 0x80000000
