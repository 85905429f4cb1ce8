"""Split decode attention: one query over [sinks][kept][window], cut over programs and merged. Kernels and launcher, Triton.

See reference.decode_ref. Length and position live on the device: the grid is sized for the longest span, and programs
past its end leave neutral results, so one captured graph serves every step.
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
from hipcli.kernels.triton_tiles import decode_tiles

MASS_BLOCK = 8  # span slots whose attention mass is reported as one number
BLOCK_SLOTS = tl.constexpr(MASS_BLOCK)  # the same to a kernel


@triton.jit
def decode_kernel(
    q,
    new_k,
    new_v,
    k,
    v,
    cos,
    sin,
    table,
    position,
    stops,
    kept,
    kept_tokens,
    parts,
    part_lse,
    mass,
    mass_top,
    k_stride_h,
    new_stride_h,
    sinks,
    keep,
    far_slots,
    scale,
    G: tl.constexpr,
    LEN: tl.constexpr,
    SPARSE: tl.constexpr,
    MASS: tl.constexpr,
    CODED: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    TILES: tl.constexpr,
):
    """Attention of the G heads of one key/value head over TILES tiles of the span; the first program stores the new token."""
    i_s, i_kv = tl.program_id(0), tl.program_id(1)
    splits = tl.num_programs(0)
    o_m, o_n, o_d = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD)
    m_m, m_d = o_m < G, o_d < D
    p_k, p_v = k + i_kv.to(tl.int64) * k_stride_h, v + i_kv.to(tl.int64) * k_stride_h
    p_new_k, p_new_v = new_k + i_kv.to(tl.int64) * new_stride_h, new_v + i_kv.to(tl.int64) * new_stride_h
    q_low, q_high = load_halves(row_pointers(q, i_kv * G + o_m, D), m_m, D, BH)
    now = tl.load(position)
    stop, far = 0, 0
    if SPARSE:
        stop = tl.load(stops)
        far = tl.minimum(sinks, stop) + tl.load(kept_tokens + i_kv)
    if i_s == 0:
        # nobody reads this row of the store in this step
        tl.store(p_k + now.to(tl.int64) * D + o_d, tl.load(p_new_k + o_d, mask=m_d), mask=m_d)
        tl.store(p_v + now.to(tl.int64) * D + o_d, tl.load(p_new_v + o_d, mask=m_d), mask=m_d)
    q_cos, q_sin = load_phases(cos, sin, far + now - stop + o_m * 0, m_m, D, BH)
    q_low, q_high = turn(q_low, q_high, q_cos, q_sin)
    s_low, s_high, c_low, c_high = load_coding(table, i_kv, D, BH, CODED)
    acc = tl.zeros([BM, BD], tl.float32)
    top = tl.full([BM], NEVER, tl.float32)
    total = tl.zeros([BM], tl.float32)
    for i_t in range(i_s * TILES, (i_s + 1) * TILES):
        slot = i_t * BN + o_n
        # far slots fill whole tiles, the window starts on a tile of its own
        near = slot - far_slots
        is_near = i_t * BN >= far_slots
        key = tl.where(is_near, stop + near, slot)
        if SPARSE:
            chunk = tl.maximum(slot - sinks, 0)
            start = tl.load(kept + i_kv * keep + chunk // LEN, mask=(slot >= sinks) & (chunk < keep * LEN), other=0)
            key = tl.where(is_near | (slot < sinks), key, start + chunk % LEN)
        m_n = tl.where(is_near, (key <= now) & (key >= 0), slot < far)
        m_new = is_near & (key == now)
        k_low, k_high = load_halves(tl.where(m_new, p_new_k, row_pointers(p_k, key, D)), m_n, D, BH)
        k_low, k_high = decoded(k_low, k_high, s_low, s_high, c_low, c_high, q_low.dtype, CODED)
        p_row = tl.where(m_new, p_new_v, row_pointers(p_v, key, D))
        b_v = tl.load(p_row[:, None] + o_d[None, :], mask=m_n[:, None] & m_d[None, :], other=0.0)
        b_cos, b_sin = load_phases(cos, sin, tl.where(is_near, far + near, slot), m_n, D, BH)
        k_low, k_high = turn(k_low, k_high, b_cos, b_sin)
        logits = tile_logits(q_low, q_high, k_low, k_high, m_n[None, :], scale)
        acc, top, total, weights = online_softmax_step(logits, b_v.to(q_low.dtype), acc, top, total)
        if MASS:
            # [BM, BN] -> [BM, BN // BLOCK_SLOTS]; relative to the maximum so far, which the merge makes good
            sums = tl.sum(tl.reshape(weights, [BM, BN // BLOCK_SLOTS, BLOCK_SLOTS]), axis=2)
            o_s = i_t * (BN // BLOCK_SLOTS) + tl.arange(0, BN // BLOCK_SLOTS)
            row = (i_kv * G + o_m) * (splits * TILES)
            tl.store(mass + (row * (BN // BLOCK_SLOTS))[:, None] + o_s[None, :], sums, mask=m_m[:, None])
            tl.store(mass_top + row + i_t, top, mask=m_m)
    row = (i_kv * splits + i_s) * G + o_m
    # a program past the end of the span has seen no key: its part is neutral
    seen = tl.where(total > 0, total, 1.0)
    tl.store(part_lse + row, top + tl.log2(seen), mask=m_m)
    tl.store(parts + (row * D)[:, None] + o_d[None, :], acc / seen[:, None], mask=m_m[:, None] & m_d[None, :])


@triton.jit
def merge_kernel(
    parts,
    part_lse,
    mass,
    mass_top,
    o,
    table,
    splits,
    tiles,
    G: tl.constexpr,
    MASS: tl.constexpr,
    CODED: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BN: tl.constexpr,
):
    """o = sum of parts weighted by exp2(lse of the part - lse of all), of one head; BS parts at a time."""
    i_h = tl.program_id(0)
    row = (i_h // G) * splits * G + i_h % G
    o_t, o_b, o_d, o_n = tl.arange(0, BT), tl.arange(0, BS), tl.arange(0, BD), tl.arange(0, BN // BLOCK_SLOTS)
    every = tl.load(part_lse + row + o_t * G, mask=o_t < splits, other=NEVER)
    top = tl.max(every, axis=0)
    total = tl.sum(tl.exp2(every - top), axis=0)
    acc = tl.zeros([BD], tl.float32)
    for i_t in range(0, splits, BS):
        o_p = i_t + o_b
        weight = tl.exp2(tl.load(part_lse + row + o_p * G, mask=o_p < splits, other=NEVER) - top) / total
        p_part = parts + (row + o_p * G)[:, None] * D + o_d[None, :]
        b_o = tl.load(p_part, mask=(o_p < splits)[:, None] & (o_d < D)[None, :], other=0.0)
        acc += tl.sum(b_o * weight[:, None], axis=0)
    if CODED:
        # weights sum to 1: scale and centre of the values wait until here
        p_value = table + (i_h // G) * (4 * D) + 2 * D + o_d
        acc = acc * tl.load(p_value, mask=o_d < D, other=0.0) + tl.load(p_value + D, mask=o_d < D, other=0.0)
    tl.store(o + i_h * D + o_d, acc.to(o.dtype.element_ty), mask=o_d < D)
    if MASS:
        for i_t in range(0, tiles, BS):
            o_p = i_t + o_b
            m_p = o_p < tiles
            tile_top = tl.load(mass_top + i_h * tiles + o_p, mask=m_p, other=NEVER)
            scale = tl.exp2(tile_top - top) / total
            p_mass = mass + (i_h * tiles + o_p)[:, None] * (BN // BLOCK_SLOTS) + o_n[None, :]
            tl.store(p_mass, tl.load(p_mass, mask=m_p[:, None], other=0.0) * scale[:, None], mask=m_p[:, None])


def span_tiles(plan: PrunePlan, layer: int, near: int, sparse: bool, head_dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Slots of the far part, whole tiles, and tiles of the whole span. near: most tokens from the window's start on."""
    sizes = decode_tiles(head_dim, dtype)
    far = triton.cdiv(plan.sink_tokens + plan.keep_tokens(layer), sizes.block) * sizes.block if sparse else 0
    tiles = far // sizes.block + triton.cdiv(near, sizes.block)
    return far, triton.cdiv(tiles, sizes.tiles) * sizes.tiles


