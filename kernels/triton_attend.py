"""Block-sparse prefill attention: [sinks][kept][window] of each block on one span of positions. Kernel and launcher, Triton.

See reference.attend_ref (paper section 3.3). Keys are rotated to their place in the span as they are read, from a table
as long as the span.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from hipcli.kernels.coding import Coding
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.triton_device import NEVER, decoded, half_tile, load_coding, load_halves, load_phases, row_pointers, turn
from hipcli.kernels.triton_prune import Selection
from hipcli.kernels.triton_softmax import online_softmax_step, tile_logits
from hipcli.kernels.triton_tiles import attend_tiles


@triton.jit
def fold_keys(
    q_low,
    q_high,
    k,
    v,
    cos,
    sin,
    s_low,
    s_high,
    c_low,
    c_high,
    o_key,
    o_slot,
    m_key,
    visible,
    acc,
    top,
    total,
    scale,
    CODED: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
):
    """Fold the keys o_key, standing at positions o_slot of the span, into (acc, top, total)."""
    o_d = tl.arange(0, BD)
    k_low, k_high = load_halves(row_pointers(k, o_key, D), m_key, D, BH)
    k_low, k_high = decoded(k_low, k_high, s_low, s_high, c_low, c_high, q_low.dtype, CODED)
    b_cos, b_sin = load_phases(cos, sin, o_slot, m_key, D, BH)
    k_low, k_high = turn(k_low, k_high, b_cos, b_sin)
    logits = tile_logits(q_low, q_high, k_low, k_high, visible, scale)
    b_v = tl.load(row_pointers(v, o_key, D)[:, None] + o_d[None, :], mask=m_key[:, None] & (o_d < D)[None, :], other=0.0)
    acc, top, total, _ = online_softmax_step(logits, b_v.to(q_low.dtype), acc, top, total)
    return acc, top, total


@triton.jit(do_not_specialize=["rows"])
def attend_kernel(
    q,
    k,
    v,
    o,
    cos,
    sin,
    table,
    firsts,
    stops,
    kept,
    kept_tokens,
    q_stride_h,
    q_stride_q,
    k_stride_h,
    sinks,
    keep,
    rows,
    scale,
    G: tl.constexpr,
    LEN: tl.constexpr,
    CODED: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """softmax(q k^T / sqrt(D)) v over the span; rows are (head of the group, query) pairs of one block."""
    i_m, i_b, i_kv = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (i_kv * tl.num_programs(1) + i_b).to(tl.int64)
    first, stop = tl.load(firsts + i_b), tl.load(stops + i_b)
    # keys before the window, all of them earlier than it
    far = tl.minimum(sinks, stop) + tl.load(kept_tokens + place)
    o_m, o_n, o_d = i_m * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD)
    m_m = o_m < G * rows
    row = o_m % rows
    head = (i_kv * G + o_m // rows).to(tl.int64)
    # [BM, BH]
    q_low, q_high = load_halves(q + head * q_stride_h + (i_b * rows + row).to(tl.int64) * q_stride_q, m_m, D, BH)
    q_cos, q_sin = load_phases(cos, sin, far + first - stop + row, m_m, D, BH)
    q_low, q_high = turn(q_low, q_high, q_cos, q_sin)
    p_k, p_v = k + i_kv.to(tl.int64) * k_stride_h, v + i_kv.to(tl.int64) * k_stride_h
    p_list = kept + place * keep
    s_low, s_high, c_low, c_high = load_coding(table, i_kv, D, BH, CODED)
    acc = tl.zeros([BM, BD], tl.float32)
    top = tl.full([BM], NEVER, tl.float32)
    total = tl.zeros([BM], tl.float32)
    for i_n in range(0, far, BN):
        slot = i_n + o_n
        m_n = slot < far
        chunk = tl.maximum(slot - sinks, 0)
        start = tl.load(p_list + chunk // LEN, mask=m_n & (slot >= sinks), other=0)
        key = tl.where(slot < sinks, slot, start + chunk % LEN)
        acc, top, total = fold_keys(
            q_low, q_high, p_k, p_v, cos, sin, s_low, s_high, c_low, c_high, key, slot, m_n, m_n[None, :],
            acc, top, total, scale, CODED, D, BH, BD,
        )  # fmt: skip
    near = first + rows - stop
    for i_n in range(0, near, BN):
        key = stop + i_n + o_n
        m_n = i_n + o_n < near
        visible = m_n[None, :] & (key[None, :] <= (first + row)[:, None])
        acc, top, total = fold_keys(
            q_low, q_high, p_k, p_v, cos, sin, s_low, s_high, c_low, c_high, key, far + i_n + o_n, m_n, visible,
            acc, top, total, scale, CODED, D, BH, BD,
        )  # fmt: skip
    p_o = o + (head * (tl.num_programs(1) * rows) + i_b * rows + row)[:, None] * D + o_d[None, :]
    b_o = acc / total[:, None]
    if CODED:
        # weights sum to 1: scale and centre of the values wait until here
        p_value = table + i_kv * (4 * D) + 2 * D + o_d
        b_o = b_o * tl.load(p_value, mask=o_d < D, other=0.0)[None, :] + tl.load(p_value + D, mask=o_d < D, other=0.0)[None, :]
    tl.store(p_o, b_o.to(o.dtype.element_ty), mask=m_m[:, None] & (o_d < D)[None, :])


def attend(q, k, v, firsts, selection: Selection, plan: PrunePlan, layer: int, rope: Rope, coding: Coding | None = None) -> torch.Tensor:
    """Attention of a group of blocks over what `selection` kept.

    q: [H, NB * rows, D]; k, v: [KV, T, D], un-rotated, of equal strides, as `coding` has them; firsts: [NB] int32. Returns [H, NB * rows, D].
    """
    if k.stride() != v.stride():
        raise ValueError(f"k and v must have equal strides, got {k.stride()} and {v.stride()}")
    heads, total, dim = q.shape
    kv, blocks = k.shape[0], firsts.shape[0]
    rows, group = total // blocks, heads // kv
    kept = selection.inputs[-1]
    span = plan.sink_tokens + plan.keep_tokens(layer) + plan.window_tokens + rows
    cos, sin = rope.cos_sin(span, q.dtype)
    block, tiles = attend_tiles(group * rows, dim, q.dtype)
    o = torch.empty(heads, total, dim, dtype=q.dtype, device=q.device)
    attend_kernel[(triton.cdiv(group * rows, block), blocks, kv)](
        q=q,
        k=k,
        v=v,
        o=o,
        cos=cos,
        sin=sin,
        table=coding.table if coding else cos,
        firsts=firsts,
        stops=selection.stops,
        kept=kept.starts,
        kept_tokens=kept.counts,
        q_stride_h=q.stride(0),
        q_stride_q=q.stride(1),
        k_stride_h=k.stride(0),
        sinks=plan.sink_tokens,
        keep=kept.starts.shape[-1],
        rows=rows,
        scale=math.log2(math.e) / math.sqrt(dim),
        G=group,
        LEN=plan.stages[-1].chunk_len,
        CODED=coding is not None,
        D=dim,
        BH=half_tile(dim),
        BD=max(16, triton.next_power_of_2(dim)),
        BM=block,
        BN=tiles.block,
        num_warps=tiles.warps,
        num_stages=tiles.pipeline,
    )
    return o
