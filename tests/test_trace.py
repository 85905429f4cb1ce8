"""Attention mass by blocks against brute force, the same from every backend, and answers that tracing does not change."""

from __future__ import annotations

import math

import pytest
import torch

from hipcli.attention import AttentionRuntime
from hipcli.cache.base import StoreShape
from hipcli.cache.resident import ResidentStore
from hipcli.kernels import mass
from hipcli.kernels.backends import backend_class
from hipcli.kernels.presets import preset
from hipcli.kernels.rope import Rope
from hipcli.trace import DISTANCE, LEAD_ROWS, SAMPLED_ROWS, Trace, traced_layers

KV, G, D = 2, 3, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INVERSE = 1.0 / (10000 ** (torch.arange(0, D, 2) / D))


def turn(x, position, scaling):
    """Textbook rotary on split halves, fp64."""
    angles = position * INVERSE.double()
    low, high = x.double().chunk(2, -1)
    return scaling * torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)


def brute_force(q, k, distance, scaling):
    """[H, T] weights, mean over rows, every key at position 0 and every query at `distance`."""
    keys = turn(k, 0, scaling).repeat_interleave(G, 0)
    return (turn(q, distance, scaling) @ keys.transpose(1, 2) / math.sqrt(D)).softmax(-1).mean(1)


@pytest.mark.parametrize(("rows", "total", "scaling"), [(1, 1, 1.0), (5, 203, 1.0), (7, 64, 1.3)])
def test_mass_is_that_of_the_softmax_at_one_distance(rows, total, scaling, monkeypatch):
    q, k = torch.randn(KV * G, rows, D) * 3, torch.randn(KV, total, D)
    groups = [rows // 2, rows - rows // 2]
    first, second = mass.block_mass(q, k, 37, Rope(INVERSE, scaling), groups)
    whole = (first + second) / rows
    exact = brute_force(q, k, 37, scaling)
    blocks = torch.stack([part.sum(-1) for part in exact.split(mass.MASS_TOKENS, dim=1)], dim=1)
    torch.testing.assert_close(whole.double(), blocks, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(whole.sum(1), torch.ones(KV * G))
    # rows count in their own group alone
    alone = mass.block_mass(q[:, rows // 2 :], k, 37, Rope(INVERSE, scaling), [rows - rows // 2])
    torch.testing.assert_close(second, alone[0])
    # a slice at a time is the same
    monkeypatch.setattr(mass, "SLICE_BYTES", 4 * KV * G * rows * mass.MASS_TOKENS * 2)
    torch.testing.assert_close(mass.block_mass(q, k, 37, Rope(INVERSE, scaling), [rows])[0] / rows, whole)


def runtime_of(name: str, layers: int = 3, scaling: float = 1.0) -> AttentionRuntime:
    device = DEVICE if name == "triton" else "cpu"
    backend = backend_class(name)(preset("default"), Rope(INVERSE.to(device), scaling), 8192)
    return AttentionRuntime(backend, ResidentStore(StoreShape(layers, KV, D, torch.float32, torch.device(device))))


def traced(name: str, held: int, q, k, v, rows: int, lead: int = 2, cut: int | None = None, scaling: float = 1.0) -> Trace:
    """Read a prefix, then a question in one or two chunks, under a trace."""
    runtime = runtime_of(name, scaling=scaling)
    device = runtime.store.view(0)[0].device
    q, k, v = (x.to(device) for x in (q, k, v))
    trace = Trace(runtime, held, lead, rows)
    ends = [held, *([cut] if cut else []), q.shape[1]]
    for start, stop in zip([0, *ends], ends):
        runtime.question, runtime.watch = start > 0, trace
        for layer in range(3):
            runtime.attend(layer, q[:, start:stop], k[:, start:stop], v[:, start:stop])
    return trace


@pytest.mark.parametrize("name", ["torch", "dense", "reference", "triton"])
def test_every_backend_is_traced_alike(name):
    held, total = 90, 110
    q, k, v = torch.randn(KV * G, total, D) * 2, torch.randn(KV, total, D), torch.randn(KV, total, D)
    trace = traced(name, held, q, k, v, rows=15, lead=6, scaling=1.2)
    # of the lead its last rows, of the rest all
    for found, begin, end in ((trace.idle(), 6 - LEAD_ROWS, 6), (trace.mass(), 6, 15)):
        exact = brute_force(q[:, held + begin : held + end], k[:, :held], DISTANCE, 1.2)
        blocks = torch.stack([part.sum(-1) for part in exact.split(mass.MASS_TOKENS, dim=1)], dim=1)
        assert found.shape == (1, KV * G, 12)
        # one layer of the three is traced, and all were given the same tensors
        torch.testing.assert_close(found[0].double(), blocks, atol=1e-5, rtol=1e-3)


def test_chunks_of_a_question_are_one_question():
    held, total = 64, 64 + 50
    q, k, v = torch.randn(KV * G, total, D), torch.randn(KV, total, D), torch.randn(KV, total, D)
    whole, *parts = (traced("torch", held, q, k, v, rows=45, lead=3, cut=cut) for cut in (None, held + 20, held + 2))
    for part in parts:
        torch.testing.assert_close(part.mass(), whole.mass())
        torch.testing.assert_close(part.idle(), whole.idle())


def test_layers_and_rows():
    assert traced_layers(30) == list(range(15, 20)) and traced_layers(2) == [1] and traced_layers(1) == [0]
    trace = Trace(runtime_of("torch"), 1000, 10, 650)
    assert len(trace._own) == SAMPLED_ROWS and trace._own[-1] == 1649 and len(set(trace._own.tolist())) == SAMPLED_ROWS
    assert trace._lead.tolist() == list(range(1010 - LEAD_ROWS, 1010)) and trace._own[0] == 1009 + 640 // SAMPLED_ROWS
    for lead, rows in ((0, 5), (5, 5)):
        with pytest.raises(ValueError, match="lead must be within"):
            Trace(runtime_of("torch"), 1000, lead, rows)


def test_tracing_changes_no_answer(tiny_model):
    from hipcli.engine import Engine
    from hipcli.model import load_model
    from hipcli.settings import AttentionSettings

    model = load_model(tiny_model, device="cpu")
    engine = Engine(model, AttentionSettings(dense_below=0))
    generator = torch.Generator().manual_seed(1)
    prefix, suffix = (torch.randint(2, 400, (size,), generator=generator).tolist() for size in (1700, 12))
    engine.prefill(prefix)
    plain = list(engine.generate(suffix, max_tokens=8))
    trace, seen = Trace(engine.runtime, engine.cached_len, 3, 12), []
    with engine.watching(lambda layer, q, keys: seen.append(layer)), engine.watching(trace):
        assert list(engine.generate(suffix, max_tokens=8)) == plain
    # both were shown the question once, and nothing of the answer; afterwards nobody is shown anything
    assert seen == [0, 1] and engine.watch is None
    assert trace.mass().shape == (1, 2, math.ceil(1700 / mass.MASS_TOKENS)) and trace.seconds > 0
    assert list(engine.generate(suffix, max_tokens=8)) == plain and seen == [0, 1]