def decode_attend(
    q,
    new_k,
    new_v,
    k,
    v,
    position,
    selection: Selection | None,
    near: int,
    plan: PrunePlan,
    layer: int,
    rope: Rope,
    mass: torch.Tensor | None = None,
    coding: Coding | None = None,
) -> torch.Tensor:
    """Store the token at `position` and attend to it, the window before it and what `selection` kept, or to everything.

    q: [H, 1, D]; new_k, new_v: [KV, 1, D]; k, v: [KV, capacity, D], all un-rotated, as `coding` has them; position: [1] int32. selection None:
    every key from 0 on, at true positions. near: most tokens there can be from the window's start (or 0) to the newest.
    mass: fp32, contiguous, room for [H, tiles * block / 8] (span_tiles), receives the share of attention of every 8 slots
    of the span. Returns [H, 1, D].
    """
    if k.stride() != v.stride() or new_k.stride(0) != new_v.stride(0):
        raise ValueError("keys and values must have equal strides")
    heads, _, dim = q.shape
    kv, group = k.shape[0], heads // k.shape[0]
    sparse = selection is not None
    far, tiles = span_tiles(plan, layer, near, sparse, dim, q.dtype)
    cos, sin = rope.cos_sin(far + near + 1, q.dtype)
    sizes = decode_tiles(dim, q.dtype)
    splits = tiles // sizes.tiles
    parts = torch.empty(kv, splits, group, dim, dtype=torch.float32, device=q.device)
    part_lse = torch.empty(kv, splits, group, dtype=torch.float32, device=q.device)
    mass_top = torch.empty(heads, tiles, dtype=torch.float32, device=q.device) if mass is not None else part_lse
    o = torch.empty(heads, 1, dim, dtype=q.dtype, device=q.device)
    kept = selection.inputs[-1] if sparse else None
    common = dict(
        parts=parts, part_lse=part_lse, mass=part_lse if mass is None else mass, mass_top=mass_top, G=group,
        table=coding.table if coding else cos, CODED=coding is not None, MASS=mass is not None, D=dim, BD=max(16, triton.next_power_of_2(dim)), BN=sizes.block,
    )  # fmt: skip
    decode_kernel[(splits, kv)](
        q=q.contiguous(),
        new_k=new_k,
        new_v=new_v,
        k=k,
        v=v,
        cos=cos,
        sin=sin,
        position=position,
        stops=selection.stops if sparse else position,
        kept=kept.starts if sparse else position,
        kept_tokens=kept.counts if sparse else position,
        k_stride_h=k.stride(0),
        new_stride_h=new_k.stride(0),
        sinks=plan.sink_tokens,
        keep=kept.starts.shape[-1] if sparse else 0,
        far_slots=far,
        scale=math.log2(math.e) / math.sqrt(dim),
        LEN=plan.stages[-1].chunk_len,
        SPARSE=sparse,
        BH=half_tile(dim),
        BM=max(16, triton.next_power_of_2(group)),
        TILES=sizes.tiles,
        num_warps=sizes.warps,
        num_stages=sizes.pipeline,
        **common,
    )
    merge_kernel[(heads,)](
        o=o,
        splits=splits,
        tiles=tiles,
        BT=triton.next_power_of_2(splits),
        BS=min(64, triton.next_power_of_2(splits)),
        num_warps=4,
        **common,
    )
    return o
