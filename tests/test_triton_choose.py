"""The choice of the best chunks: exactly that of reference.keep_best, ties included, and near the cut in low precision."""

import pytest
import torch

from hipcli.kernels import reference
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage
from hipcli.kernels.triton_choose import choose
from hipcli.kernels.triton_device import PAD
from hipcli.kernels.triton_prune import empty_selection
from hipcli.kernels.triton_scan import Candidates, scan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SINKS, CHUNK, FINER = 32, 8, 2
NEVER = float("-inf")
LEAST, HUGE = 2.0**-149, torch.finfo(torch.float32).max  # least positive fp32, largest finite one

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make_plan(keep, share="group", last=False):
    """A stage of chunks of CHUNK keys that keeps `keep` of them; another follows unless it is the last."""
    stages = (PruneStage(CHUNK, keep * CHUNK, 1, 0, 1), PruneStage(FINER, FINER, 1, 0, 1))
    return PrunePlan(stages[: 1 if last else 2], sink_tokens=SINKS, special_layers=0, special_keep_tokens=CHUNK, share=share)


def chunk_starts(stop):
    return list(range(SINKS, stop, CHUNK))


def choose_lists(plan, scores, starts, stops, coarse=None, held=CHUNK):
    """Run the kernel: per key/value head and block the list [keep], padding included, and the count it hands on.

    scores: [slices][NB][C] over the key/value heads; starts: [KV][NB] lists of candidates. coarse: [KV][NB] lists of the
    chunks of `held` keys that the candidates are pieces of; without it they are the chunks of the middle in a row. What
    lies past a block's candidates, and all of a block that fits its budget, is NaN.
    """
    kv, blocks, keep = len(starts), len(stops), plan.keep_chunks(0, 0)
    most = max(len(row) for rows in starts for row in rows)
    packed = torch.full((len(scores), blocks, most), float("nan"))
    for i_s, rows in enumerate(scores):
        for i_b, row in enumerate(rows):
            # what fits the budget is kept unseen
            if len(row) > keep:
                packed[i_s, i_b, : len(row)] = torch.as_tensor(row)
    lists = torch.full((kv, blocks, 1), -1, dtype=torch.int32)
    if coarse:
        lists = torch.full((kv, blocks, -(-most // (held // CHUNK))), -1, dtype=torch.int32)
        for i_kv, rows in enumerate(coarse):
            for i_b, row in enumerate(rows):
                lists[i_kv, i_b, : len(row)] = torch.tensor(row, dtype=torch.int32)
    counts = torch.tensor([[len(row) for row in rows] for rows in starts], dtype=torch.int32)
    entering = Candidates(lists.to(DEVICE), counts.to(DEVICE), held // CHUNK if coarse else 0, most)
    ratio = CHUNK // (FINER if len(plan.stages) > 1 else 1)
    like = {"dtype": torch.int32, "device": DEVICE}
    leaving = Candidates(torch.empty(kv, blocks, keep, **like), torch.empty(kv, blocks, **like), ratio, keep * ratio)
    choose(packed.to(DEVICE), torch.tensor(stops, **like), entering, 0, plan, 0, out=leaving)
    return leaving.starts.tolist(), leaving.counts.tolist()


def check(plan, scores, starts, stops, **entering):
    """Compare with the definition: the list, its padding, and how many pieces are left for the next stage."""
    keep, kv = plan.keep_chunks(0, 0), len(starts)
    lists, counts = choose_lists(plan, scores, starts, stops, **entering)
    slices = len(scores) // kv
    for i_kv in range(kv):
        pickers = scores if plan.share == "all" else scores[i_kv * slices : (i_kv + 1) * slices]
        for i_b, stop in enumerate(stops):
            best = [max(column) for column in zip(*(rows[i_b] for rows in pickers))]
            wanted = reference.keep_best(starts[i_kv][i_b], best, keep)
            assert lists[i_kv][i_b] == wanted + [PAD.value] * (keep - len(wanted)), (i_kv, i_b)
            finer = FINER if len(plan.stages) > 1 else 1
            assert counts[i_kv][i_b] == len(reference.split_chunks(wanted, CHUNK, finer, stop)), (i_kv, i_b)


def check_rows(plan, scores, stops):
    """`check` for a first stage, where every key/value head has all chunks of the middle as candidates."""
    kv = len(scores)
    check(plan, scores, [[chunk_starts(stop) for stop in stops]] * kv, stops)


@pytest.mark.parametrize("keep", [1, 3, 16, 17])
def test_as_many_as_the_budget_allows(keep):
    """No chunk, one, one less than the budget, just the budget, one more, and many; each with its last chunk whole."""
    stops = [SINKS + CHUNK * count for count in (0, 1, keep - 1, keep, keep + 1, 3 * keep + 1)]
    scores = [[torch.randn(len(chunk_starts(stop))).tolist() for stop in stops] for _ in range(2)]
    check_rows(make_plan(keep), scores, stops)


@pytest.mark.parametrize("last", [False, True], ids=["handed-on", "last-stage"])
def test_the_last_chunk_may_be_cut_short(last):
    """By 1 to CHUNK - 1 keys; it is among the best, is not, or everything fits."""
    stops = [SINKS + CHUNK * count - cut for count in (2, 9) for cut in (1, 2, 5, CHUNK - 1)]
    rows = [torch.randn(len(chunk_starts(stop))) for stop in stops]
    best = [[*row[:-1].tolist(), 9.0] for row in rows]
    worst = [[*row[:-1].tolist(), -9.0] for row in rows]
    check_rows(make_plan(4, last=last), [best, worst], stops)


TIES = {
    "all-equal": [1.5] * 11,
    "many-at-the-cut": [3.0, 1.0, 1.0, 2.0, 1.0, 1.0, 0.5, 1.0, 4.0, 1.0, 0.25],
    "signed-zeros": [-0.0, 0.0, -0.0, 1.0, 0.0, -0.0, -1.0, 0.0, -0.0, 0.0, -0.0],
    "all-never": [NEVER] * 11,
    "never-at-the-cut": [NEVER, 1.0, NEVER, NEVER, -2.0, NEVER, HUGE, NEVER, NEVER, -HUGE, NEVER],
    "negatives": [-1.0, -2.0, -1.0, -3.0, -2.0, -2.0, -5.0, -2.0, -4.0, -1.0, -2.0],
    "around-zero": [LEAST, -LEAST, 0.0, -0.0, LEAST, -LEAST, 2 * LEAST, -2 * LEAST, 0.0, LEAST, -LEAST],
    "huge-and-tiny": [HUGE, -HUGE, LEAST, 1.0, HUGE, -HUGE, -LEAST, NEVER, 1e-30, -1e30, HUGE],
    "one-ulp-apart": [1.0, 1.0 + 2**-23, 1.0, 1.0 - 2**-24, 1.0 + 2**-23, 1.0, -1.0, -1.0 - 2**-23, 1.0 - 2**-24, 1.0, 2.0],
}


@pytest.mark.parametrize("row", TIES.values(), ids=TIES)
def test_ties_go_to_the_lower_index(row):
    """Several rotations of a row, so that a tie stands at different places."""
    turned = [row[at:] + row[:at] for at in range(0, len(row), 3)]
    stops = [SINKS + CHUNK * len(row)] * len(turned)
    for keep in (1, 4, len(row) - 1):
        check_rows(make_plan(keep), [turned], stops)


@pytest.mark.parametrize("share", ["group", "all"])
@pytest.mark.parametrize("slices", [1, 3])
def test_the_best_of_several_pickers_counts(share, slices):
    """With one list for all heads, that of every head's pickers. Small whole scores: many ties, in and between pickers."""
    kv, stops = 2, [SINKS + CHUNK * 20 - 3, SINKS + CHUNK * 5, SINKS + CHUNK * 13]
    scores = [[torch.randint(-2, 3, (len(chunk_starts(stop)),)).float().tolist() for stop in stops] for _ in range(kv * slices)]
    check(make_plan(6, share), scores, [[chunk_starts(stop) for stop in stops]] * kv, stops)


@pytest.mark.parametrize("keep", [700, 4200], ids=["keep-in-one-tile", "keep-in-two"])
@pytest.mark.parametrize("levels", [3, 1 << 20], ids=["ties", "distinct"])
def test_more_candidates_than_a_tile(keep, levels):
    """5000 candidates are read in two tiles: ties and ranks go on over the edge, and so does the padding."""
    stops = [SINKS + CHUNK * count - 1 for count in (5000, 4097, 650)]
    rows = [(torch.randint(levels, (len(chunk_starts(stop)),)) - levels // 2).float().tolist() for stop in stops]
    check_rows(make_plan(keep), [rows], stops)


@pytest.mark.parametrize("held", [16, 32], ids=["two-pieces", "four-pieces"])
def test_pieces_of_the_chunks_that_an_earlier_stage_kept(held):
    """A later stage: other candidates for each head, the last of them cut short so far that whole pieces are missing."""
    coarse = [[[32, 96, 160, 224], [64, 128]], [[64, 96, 192, 256], [32, 192]]]
    stops = [267, 199]
    starts = [[reference.split_chunks(row, held, CHUNK, stop) for row, stop in zip(rows, stops)] for rows in coarse]
    slices = 2
    scores = [[torch.randint(-3, 4, (len(row),)).float().tolist() for row in starts[at // slices]] for at in range(2 * slices)]
    for keep in (1, 3, 7, 20):
        check(make_plan(keep), scores, starts, stops, coarse=coarse, held=held)


def score_bounds(rows, keys, dtype, turned):
    """Largest error of each product of an averaged row [R, D] with a key [T, D] that roundings explain: [R, T].

    A pair of length r is off by r times the unit of the phases (fp16) and that of its own format after it was turned;
    pairs add up. turned: keys are as well. fp32 sums lose next to nothing.
    """
    unit, phase, dim = torch.finfo(dtype).eps / 2, torch.finfo(torch.float16).eps / 2, rows.shape[-1]
    once = unit + phase + unit * phase
    share = (2 * once + once**2 if turned else once) + dim * torch.finfo(torch.float32).eps
    lengths = [torch.complex(*x.float().chunk(2, dim=-1)).abs() for x in (rows, keys)]
    return share * lengths[0] @ lengths[1].T


def exchanged_only_near_the_cut(kept, wanted, exact, bound):
    """Whether every pick that is not wanted may, by the bounds of both, score as high as every one it pushed out."""
    wrong, missed = kept & ~wanted, wanted & ~kept
    if wrong.sum() != missed.sum():
        return False
    return not wrong.any() or bool((exact + bound)[wrong].min() >= (exact - bound)[missed].max())


# the interpreter keeps bf16 as 16-bit integers and multiplies those
bf16_works = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: triton's interpreter has no bf16 products")


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=bf16_works)], ids=["fp16", "bf16"])
def test_low_precision_exchanges_picks_only_near_the_cut(dtype, layer):
    """One stage that scores its chunks whole, so that no descent takes another way."""
    kv, group, dim, first, rows, length, keep, mean = 2, 3, 64, 300, 16, 4, 24, 2
    stages = (PruneStage(length, length * keep, mean, 0, 1),)
    plan = PrunePlan(stages, SINKS, window_tokens=20, block_len=rows, special_layers=1, special_keep_tokens=length * keep)
    q, k = torch.randn(kv * group, rows, dim).to(dtype), torch.randn(kv, first + rows, dim).to(dtype)
    rope, stop = Rope(10000 ** -(torch.arange(0, dim, 2) / dim)), first - plan.window_tokens + 1
    selection = empty_selection(kv, 1, stop, plan, layer, DEVICE)
    entering, leaving = selection.inputs
    firsts, stops = (torch.tensor([x], dtype=torch.int32, device=DEVICE) for x in (first, stop))
    scores = scan(q.to(DEVICE), k.to(DEVICE), firsts, stops, entering, 0, plan, layer, Rope(rope.inv_freq.to(DEVICE)))
    choose(scores, stops, entering, 0, plan, layer, out=leaving)
    starts = list(range(SINKS, stop, length))
    for i_kv, heads in enumerate(q.split(group)):
        exact = torch.tensor(reference.scan_ref(heads, k[i_kv], starts, stop, 0, plan, layer, first, rope))
        averaged = reference.mean_rows(heads, mean).flatten(0, 1)
        bounds = score_bounds(averaged, k[i_kv, SINKS:stop], dtype, plan.is_special(layer)).amax(0)
        bound = torch.stack([part.max() for part in bounds.split(length)])
        got = scores.unflatten(0, (kv, -1))[i_kv, :, 0, : len(starts)].amax(0).cpu()
        assert ((got - exact).abs() <= bound).all()
        lists = leaving.starts[i_kv, 0].tolist(), reference.keep_best(starts, exact.tolist(), keep)
        kept, wanted = (torch.isin(torch.tensor(starts), torch.tensor(picks)) for picks in lists)
        assert exchanged_only_near_the_cut(kept, wanted, exact, bound)
