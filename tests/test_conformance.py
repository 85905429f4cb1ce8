"""The contract of attention, run for every backend on every store against the definition in kernels/reference.py."""

import pytest
import torch

from hipcli.cache.base import StoreShape
from hipcli.cache.host import HostStore
from hipcli.cache.resident import ResidentStore
from hipcli.kernels import reference
from hipcli.kernels.backends import backend_class
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage

KV, G, D = 2, 3, 16
ROPE = Rope(1.0 / (10000 ** (torch.arange(0, D, 2) / D)))
GPU_ROPE = Rope(ROPE.inv_freq.cuda()) if torch.cuda.is_available() else None
STORES = {"resident": ResidentStore, "host": HostStore}
VARIANTS = {
    "default": {},
    "descent-head": {"descent": "head"},
    "paper": {"descent": "head", "probe": "first", "score": "last", "share": "all"},
    "share-all": {"share": "all"},
    "wide-window": {"window_tokens": 41},
    "no-sinks": {"sink_tokens": 0},
    "full-descent": {"stages": (PruneStage(32, 128, 4, 5, 4), PruneStage(8, 64, 3, 3, 2), PruneStage(2, 32, 1, 1, 1))},
    "fine-questions": {"question_rounds": (0, 1, 0), "decode_rounds": (1, 0, 1), "question_keep_tokens": 64, "question_block_len": 8},
    "one-stage": {"stages": (PruneStage(8, 64, 2, 1, 4),), "special_keep_tokens": 64},
}

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make_plan(variant="default"):
    stages = (PruneStage(32, 128, 4, 2, 4), PruneStage(8, 64, 2, 1, 2), PruneStage(2, 32, 1, 0, 1))
    fields = {"stages": stages, "sink_tokens": 32, "window_tokens": 20, "block_len": 16, "special_layers": 1, "special_keep_tokens": 48}
    return PrunePlan(**(fields | VARIANTS[variant]))


class Rig:
    """Feeds one layer of a store and attends through a backend, as hipcli/attention.py does.

    Triton runs on a GPU where there is one and through its interpreter otherwise; results come back to the CPU.
    """

    def __init__(self, backend, store, plan, layer, total, dense_below=0, dtype=torch.float32):
        self.device = "cuda" if backend == "triton" and GPU_ROPE else "cpu"
        self.backend = backend_class(backend)(plan, ROPE if self.device == "cpu" else GPU_ROPE, dense_below)
        self.store = STORES[store](StoreShape(layer + 1, KV, D, dtype, self.device))
        self.layer = layer
        self.state = self.backend.new_state()
        self.q = torch.randn(KV * G, total, D).to(dtype)
        self.k, self.v = torch.randn(KV, total, D).to(dtype), torch.randn(KV, total, D).to(dtype)

    def append(self, start, stop):
        for layer in range(self.layer + 1):
            keys, values = self.k[:, start:stop].to(self.device), self.v[:, start:stop].to(self.device)
            self.store.append(layer, *self.backend.to_store(layer, keys, values, start))
        return self.store.view(self.layer)

    def prefill(self, start, stop):
        q = self.q[:, start:stop].to(self.device)
        return self.backend.prefill(self.layer, q, *self.append(start, stop), self.state).cpu()

    def decode(self, position, state, from_stage):
        keys, values = self.append(position, position + 1)
        q = self.q[:, position : position + 1].to(self.device)
        return self.backend.decode(self.layer, q, keys, values, state, from_stage).cpu()

    def expected(self, start, stop, dense_below=0):
        seen = self.k[:, :stop].float(), self.v[:, :stop].float()
        return reference.prefill_ref(self.q[:, start:stop].float(), *seen, start, self.backend.plan, self.layer, ROPE, dense_below)


@pytest.fixture(params=["torch", "triton"])
def backend(request):
    return request.param


