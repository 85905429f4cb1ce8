"""Decode over a bank that is filled from the host equals decode over the whole store, bit for bit."""

from types import SimpleNamespace

import pytest
import torch

from hipcli.cache.base import StoreShape
from hipcli.cache.host import HostStore
from hipcli.cache.resident import ResidentStore
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage
from hipcli.kernels.triton_backend import TritonBackend
from hipcli.scan_ahead import ScanAhead

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KV, G, D = 2, 3, 32
ON_DEVICE = False, False

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make_plan(**changes):
    stages = (PruneStage(32, 128, 4, 2, 8), PruneStage(8, 64, 2, 1, 4), PruneStage(2, 32, 1, 0, 2))
    fields = {"stages": stages, "sink_tokens": 32, "window_tokens": 20, "block_len": 16, "special_layers": 1, "special_keep_tokens": 48}
    return PrunePlan(**(fields | {"decode_rounds": (0, 0, 0)} | changes))


class Steps:
    """Decode steps of one layer at device positions over buffers whose free room is NaN."""

    def __init__(self, plan, layer, k, v, capacity, far, dense_below=0):
        rope = Rope(10000 ** -(torch.arange(0, D, 2, device=DEVICE) / D))
        self.backend, self.layer, self.far = TritonBackend(plan, rope, dense_below), layer, far
        room = (0, 0, 0, capacity - k.shape[1])
        buffers = [torch.nn.functional.pad(x, room, value=float("nan")) for x in (k, v)]
        self.buffers = [self.locked(x) if on_host else x.to(DEVICE) for x, on_host in zip(buffers, far)]
        self.state = self.backend.new_state()

    @staticmethod
    def locked(x):
        return x.pin_memory() if DEVICE == "cuda" else x

    def step(self, position, q, k, v, stage, dense=False):
        where = torch.tensor([position], dtype=torch.int32, device=DEVICE)
        new = [x.to(DEVICE) for x in (q, k, v)]
        o = self.backend.decode_at(self.layer, *new, *self.buffers, self.state, stage, where, dense, self.far)
        return o.cpu()


HOST, VALUES, KEYS = (True, True), (False, True), (True, False)


@pytest.mark.parametrize(
    ("layer", "first", "changes", "places"),
    [
        (0, 171, {}, HOST), (1, 171, {}, HOST), (1, 22, {}, HOST), (1, 45, {}, VALUES), (1, 60, {"sink_tokens": 0}, HOST),
        (1, 100, {"share": "all"}, KEYS), (0, 171, {}, VALUES),
    ],
    ids=["special", "ordinary", "within-the-sinks", "short-middle", "no-sinks", "share-all", "special-values"],
)  # fmt: skip
def test_a_bank_gives_what_the_store_gives(layer, first, changes, places):
    """Over a refresh cycle and more; the host's buffers take the new tokens and nothing else."""
    plan, steps = make_plan(**changes), 11
    q, k, v = torch.randn(KV * G, steps, D), torch.randn(KV, first + steps, D), torch.randn(KV, first + steps, D)
    near, far = (Steps(plan, layer, k[:, :first], v[:, :first], first + steps + 3, far) for far in (ON_DEVICE, places))
    for step in range(steps):
        now, stage = slice(first + step, first + step + 1), plan.refresh_stage(step, layer, 2)
        row = q[:, step : step + 1], k[:, now], v[:, now]
        assert torch.equal(far.step(first + step, *row, stage), near.step(first + step, *row, stage)), step
    for mine, theirs, whole in zip(far.buffers, near.buffers, (k, v)):
        assert torch.equal(mine[:, : first + steps].cpu(), whole) and mine[:, first + steps :].isnan().all()
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=0, atol=0, equal_nan=True)


def test_dense_steps_read_the_host_in_place():
    first, plan = 40, make_plan()
    q, k, v = torch.randn(KV * G, 2, D), torch.randn(KV, first + 2, D), torch.randn(KV, first + 2, D)
    near, far = (Steps(plan, 1, k[:, :first], v[:, :first], first + 5, far, dense_below=100) for far in (ON_DEVICE, (True, True)))
    for step in range(2):
        now = slice(first + step, first + step + 1)
        row = q[:, step : step + 1], k[:, now], v[:, now]
        assert torch.equal(far.step(first + step, *row, None, True), near.step(first + step, *row, None, True))


@pytest.mark.parametrize(("layers", "key_layers", "changes"), [(3, 0, {}), (2, 1, {"decode_rounds": (2, 1, 0)})], ids=str)
def test_keys_brought_ahead_are_those_that_a_refresh_scans(layers, key_layers, changes):
    """Steps of a whole model's attention past a refresh cycle, a cut, and steps again: as with everything on the device."""
    plan, first, shape = make_plan(**changes), 171, StoreShape(layers, KV, D, torch.float32, DEVICE)
    rope = Rope(10000 ** -(torch.arange(0, D, 2, device=DEVICE) / D))
    stores = ResidentStore(shape), HostStore(shape, key_layers=key_layers)
    k, v = torch.randn(2, layers, KV, first, D, device=DEVICE)
    for store in stores:
        store.reserve(first + 40)
        for layer in range(layers):
            store.append(layer, k[layer], v[layer])
    backend = TritonBackend(plan, rope, 0)
    ahead = [ScanAhead(SimpleNamespace(store=store, backend=backend), layers) for store in stores]
    staged = []
    for steps in (10, 2):
        states = [[backend.new_state() for _ in range(layers)] for _ in stores]
        for step in range(steps):
            pattern = tuple(plan.refresh_stage(step, layer, layers) for layer in range(layers))
            q, new = torch.randn(layers, KV * G, 1, D, device=DEVICE), torch.randn(2, layers, KV, 1, D, device=DEVICE)
            found = []
            for store, own, scans in zip(stores, states, ahead):
                where = torch.tensor([store.length], dtype=torch.int32, device=DEVICE)
                rooms = scans.rooms(pattern)
                scans.before(pattern)
                staged.append(sum(room is not None for room in rooms))
                found.append(
                    [
                        backend.decode_at(
                            layer, q[layer], new[0, layer], new[1, layer], *store.buffers(layer), own[layer], pattern[layer], where,
                            far=store.far(layer), scanned=rooms[layer],
                        )
                        for layer in range(layers)
                    ]
                )  # fmt: skip
                store.claim(1)
                scans.after(step)
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found)), step
        for store in stores:
            store.truncate(first + 3)
            store.check_integrity()
    assert sum(staged) >= layers - key_layers and not any(staged[::2])
