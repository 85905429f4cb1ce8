"""Query rows as a scan compares them with keys: averaged, rotated to where the scan places them. Kernel and launcher, Triton.

See reference.scan_ref: in most layers the query stands at W'+1 before left halves and at W' before right ones (the
same as keys at 0 and 1); in the special layers at min(first, C + W') and keys at their slot number (paper section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.triton_device import first_count, half_tile, turn
from hipcli.kernels.triton_tiles import picker_tile

ROW_TILE = 16  # output rows of one program


@dataclass(frozen=True)
class Pickers:
    """left, right: [KV * P, NB, R, D] in the keys' dtype, R padded with copies of a row. Equal where keys go by slot.

    tile: rows, a divisor of R, that one matrix product takes.
    """

    left: torch.Tensor
    right: torch.Tensor
    tile: int


@triton.jit(do_not_specialize=["blocks", "rows", "means"])
def pickers_kernel(
    q,
    cos,
    sin,
    firsts,
    stops,
    counts,
    left,
    right,
    q_stride_h,
    q_stride_q,
    sinks,
    distance,
    blocks,
    rows,
    means,
    G: tl.constexpr,
    P: tl.constexpr,
    MEAN: tl.constexpr,
    SLOTS: tl.constexpr,
    LEN: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    RT: tl.constexpr,
):
    """Mean of MEAN adjacent rows, then rotation; row r of a picker is row r % means of head r // means."""
    i_b, i_p, i_t = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_r = i_t * RT + tl.arange(0, RT)
    o_d = tl.arange(0, BH)
    per_picker: tl.constexpr = G // P
    # rows past the last repeat the first: a copy never changes a maximum
    source = tl.where(o_r < means * per_picker, o_r, 0)
    head = (i_p // P) * G + (i_p % P) * per_picker + source // means
    row = (source % means) * MEAN
    mask = (o_d < D // 2)[None, :]
    low = tl.zeros([RT, BH], tl.float32)
    high = tl.zeros([RT, BH], tl.float32)
    for j in tl.static_range(MEAN):
        here = (row + j < rows)[:, None] & mask
        at = q + head.to(tl.int64)[:, None] * q_stride_h + (i_b * rows + row + j).to(tl.int64)[:, None] * q_stride_q + o_d[None, :]
        low += tl.load(at, mask=here, other=0.0).to(tl.float32)
        high += tl.load(at + D // 2, mask=here, other=0.0).to(tl.float32)
    size = tl.minimum(rows - row, MEAN).to(tl.float32)[:, None]
    low, high = low / size, high / size
    at_left = distance + 1
    at_right = distance
    if SLOTS:
        if LEN > 0:
            count = first_count(tl.load(stops + i_b), sinks, LEN)
        else:
            count = tl.load(counts + (i_p // P) * blocks + i_b)
        at_left = tl.minimum(tl.load(firsts + i_b), count + distance)
        at_right = at_left
    height = tl.num_programs(2) * RT
    out = ((i_p * blocks + i_b).to(tl.int64) * height + o_r)[:, None] * D + o_d[None, :]
    c, s = tl.load(cos + at_left * (D // 2) + o_d, mask=o_d < D // 2), tl.load(sin + at_left * (D // 2) + o_d, mask=o_d < D // 2)
    t_low, t_high = turn(low, high, c[None, :], s[None, :])
    tl.store(left + out, t_low, mask=mask)
    tl.store(left + out + D // 2, t_high, mask=mask)
    if not SLOTS:
        c, s = tl.load(cos + at_right * (D // 2) + o_d, mask=o_d < D // 2), tl.load(sin + at_right * (D // 2) + o_d, mask=o_d < D // 2)
        t_low, t_high = turn(low, high, c[None, :], s[None, :])
        tl.store(right + out, t_low, mask=mask)
        tl.store(right + out + D // 2, t_high, mask=mask)


def make_pickers(
    q: torch.Tensor, kv: int, firsts, stops, counts, index: int, plan: PrunePlan, layer: int, rope: Rope, table: int
) -> Pickers:
    """Pickers of stage `index` for the blocks of q.

    q: [H, NB * rows, D]; firsts, stops: [NB] int32; counts: [KV, NB] int32, candidates of this stage (not read in the
    first one). table: positions that the phase table must cover.
    """
    heads, total, dim = q.shape
    blocks, group = firsts.shape[0], heads // kv
    rows = total // blocks
    mean = plan.stages[index].rows_mean
    means = -(-rows // mean)
    per_kv = group if plan.descent == "head" else 1
    tile = picker_tile(means * group // per_kv, plan.stages[index].rest_len, dim, q.dtype)
    height = triton.cdiv(means * group // per_kv, tile) * tile
    special = plan.is_special(layer)
    left = torch.empty(kv * per_kv, blocks, height, dim, dtype=q.dtype, device=q.device)
    right = left if special else torch.empty_like(left)
    cos, sin = rope.cos_sin(table, q.dtype)
    pickers_kernel[(blocks, kv * per_kv, height // ROW_TILE)](
        q=q,
        cos=cos,
        sin=sin,
        firsts=firsts,
        stops=stops,
        counts=counts,
        left=left,
        right=right,
        q_stride_h=q.stride(0),
        q_stride_q=q.stride(1),
        sinks=plan.sink_tokens,
        distance=plan.scan_distance,
        blocks=blocks,
        rows=rows,
        means=means,
        G=group,
        P=per_kv,
        MEAN=mean,
        SLOTS=special,
        LEN=plan.stages[0].chunk_len if index == 0 else 0,
        D=dim,
        BH=half_tile(dim),
        RT=ROW_TILE,
    )
    return Pickers(left, right, tile)
