"""The Triton kernels piece by piece: lists exactly, attention over them for every head size, decode in place, mass."""

import pytest
import torch
import torch.nn.functional as F

from hipcli.kernels import reference
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage
from hipcli.kernels.triton_attend import attend
from hipcli.kernels.triton_backend import TritonBackend
from hipcli.kernels.triton_decode import MASS_BLOCK, span_tiles
from hipcli.kernels.triton_device import PAD
from hipcli.kernels.triton_prune import empty_selection, prune
from hipcli.kernels.triton_tiles import decode_tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KV, SINKS, WINDOW, BLOCK = 2, 16, 20, 16
CHOICES = {
    "default": {},
    "descent-head": {"descent": "head"},
    "probe-first": {"probe": "first"},
    "score-last": {"score": "last"},
    "share-all": {"share": "all"},
    "paper": {"descent": "head", "probe": "first", "score": "last", "share": "all"},
    "full-descent": {"stages": (PruneStage(16, 64, 4, 4, 4), PruneStage(4, 32, 2, 2, 2), PruneStage(2, 16, 1, 1, 1))},
    "one-stage": {"stages": (PruneStage(8, 24, 2, 1, 4),)},
}
# head size, query heads per key/value head, format
SHAPES = [(64, 3, "fp16"), (64, 16, "fp32"), (80, 1, "fp32"), (80, 4, "bf16"), (96, 2, "fp16"), (128, 7, "fp16"), (128, 8, "bf16"),
          (256, 2, "fp16"), (256, 1, "bf16")]  # fmt: skip
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

pytestmark = pytest.mark.usefixtures("poisoned_memory")
# the interpreter keeps bf16 as 16-bit integers and multiplies those
bf16_works = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: triton's interpreter has no bf16 products")


def shape_cases(shapes=SHAPES):
    marks = {"bf16": [bf16_works]}
    return [pytest.param(d, g, DTYPES[name], id=f"D{d}-G{g}-{name}", marks=marks.get(name, [])) for d, g, name in shapes]


def make_plan(choice="default", **changes):
    stages = (PruneStage(16, 64, 4, 2, 4), PruneStage(4, 32, 2, 1, 2), PruneStage(2, 16, 1, 0, 1))
    fields = {"stages": stages, "sink_tokens": SINKS, "window_tokens": WINDOW, "block_len": BLOCK, "special_layers": 1}
    return PrunePlan(**(fields | {"special_keep_tokens": 24} | CHOICES[choice] | changes))


def make_rope(dim, device="cpu"):
    return Rope(10000 ** -(torch.arange(0, dim, 2, device=device) / dim))


class QuarterTurns(Rope):
    """Pair i turns by i % 4 quarters a position: whole numbers stay whole, so that scores are exact and often tie."""

    def table(self, length):
        device = self.inv_freq.device
        quarters = torch.arange(length, device=device)[:, None] * torch.arange(self.inv_freq.numel(), device=device) % 4
        return torch.tensor([1, 1j, -1, -1j], dtype=torch.complex64, device=device)[quarters]


class HalfTable(Rope):
    """Phases rounded to fp16, as kernels read them beside keys of two bytes."""

    def table(self, length):
        exact = super().table(length)
        return torch.complex(exact.real.half().float(), exact.imag.half().float())


def with_room(x, capacity):
    """x [KV, T, D] on the device, with NaN behind it."""
    return F.pad(x, (0, 0, 0, capacity - x.shape[1]), value=float("nan")).to(DEVICE)


def front(x):
    """x [KV, T, D] on the device as the front of a longer buffer, whose rest nobody may read."""
    return with_room(x, x.shape[1] + 9)[:, : x.shape[1]]


