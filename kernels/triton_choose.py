"""Best chunks of a stage as an ascending list, without sorting: a threshold by bisection, then one pass. Kernel and launcher, Triton.

See reference.keep_best: ties go to the lower index.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.triton_device import NEVER, PAD, candidate_count, candidate_start, ordered
from hipcli.kernels.triton_scan import Candidates


@triton.jit
def load_ordered(scores, i_first, i_b, blocks, most, o_c, m_c, slices):
    """Best score over `slices` pickers, as an ordered integer; the least there is where masked."""
    best = tl.full([o_c.shape[0]], NEVER, tl.float32)
    for i_s in range(0, slices):
        row = ((i_first + i_s) * blocks + i_b).to(tl.int64) * most
        best = tl.maximum(best, tl.load(scores + row + o_c, mask=m_c, other=NEVER))
    return ordered(best)


@triton.jit
def count_three(x, m_c, threshold, step):
    """How many of x reach the threshold plus one, two and three steps: 21 bits a count."""
    reach = (m_c & (x >= threshold + step)).to(tl.int64)
    reach += (m_c & (x >= threshold + 2 * step)).to(tl.int64) << 21
    reach += (m_c & (x >= threshold + 3 * step)).to(tl.int64) << 42
    return tl.sum(reach)


@triton.jit
def find_threshold(x, scores, i_first, i_b, blocks, most, slices, count, keep, ONE_TILE: tl.constexpr, BC: tl.constexpr):
    """A value that exactly `keep` of `count` ordered scores reach, or where ties forbid that the largest that more reach.

    Two bits at a time, from the first that differs between the least and the best score. x: the scores, when one tile
    holds them all; else they are read again each time. Also returns how many are above the value.
    """
    o_c = tl.arange(0, BC)
    tiles = tl.cdiv(count, BC)
    least, best = tl.full([], 0xFFFFFFFF, tl.uint32), tl.full([], 0, tl.uint32)
    for i_t in range(0, tiles):
        m_c = i_t * BC + o_c < count
        if ONE_TILE:
            again = x
        else:
            again = load_ordered(scores, i_first, i_b, blocks, most, i_t * BC + o_c, m_c, slices)
        least = tl.minimum(least, tl.min(tl.where(m_c, again, 0xFFFFFFFF)))
        best = tl.maximum(best, tl.max(tl.where(m_c, again, 0)))
    shift = tl.full([], 30, tl.int32)
    while (shift > 0) & (least >> shift.to(tl.uint32) == best >> shift.to(tl.uint32)):
        shift -= 2
    # bits above the first pair that differs, and all scores reach them
    threshold = tl.where(shift == 30, 0, (least >> ((shift + 2) & 31).to(tl.uint32)) << ((shift + 2) & 31).to(tl.uint32))
    reached = count
    while (shift >= 0) & (reached != keep):
        step = tl.full([], 1, tl.uint32) << shift.to(tl.uint32)
        reach = tl.full([], 0, tl.int64)
        if ONE_TILE:
            reach += count_three(x, o_c < count, threshold, step)
        else:
            for i_t in range(0, tiles):
                m_c = i_t * BC + o_c < count
                again = load_ordered(scores, i_first, i_b, blocks, most, i_t * BC + o_c, m_c, slices)
                reach += count_three(again, m_c, threshold, step)
        one, two, three = (reach & 0x1FFFFF).to(tl.int32), ((reach >> 21) & 0x1FFFFF).to(tl.int32), (reach >> 42).to(tl.int32)
        steps = (one >= keep).to(tl.uint32) + (two >= keep).to(tl.uint32) + (three >= keep).to(tl.uint32)
        reached = tl.where(three >= keep, three, tl.where(two >= keep, two, tl.where(one >= keep, one, reached)))
        threshold += steps * step
        shift -= 2
    above = tl.full([], 0, tl.int32)
    for i_t in range(0, tiles):
        m_c = i_t * BC + o_c < count
        if ONE_TILE:
            again = x
        else:
            again = load_ordered(scores, i_first, i_b, blocks, most, i_t * BC + o_c, m_c, slices)
        above += tl.sum((m_c & (again > threshold)).to(tl.int32))
    return threshold, above


@triton.jit(do_not_specialize=["per_kv", "slices"])
def select_kernel(
    scores,
    stops,
    starts,
    counts,
    kept,
    left,
    sinks,
    keep,
    most,
    held,
    per_kv,
    slices,
    LEN: tl.constexpr,
    RATIO: tl.constexpr,
    FINER: tl.constexpr,
    ONE_TILE: tl.constexpr,
    BC: tl.constexpr,
):
    """Keep the `keep` best of a block's candidates.

    Scores above the threshold are kept, and of those equal to it the first.
    """
    i_b, i_kv = tl.program_id(0), tl.program_id(1)
    blocks = tl.num_programs(0)
    stop = tl.load(stops + i_b)
    place = (i_kv * blocks + i_b).to(tl.int64)
    count = candidate_count(stop, counts, place, sinks, LEN, RATIO)
    p_list = starts + place * held
    p_kept = kept + place * keep
    i_first = i_kv * per_kv
    o_c = tl.arange(0, BC)
    x = tl.full([BC], 0, tl.uint32)
    threshold, above = tl.full([], 0, tl.uint32), tl.full([], 0, tl.int32)
    # what fits the budget is kept unseen
    sparse = count > keep
    if sparse:
        if ONE_TILE:
            x = load_ordered(scores, i_first, i_b, blocks, most, o_c, o_c < count, slices)
        threshold, above = find_threshold(x, scores, i_first, i_b, blocks, most, slices, count, keep, ONE_TILE, BC)
    written, equal_seen, end = 0, 0, 0
    for i_t in range(0, tl.cdiv(count, BC)):
        o_t = i_t * BC + o_c
        m_c = o_t < count
        chosen = m_c
        if sparse:
            if not ONE_TILE:
                x = load_ordered(scores, i_first, i_b, blocks, most, o_t, m_c, slices)
            equal = (m_c & (x == threshold)).to(tl.int32)
            rank = tl.cumsum(equal, axis=0) + equal_seen
            chosen = m_c & ((x > threshold) | ((equal > 0) & (rank <= keep - above)))
            equal_seen += tl.sum(equal)
        taken = chosen.to(tl.int32)
        slot = tl.cumsum(taken, axis=0) - taken + written
        start = candidate_start(p_list, o_t, m_c, sinks, LEN, RATIO)
        tl.store(p_kept + slot, start, mask=chosen)
        written += tl.sum(taken)
        end = tl.maximum(end, tl.max(tl.where(chosen, start, 0)))
    for i_t in range(0, tl.cdiv(keep, BC)):
        o_t = i_t * BC + o_c
        tl.store(p_kept + o_t, tl.full([BC], PAD, tl.int32), mask=(o_t >= written) & (o_t < keep))
    # only the last chunk kept can be cut short by the end of the middle
    pieces = (written - 1) * (LEN // FINER) + (tl.minimum(stop - end, LEN) + FINER - 1) // FINER
    tl.store(left + place, tl.where(written > 0, pieces, 0))


def choose(scores, stops, candidates: Candidates, index: int, plan: PrunePlan, layer: int, out: Candidates) -> None:
    """Write the best chunks of stage `index` to `out`: ascending starts, padded with PAD, and how many pieces they make.

    scores: [KV * slices, NB, most] fp32 as `scan` wrote them, the best of the slices counts; stops: [NB] int32. After the last stage a piece is a key.
    """
    kv, blocks = candidates.counts.shape
    stage, keep = plan.stages[index], plan.keep_chunks(index, layer)
    per_kv = scores.shape[0] // kv
    block = min(4096, max(16, triton.next_power_of_2(candidates.most)))
    select_kernel[(blocks, kv)](
        scores=scores,
        stops=stops,
        starts=candidates.starts,
        counts=candidates.counts,
        kept=out.starts,
        left=out.counts,
        sinks=plan.sink_tokens,
        keep=keep,
        most=candidates.most,
        held=candidates.starts.shape[-1],
        per_kv=0 if plan.share == "all" else per_kv,
        slices=scores.shape[0] if plan.share == "all" else per_kv,
        LEN=stage.chunk_len,
        RATIO=candidates.ratio,
        FINER=stage.chunk_len // out.ratio,
        ONE_TILE=candidates.most <= block,
        BC=block,
        num_warps=4 if block <= 1024 else 8,
    )