@pytest.fixture(params=list(STORES))
def store(request):
    if request.param == "host" and "triton" in request.node.name and not GPU_ROPE:
        # through the interpreter the kernels take minutes, and get from a host store's view what they get from the other
        pytest.skip("needs a GPU: on a CPU the kernels would read the same memory")
    return request.param


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_equals_the_reference(backend, store, variant, layer):
    total, start = 215, 112
    rig = Rig(backend, store, make_plan(variant), layer, total)
    rig.append(0, start)
    got = rig.prefill(start, total)
    torch.testing.assert_close(got, rig.expected(start, total), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
@pytest.mark.parametrize("variant", ["default", "fine-questions", "paper"])
def test_a_question_is_read_by_a_plan_of_its_own(backend, store, variant, layer):
    total, start = 187, 150
    rig = Rig(backend, store, make_plan(variant), layer, total)
    rig.append(0, start)
    rig.backend = rig.backend.for_questions()
    assert rig.backend.plan == make_plan(variant).question
    torch.testing.assert_close(rig.prefill(start, total), rig.expected(start, total), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("start", "total"), [(0, 1), (0, 15), (0, 33), (0, 63), (31, 34), (111, 112), (97, 131)])
def test_odd_lengths_and_ragged_starts(backend, store, start, total):
    rig = Rig(backend, store, make_plan(), 1, total)
    if start:
        rig.append(0, start)
    torch.testing.assert_close(rig.prefill(start, total), rig.expected(start, total), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dense_below", [0, 40, 100, 128, 1000])
def test_early_blocks_are_dense_when_their_last_query_is_below_the_limit(backend, store, dense_below):
    total = 150
    rig = Rig(backend, store, make_plan(), 1, total, dense_below)
    torch.testing.assert_close(rig.prefill(0, total), rig.expected(0, total, dense_below), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cuts", [(16,), (48, 64), (16, 32, 112, 176)], ids=str)
def test_chunked_equals_unchunked(backend, store, cuts):
    total, plan = 190, make_plan()
    whole = Rig(backend, store, plan, 1, total)
    parts = Rig(backend, store, plan, 1, total)
    parts.q, parts.k, parts.v = whole.q, whole.k, whole.v
    edges = [0, *cuts, total]
    chunked = torch.cat([parts.prefill(a, b) for a, b in zip(edges, edges[1:])], dim=1)
    torch.testing.assert_close(chunked, whole.prefill(0, total), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
@pytest.mark.parametrize("variant", ["default", "paper", "wide-window", "no-sinks", "fine-questions"])
def test_decode_equals_the_reference_over_a_refresh_cycle(backend, store, variant, layer):
    first, steps = 165, 11
    plan = make_plan(variant)
    rig = Rig(backend, store, plan, layer, first + steps)
    rig.append(0, first)
    state, expected_state = rig.backend.new_state(), reference.RefDecodeState()
    for step in range(steps):
        position, stage = first + step, plan.refresh_stage(step, layer, 2)
        got = rig.decode(position, state, stage)
        seen = rig.k[:, : position + 1], rig.v[:, : position + 1]
        q = rig.q[:, position : position + 1]
        want = reference.decode_ref(q, *seen, position, plan, layer, ROPE, expected_state, stage)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dense_below", [0, 30, 36])
def test_decode_from_the_first_token_on(backend, store, dense_below):
    """No middle, then a middle shorter than a chunk, then the change from dense to sparse."""
    rig = Rig(backend, store, make_plan(), 1, 60, dense_below)
    state, expected_state = rig.backend.new_state(), reference.RefDecodeState()
    for position in range(60):
        stage = rig.backend.plan.refresh_stage(position, 1, 2)
        got = rig.decode(position, state, stage)
        seen = rig.k[:, : position + 1], rig.v[:, : position + 1]
        q = rig.q[:, position : position + 1]
        want = reference.decode_ref(q, *seen, position, rig.backend.plan, 1, ROPE, expected_state, stage, dense_below)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["torch", "dense"])
def test_a_budget_that_covers_the_middle_equals_dense(name, store):
    total = 150
    stages = (PruneStage(32, 160, 4, 2, 4), PruneStage(8, 160, 2, 1, 2))
    plan = PrunePlan(stages, sink_tokens=32, window_tokens=20, block_len=16, special_layers=1, special_keep_tokens=160)
    for layer in (0, 1):
        rig = Rig(name, store, plan, layer, total)
        dense = reference.dense_ref(rig.q, rig.k, rig.v, 0, ROPE)
        torch.testing.assert_close(rig.prefill(0, 96), dense[:, :96], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rig.prefill(96, 140), dense[:, 96:140], rtol=1e-5, atol=1e-5)
        state = rig.backend.new_state()
        for position in range(140, total):
            stage = plan.refresh_stage(position - 140, layer, 2)
            got = rig.decode(position, state, stage)
            torch.testing.assert_close(got, dense[:, position : position + 1], rtol=1e-5, atol=1e-5)


def test_low_precision_stays_within_twice_the_rounding_of_plain_torch(store):
    """The error against fp32 is at most twice that of the same dense attention done in bf16 by torch."""
    total = 160
    stages = (PruneStage(32, 160, 4, 2, 4), PruneStage(8, 160, 2, 1, 2))
    plan = PrunePlan(stages, sink_tokens=32, window_tokens=20, block_len=16, special_layers=0, special_keep_tokens=160)
    rig = Rig("torch", store, plan, 0, total, dtype=torch.bfloat16)
    exact = reference.dense_ref(rig.q, rig.k, rig.v, 0, ROPE)
    keys = reference.turn(rig.k, torch.arange(total), ROPE).bfloat16().repeat_interleave(G, 0)
    rows = reference.turn(rig.q, torch.arange(total), ROPE).bfloat16()
    plain = torch.nn.functional.scaled_dot_product_attention(rows, keys, rig.v.repeat_interleave(G, 0), is_causal=True)
    floor = 2**-9 * exact.abs().mean()
    assert (rig.prefill(0, total).float() - exact).norm() <= 2 * (plain.float() - exact).norm() + floor * exact.numel() ** 0.5


def test_slices_and_groups_of_any_size_give_the_same(store, monkeypatch):
    """Memory limits decide how the work is cut, never what comes out."""
    from hipcli.kernels import torch_prefill, torch_scan

    rig = Rig("torch", store, make_plan(), 1, 300)
    wide = rig.prefill(0, 300)
    again = Rig("torch", store, make_plan(), 1, 300)
    again.q, again.k, again.v = rig.q, rig.k, rig.v
    monkeypatch.setattr(torch_scan, "SLICE_BYTES", 1)
    monkeypatch.setattr(torch_prefill, "GROUP_BYTES", 1)
    torch.testing.assert_close(again.prefill(0, 300), wide, rtol=1e-5, atol=1e-5)