def select(q, k, firsts, plan, layer, rope):
    """Run every stage for blocks that begin at `firsts`; q: [H, NB * rows, D]."""
    where = torch.tensor(firsts, dtype=torch.int32, device=DEVICE)
    selection = empty_selection(k.shape[0], len(firsts), max(firsts), plan, layer, DEVICE)
    torch.sub(where, plan.window_tokens - 1, out=selection.stops)
    prune(q.to(DEVICE), front(k), where, selection, plan, layer, rope)
    return selection


def pieces(selection, index, block, plan):
    """What stage `index` hands on for a block, [KV] lists of chunk starts, once the padding has been seen to be that."""
    lists, stop = selection.inputs[index + 1], int(selection.stops[block])
    length = plan.stages[index].chunk_len
    handed = []
    for kept, count in zip(lists.starts[:, block].tolist(), lists.counts[:, block].tolist()):
        chosen = [start for start in kept if start < stop]
        assert kept == chosen + [PAD.value] * (len(kept) - len(chosen))
        handed.append(reference.split_chunks(chosen, length, length // lists.ratio, stop))
        assert count == len(handed[-1])
    return handed


def check_lists(plan, layer, firsts, rows, total, group=2, dim=16):
    """Every stage hands on exactly what the definition does."""
    turns = QuarterTurns(torch.ones(dim // 2))
    q, k = (torch.randint(-3, 4, shape).float() for shape in ((KV * group, rows * len(firsts), dim), (KV, total, dim)))
    selection = select(q, k, firsts, plan, layer, QuarterTurns(turns.inv_freq.to(DEVICE)))
    for i_b, first in enumerate(firsts):
        seen = k[:, : first + rows]
        block = q[:, i_b * rows : (i_b + 1) * rows]
        wanted = reference.prune_ref(block, seen, first, first - plan.window_tokens + 1, plan, layer, turns)
        left = [[*entered[1:], keys.tolist()] for entered, keys in zip(wanted.inputs, wanted.kept)]
        for index in range(len(plan.stages)):
            assert pieces(selection, index, i_b, plan) == [lists[index] for lists in left], (i_b, index)


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
@pytest.mark.parametrize("choice", CHOICES)
def test_lists_of_every_stage_are_exact(choice, layer):
    check_lists(make_plan(choice), layer, [112, 128], BLOCK, 150)


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
@pytest.mark.parametrize("rows", [1, 5])
def test_lists_of_short_blocks(rows, layer):
    check_lists(make_plan().question, layer, [113], rows, 113 + rows, group=3)


@pytest.mark.parametrize("middle", [0, 1, 15, 17, 64, 65])
def test_lists_of_short_middles(middle):
    """None, a part of a chunk, little more than one, just the first stage's budget, one key more."""
    check_lists(make_plan().question, 1, [SINKS + middle + WINDOW - 1], 3, SINKS + middle + WINDOW + 9)


def span_of(first, stop, rows, kept):
    """Keys that a block reads in the order of their places, and its mask [rows, N]."""
    index = torch.cat([torch.arange(min(SINKS, stop)), kept, torch.arange(stop, first + rows)])
    return index, index[None, :] <= torch.arange(first, first + rows)[:, None]


def plain_rope(q):
    """The phases that kernels read beside keys of q's format."""
    return (HalfTable if q.dtype.itemsize == 2 else Rope)(make_rope(q.shape[-1]).inv_freq)


def plain_attention(q, k, v, first, stop, kept):
    """The same maths by torch in q's format: keys and rows rounded once turned, one call of SDPA. Returns [H, Q, D]."""
    rope, group, rows, out = plain_rope(q), q.shape[0] // KV, q.shape[1], []
    for i_kv in range(KV):
        index, visible = span_of(first, stop, rows, kept[i_kv])
        at = torch.arange(index.numel())
        keys = reference.turn(k[i_kv, index], at, rope).to(q.dtype)
        turned = reference.turn(q[i_kv * group : (i_kv + 1) * group], at[-rows:], rope).to(q.dtype)
        every = [x.expand(group, -1, -1) for x in (keys, v[i_kv, index])]
        out.append(F.scaled_dot_product_attention(turned, *every, visible))
    return torch.cat(out)


def draw(heads, rows, total, dim, dtype):
    return torch.randn(heads, rows, dim).to(dtype), torch.randn(KV, total, dim).to(dtype), torch.randn(KV, total, dim).to(dtype)


def assert_close(got, exact, plain):
    """Error of at most twice that of the same maths by plain torch, a rounding of the result, and a few of fp32.

    Those shift the logits, up to 8 in base 2, and so the weights by as many units; a GPU's exp2 is off by up to 2.
    """
    floor = (torch.finfo(got.dtype).eps / 2 + 10 * torch.finfo(torch.float32).eps / 2) * exact.norm()
    assert (got.float().cpu() - exact).norm() <= 2 * (plain.float() - exact).norm() + floor


def compare(got, q, k, v, first, stop, kept, plan, whole=False):
    """Against the definition over the same lists; whole: against dense attention, because they leave nothing out."""
    exact, rope = (q.float(), k.float(), v.float()), make_rope(q.shape[-1])
    wanted = reference.dense_ref(*exact, first, rope) if whole else reference.attend_ref(*exact, first, stop, kept, plan, rope)
    assert_close(got, wanted, plain_attention(q, k, v, first, stop, kept))


def covering_plan():
    """A budget that no middle of these tests exceeds."""
    return make_plan(stages=(PruneStage(16, 96, 4, 2, 4), PruneStage(4, 96, 2, 1, 2)), special_keep_tokens=96)


def check_prefill(plan, dim, group, dtype, layer=1, whole=False):
    """Two blocks at once over the lists the kernels choose for them."""
    firsts, rows, total = [80, 96], BLOCK, 112
    q, k, v = draw(KV * group, 2 * rows, total, dim, dtype)
    rope, where = make_rope(dim, DEVICE), torch.tensor(firsts, dtype=torch.int32, device=DEVICE)
    selection = select(q, k, firsts, plan, layer, rope)
    got = attend(q.to(DEVICE), front(k), front(v), where, selection, plan, layer, rope)
    for i_b, first in enumerate(firsts):
        kept = [torch.tensor(keys) for keys in pieces(selection, len(plan.stages) - 1, i_b, plan)]
        mine, seen = slice(i_b * rows, (i_b + 1) * rows), slice(0, first + rows)
        compare(got[:, mine], q[:, mine], k[:, seen], v[:, seen], first, first - WINDOW + 1, kept, plan, whole)


@pytest.mark.parametrize(("dim", "group", "dtype"), shape_cases())
def test_prefill_attends_to_the_lists_it_chose(dim, group, dtype):
    check_prefill(make_plan(), dim, group, dtype)


def step_at(backend, position, layer, row, k, v, buffers, state, stage, dense=False):
    """decode_at for the token at `position` of k and v."""
    new = [x[:, position : position + 1].to(DEVICE) for x in (k, v)]
    where = torch.tensor([position], dtype=torch.int32, device=DEVICE)
    return backend.decode_at(layer, row.to(DEVICE), *new, *buffers, state, stage, where, dense)


def check_decode(plan, dim, group, dtype, layer=1, whole=False):
    """Two steps, the second on the lists of the first; buffers take the new tokens and nothing else."""
    position, steps, capacity = plan.window_tokens + 69, 2, plan.window_tokens + 80
    backend = TritonBackend(plan, make_rope(dim, DEVICE), 0)
    q, k, v = draw(KV * group, steps, position + steps, dim, dtype)
    buffers = [with_room(x[:, :position], capacity) for x in (k, v)]
    state, stop = backend.new_state(), position - plan.window_tokens + 1
    for step in range(steps):
        now = slice(position + step, position + step + 1)
        wanted = [buffer.clone() for buffer in buffers]
        for buffer, x in zip(wanted, (k, v)):
            buffer[:, now] = x[:, now].to(DEVICE)
        row, stage = q[:, step : step + 1], 0 if step == 0 else None
        got = step_at(backend, now.start, layer, row, k, v, buffers, state, stage)
        for buffer, expected in zip(buffers, wanted):
            torch.testing.assert_close(buffer, expected, rtol=0, atol=0, equal_nan=True)
        kept = [torch.tensor(keys) for keys in pieces(state.selection, len(plan.stages) - 1, 0, plan)]
        compare(got, row, k[:, : now.stop], v[:, : now.stop], now.start, stop, kept, plan, whole)


@pytest.mark.parametrize(("dim", "group", "dtype"), shape_cases())
def test_decode_stores_the_new_token_and_attends_to_its_lists(dim, group, dtype):
    # more tiles of keys than one program takes
    check_decode(make_plan(window_tokens=121), dim, group, dtype)


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
@pytest.mark.parametrize(("dim", "group", "dtype"), shape_cases([(80, 3, "fp16"), (64, 2, "fp32"), (128, 4, "bf16")]))
def test_a_budget_that_covers_the_middle_equals_dense(dim, group, dtype, layer):
    check_prefill(covering_plan(), dim, group, dtype, layer, whole=True)
    check_decode(covering_plan(), dim, group, dtype, layer, whole=True)


def slot_shares(q, k, index, rope, dtype, window, far_slots, slots):
    """Softmax of q [G, 1, D] over keys `index` of k [T, D], summed over every 8 slots of the span: [G, slots / 8].

    Keys and rows are rounded to `dtype` once turned. The last `window` keys stand from far_slots on.
    """
    at = torch.arange(index.numel())
    keys, rows = (reference.turn(x, where, rope).to(dtype).float() for x, where in ((k[index], at), (q, at[-1:])))
    shares = (rows @ keys.T / q.shape[-1] ** 0.5).softmax(-1)[:, 0]
    out = torch.zeros(q.shape[0], slots)
    out[:, : index.numel() - window] = shares[:, :-window]
    out[:, far_slots : far_slots + window] = shares[:, -window:]
    return out.unflatten(-1, (-1, MASS_BLOCK)).sum(-1)


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize(("position", "dtype"), [(140, torch.float32), (190, torch.float32), (190, torch.float16)], ids=str)
def test_attention_mass_is_that_of_the_softmax(position, dtype, dense):
    """Of 8 slots each: sinks and kept keys fill whole tiles, the window starts on one of its own."""
    plan, dim, group, capacity = make_plan(window_tokens=121), 16, 3, 300
    backend = TritonBackend(plan, make_rope(dim, DEVICE), capacity if dense else 0)
    q, k, v = draw(KV * group, 1, position + 1, dim, dtype)
    buffers = [with_room(x[:, :position], capacity) for x in (k, v)]
    near = capacity if dense else plan.window_tokens + plan.stages[0].refresh
    far_slots, tiles = span_tiles(plan, 1, near, not dense, dim, dtype)
    state, slots = backend.new_state(), tiles * decode_tiles(dim, dtype).block
    state.mass = torch.empty(KV * group, slots // MASS_BLOCK, device=DEVICE)
    step_at(backend, position, 1, q, k, v, buffers, state, 0, dense)
    torch.testing.assert_close(state.mass.sum(1).cpu(), torch.ones(KV * group))
    stop = 0 if dense else position - plan.window_tokens + 1
    for i_kv, mass in enumerate(state.mass.split(group)):
        kept = torch.tensor([] if dense else pieces(state.selection, len(plan.stages) - 1, 0, plan)[i_kv], dtype=torch.int64)
        mine, index = slice(i_kv * group, (i_kv + 1) * group), span_of(position, stop, 1, kept)[0]
        sizes = (position + 1 - stop, far_slots, slots)
        exact = slot_shares(q[mine], k[i_kv], index, make_rope(dim), torch.float32, *sizes)
        assert_close(mass, exact, slot_shares(q[mine], k[i_kv], index, plain_rope(q), dtype, *sizes))
