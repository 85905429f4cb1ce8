"""Scores of candidate chunks: binary descent, then the keys it leaves scored whole. Kernels and launcher, Triton.

See reference.scan_ref. The G query heads of a key/value head are rows of one product, so each key is read once for all
of them. Blocks vary fastest over programs: neighbours probe the same chunks while those are in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hipcli.kernels.coding import Coding
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.triton_device import (
    NEVER,
    best_over_rows,
    candidate_count,
    candidate_start,
    decoded,
    dot_halves,
    half_tile,
    load_coding,
    load_halves,
    load_phases,
    row_pointers,
    turn,
    turn_runs,
)
from hipcli.kernels.triton_pickers import make_pickers
from hipcli.kernels.triton_tiles import descend_tiles, rest_tiles


@dataclass(frozen=True)
class Candidates:
    """Chunks that enter a stage.

    starts: [KV, NB, K] int32, kept chunks of the stage before, each to be split in `ratio`; not read when ratio is 0:
    then they are the chunks of the middle in a row. counts: [KV, NB] int32. most: candidates at most, a host number.
    """

    starts: torch.Tensor
    counts: torch.Tensor
    ratio: int
    most: int


@triton.jit(do_not_specialize=["row_tiles"])
def descend_kernel(
    left,
    right,
    k,
    stops,
    starts,
    counts,
    cos,
    sin,
    table,
    leaves,
    best_probe,
    k_stride_h,
    sinks,
    keep,
    most,
    held,
    row_tiles,
    P: tl.constexpr,
    LEN: tl.constexpr,
    RATIO: tl.constexpr,
    ROUNDS: tl.constexpr,
    MIDDLE: tl.constexpr,
    SLOTS: tl.constexpr,
    CODED: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    RT: tl.constexpr,
    BC: tl.constexpr,
):
    """ROUNDS times: probe both halves of each chunk, go to the better one (paper, algorithm 3)."""
    i_b, i_c, i_p = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.num_programs(0)
    i_kv = i_p // P
    stop = tl.load(stops + i_b)
    count = candidate_count(stop, counts, i_kv * blocks + i_b, sinks, LEN, RATIO)
    # what fits the budget is kept unseen
    if count <= keep or i_c * BC >= count:
        return
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = o_c < count
    first = candidate_start(starts + (i_kv * blocks + i_b).to(tl.int64) * held, o_c, m_c, sinks, LEN, RATIO)
    p_k = k + i_kv.to(tl.int64) * k_stride_h
    place = (i_p * blocks + i_b).to(tl.int64)
    p_left = left + place * (row_tiles * RT) * D
    p_right = right + place * (row_tiles * RT) * D
    best = tl.full([BC], NEVER, tl.float32)
    s_low, s_high, c_low, c_high = load_coding(table, i_kv, D, BH, CODED)
    if SLOTS:
        b_cos, b_sin = load_phases(cos, sin, o_c, m_c, D, BH)
    for i_round in tl.static_range(ROUNDS):
        half = LEN >> (i_round + 1)
        offset = (half // 2) * MIDDLE
        o_left, o_right = first + offset, first + half + offset
        m_left, m_right = m_c & (o_left < stop), m_c & (o_right < stop)
        l_low, l_high = load_halves(row_pointers(p_k, o_left, D), m_left, D, BH)
        r_low, r_high = load_halves(row_pointers(p_k, o_right, D), m_right, D, BH)
        l_low, l_high = decoded(l_low, l_high, s_low, s_high, c_low, c_high, left.dtype.element_ty, CODED)
        r_low, r_high = decoded(r_low, r_high, s_low, s_high, c_low, c_high, left.dtype.element_ty, CODED)
        if SLOTS:
            l_low, l_high = turn(l_low, l_high, b_cos, b_sin)
            r_low, r_high = turn(r_low, r_high, b_cos, b_sin)
        s_left = tl.where(m_left, best_over_rows(l_low, l_high, p_left, row_tiles, D, BH, RT), NEVER)
        s_right = tl.where(m_right, best_over_rows(r_low, r_high, p_right, row_tiles, D, BH, RT), NEVER)
        best = tl.maximum(best, tl.maximum(s_left, s_right))
        # ties go to the lower index
        first = tl.where(s_right > s_left, first + half, first)
    tl.store(leaves + place * most + o_c, first, mask=m_c)
    tl.store(best_probe + place * most + o_c, best, mask=m_c)


@triton.jit(do_not_specialize=["row_tiles"])
def rest_kernel(
    rows,
    k,
    stops,
    starts,
    counts,
    cos,
    sin,
    table,
    leaves,
    best_probe,
    scores,
    k_stride_h,
    sinks,
    keep,
    most,
    held,
    row_tiles,
    P: tl.constexpr,
    LEN: tl.constexpr,
    RATIO: tl.constexpr,
    REST: tl.constexpr,
    BANK: tl.constexpr,
    LAST: tl.constexpr,
    SLOTS: tl.constexpr,
    CODED: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    RT: tl.constexpr,
    BK: tl.constexpr,
    TILES: tl.constexpr,
):
    """Best score among the REST keys that the descent left of each chunk, joined with the best on the way unless LAST.

    BANK: k holds the candidates themselves, one after another.
    Of one tile of query rows; whoever selects takes the best over the tiles.
    """
    i_b, i_c, i_s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.num_programs(0)
    i_p = i_s // row_tiles
    i_kv = i_p // P
    stop = tl.load(stops + i_b)
    count = candidate_count(stop, counts, i_kv * blocks + i_b, sinks, LEN, RATIO)
    chunks: tl.constexpr = BK // REST
    begin = i_c * (TILES * chunks)
    if count <= keep or begin >= count:
        return
    p_list = starts + (i_kv * blocks + i_b).to(tl.int64) * held
    p_k = k + i_kv.to(tl.int64) * k_stride_h
    p_scores = scores + (i_s * blocks + i_b).to(tl.int64) * most
    place = (i_p * blocks + i_b).to(tl.int64)
    o_r, o_k = tl.arange(0, RT), tl.arange(0, BK)
    p_rows = rows + (place * row_tiles + i_s % row_tiles) * (RT * D)
    r_low, r_high = load_halves(row_pointers(p_rows, o_r, D), o_r >= 0, D, BH)
    s_low, s_high, c_low, c_high = load_coding(table, i_kv, D, BH, CODED)
    for i_t in range(0, tl.minimum(TILES, tl.cdiv(count - begin, chunks))):
        o_c = begin + i_t * chunks + o_k // REST
        m_c = o_c < count
        if REST == LEN:
            first = candidate_start(p_list, o_c, m_c, sinks, LEN, RATIO)
        else:
            first = tl.load(leaves + place * most + o_c, mask=m_c, other=0)
        key = first + o_k % REST
        m_k = m_c & (key < stop)
        at = key
        if BANK:
            at = o_c * LEN + o_k % REST
        k_low, k_high = load_halves(row_pointers(p_k, at, D), m_k, D, BH)
        k_low, k_high = decoded(k_low, k_high, s_low, s_high, c_low, c_high, rows.dtype.element_ty, CODED)
        o_out = begin + i_t * chunks + tl.arange(0, chunks)
        m_out = o_out < count
        if SLOTS:
            # the keys of a chunk all stand at its slot
            b_cos, b_sin = load_phases(cos, sin, o_out, m_out, D, BH)
            k_low, k_high = turn_runs(k_low, k_high, b_cos, b_sin)
        # keys stand on the first axis, so that the maximum runs along what a thread holds: [BK, RT] -> [BK]
        score = tl.max(dot_halves(k_low, k_high, r_low, r_high), axis=1)
        # [BK] -> [chunks]
        score = tl.max(tl.reshape(tl.where(m_k, score, NEVER), [chunks, REST]), axis=1)
        if REST < LEN and not LAST:
            score = tl.maximum(score, tl.load(best_probe + place * most + o_out, mask=m_out, other=NEVER))
        tl.store(p_scores + o_out, score, mask=m_out)


def scan(
    q,
    k,
    firsts,
    stops,
    candidates: Candidates,
    index: int,
    plan: PrunePlan,
    layer: int,
    rope: Rope,
    coding: Coding | None = None,
    in_bank: bool = False,
) -> torch.Tensor:
    """Scores that stage `index` gives the candidates of each block.

    q: [H, NB * rows, D]; k: [KV, T, D], both un-rotated, k as `coding` has it; firsts, stops: [NB] int32. Returns [KV * P * tiles, NB, most]
    fp32: P = G when every head descends for itself, else 1; a score is the best over its pickers and tiles of rows.
    in_bank: k holds the candidates alone, in order (triton_candidates.py), for stages without descent and one block.
    Places past a block's count, and all of a block whose candidates fit the budget, are not written.
    """
    kv, _, dim = k.shape
    stage, special = plan.stages[index], plan.is_special(layer)
    # slots go up to the number of candidates, queries stand scan_distance further
    table = (candidates.most if special else 0) + plan.scan_distance + 2
    pickers = make_pickers(q, kv, firsts, stops, candidates.counts, index, plan, layer, rope, table)
    pairs, blocks, height, _ = pickers.left.shape
    best_probe = torch.empty(pairs if stage.rounds else 0, blocks, candidates.most, dtype=torch.float32, device=q.device)
    leaves = torch.empty_like(best_probe, dtype=torch.int32)
    cos, sin = rope.cos_sin(table, q.dtype)
    common = dict(
        k=k, stops=stops, starts=candidates.starts, counts=candidates.counts, cos=cos, sin=sin, leaves=leaves,
        table=coding.table if coding else cos, CODED=coding is not None, best_probe=best_probe, k_stride_h=k.stride(0), sinks=plan.sink_tokens, keep=plan.keep_chunks(index, layer),
        most=candidates.most, held=candidates.starts.shape[-1], P=pairs // kv, LEN=stage.chunk_len,
        RATIO=candidates.ratio, SLOTS=special, D=dim, BH=half_tile(dim),
    )  # fmt: skip
    if stage.rounds:
        sizes, rows = descend_tiles(candidates.most, blocks, height, dim, q.dtype)
        descend_kernel[(blocks, triton.cdiv(candidates.most, sizes.block), pairs)](
            left=pickers.left,
            right=pickers.right,
            row_tiles=height // rows,
            ROUNDS=stage.rounds,
            MIDDLE=plan.probe == "middle",
            RT=rows,
            BC=sizes.block,
            num_warps=sizes.warps,
            num_stages=sizes.pipeline,
            **common,
        )
    last, tiles = plan.score == "last", height // pickers.tile
    scores = torch.empty(pairs * tiles, blocks, candidates.most, dtype=torch.float32, device=q.device)
    sizes = rest_tiles(candidates.most * stage.rest_len, blocks, stage.rest_len, pickers.tile, special, dim, q.dtype)
    per_program = sizes.tiles * sizes.block // stage.rest_len
    rest_kernel[(blocks, triton.cdiv(candidates.most, per_program), pairs * tiles)](
        rows=pickers.right if last else pickers.left,
        scores=scores,
        row_tiles=tiles,
        REST=stage.rest_len,
        BANK=in_bank,
        LAST=last,
        RT=pickers.tile,
        BK=sizes.block,
        TILES=sizes.tiles,
        num_warps=sizes.warps,
        num_stages=sizes.pipeline,
        **common,
    )
    return scores
