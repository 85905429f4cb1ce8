"""Decode over a bank that is filled from the host equals decode over the whole store, bit for bit."""

import pytest
import torch

from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage
from hipcli.kernels.triton_backend import TritonBackend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KV, G, D = 2, 3, 32

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
        self.buffers = [self.locked(x) if far else x.to(DEVICE) for x in buffers]
        self.state = self.backend.new_state()

    @staticmethod
    def locked(x):
        return x.pin_memory() if DEVICE == "cuda" else x

    def step(self, position, q, k, v, stage, dense=False):
        where = torch.tensor([position], dtype=torch.int32, device=DEVICE)
        new = [x.to(DEVICE) for x in (q, k, v)]
        o = self.backend.decode_at(self.layer, *new, *self.buffers, self.state, stage, where, dense, self.far)
        return o.cpu()


@pytest.mark.parametrize(
    ("layer", "first", "changes"),
    [(0, 171, {}), (1, 171, {}), (1, 22, {}), (1, 45, {}), (1, 60, {"sink_tokens": 0}), (1, 100, {"share": "all"})],
    ids=["special", "ordinary", "within-the-sinks", "short-middle", "no-sinks", "share-all"],
)
def test_a_bank_gives_what_the_store_gives(layer, first, changes):
    """Over a refresh cycle and more; the host's buffers take the new tokens and nothing else."""
    plan, steps = make_plan(**changes), 11
    q, k, v = torch.randn(KV * G, steps, D), torch.randn(KV, first + steps, D), torch.randn(KV, first + steps, D)
    near, far = (Steps(plan, layer, k[:, :first], v[:, :first], first + steps + 3, far) for far in (False, True))
    for step in range(steps):
        now, stage = slice(first + step, first + step + 1), plan.refresh_stage(step, layer, 2)
        row = q[:, step : step + 1], k[:, now], v[:, now]
        assert torch.equal(far.step(first + step, *row, stage), near.step(first + step, *row, stage)), step
    for mine, theirs, whole in zip(far.buffers, near.buffers, (k, v)):
        assert torch.equal(mine[:, : first + steps], whole) and mine[:, first + steps :].isnan().all()
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=0, atol=0, equal_nan=True)


def test_dense_steps_read_the_host_in_place():
    first, plan = 40, make_plan()
    q, k, v = torch.randn(KV * G, 2, D), torch.randn(KV, first + 2, D), torch.randn(KV, first + 2, D)
    near, far = (Steps(plan, 1, k[:, :first], v[:, :first], first + 5, far, dense_below=100) for far in (False, True))
    for step in range(2):
        now = slice(first + step, first + step + 1)
        row = q[:, step : step + 1], k[:, now], v[:, now]
        assert torch.equal(far.step(first + step, *row, None, True), near.step(first + step, *row, None, True))
