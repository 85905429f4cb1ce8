"""Where keys and values go: what is tried in which order, what a plan counts, what is refused, and that answers do not change."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hipcli import pipeline, placement
from hipcli.cache.host import HostStore
from hipcli.cache.resident import ResidentStore
from hipcli.console import Terminal
from hipcli.engine import Engine
from hipcli.errors import DoesNotFit
from hipcli.kernels.presets import preset
from hipcli.memory import far_bytes, plan_memory, prefill_seconds
from hipcli.model import load_model, parameter_count
from hipcli.reuse import ending
from hipcli.sessions import Fingerprint, Library, SessionKeeper
from hipcli.settings import AttentionSettings
from hipcli.shapes import SHAPES, empty_network

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model, dtype="float32", name="tiny")


def draw_ids(model, count, seed):
    return torch.randint(0, model.vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize(
    ("device", "kv", "held", "in_place", "tried"),
    [
        ("cpu", "host", 0, False, (False,)),
        ("cuda", "auto", 0, False, (False, True)),
        ("cuda", "auto", 5, False, (False,)),
        ("cuda", "auto", 5, True, (True,)),
        ("cuda", "gpu", 0, False, (False,)),
        ("cuda", "host", 0, False, (True,)),
    ],
)
def test_what_is_held_stays_where_it_is(model, device, kv, held, in_place, tried):
    store = (HostStore if in_place else ResidentStore)(model.store_shape)
    store.reserve(held)
    store.claim(held)
    assert placement.places(replace(model, device=device), store, kv) == tried


def plan_on_host(model, tokens, host_held=0, **more):
    common = {"held_bytes": 0, "rotated_tokens": 0, "dense_tokens": 0, "keys_read": 100.0, "rate": 1e12, "chunk_lengths": (1024,)}
    return plan_memory(model, tokens, prune=preset("default"), **common, host_held_bytes=host_held, **more)


def test_a_plan_on_the_host_counts_two_layers_and_the_banks_on_the_device(model):
    tokens = 1 << 20
    plan, kv = plan_on_host(model, tokens), (1 << 20) * model.kv_bytes_per_token
    rows = 256 + 4096 + 1024 + 128
    assert far_bytes(model, tokens, preset("default")) == 2 * kv // model.layers + rows * model.kv_bytes_per_token
    assert plan.on_host and plan.host_bytes == kv and plan.peak_bytes == far_bytes(model, tokens, preset("default")) + plan.working_bytes
    assert plan_on_host(model, tokens, host_held=kv // 4).host_bytes == kv - kv // 4


def test_a_refusal_names_the_place_that_is_full(model):
    plan = plan_on_host(model, 1 << 20)
    full = replace(plan, device="cuda", host_bytes=9 * GIB, host_available_bytes=GIB)
    assert not full.fits
    assert "need 9.0 GiB of host memory and 1.0 GiB are free" in str(placement.does_not_fit(full))
    near = replace(plan, device="cuda", host_bytes=None, peak_bytes=9 * GIB, available_bytes=GIB)
    refusal = placement.does_not_fit(near)
    assert "9.0 GiB of GPU memory" in str(refusal) and "--kv host" in refusal.hint
    assert isinstance(refusal, DoesNotFit)


@pytest.mark.parametrize("mode", ["sparse", "dense"])
def test_answers_are_the_same_wherever_keys_lie(model, mode, monkeypatch):
    """Layers, chunks, questions and a prefix that grows, through the staging buffers."""
    answers = []
    for on_host in (False, True):
        monkeypatch.setattr(placement, "places", lambda *given: (on_host,))
        engine = Engine(model, AttentionSettings(mode=mode, dense_below=0), chunk_tokens=256)
        engine.prefill(draw_ids(model, 900, 1))
        assert engine.store.in_place == on_host
        found = [list(engine.generate(draw_ids(model, 5, 2), max_tokens=9))]
        engine.prefill(draw_ids(model, 300, 3))
        found += [list(engine.generate(draw_ids(model, 70, 4), max_tokens=9)), engine.peek(draw_ids(model, 3, 5))]
        engine.store.check_integrity()
        engine.close()
        answers.append(found)
    assert answers[0][:2] == answers[1][:2] and torch.equal(answers[0][2], answers[1][2])


@pytest.mark.parametrize(
    ("name", "tokens", "measured"),
    [("qwen2.5-7b", 1 << 17, 4.3), ("qwen2.5-7b", 1 << 20, 41.8), ("llama-3.1-8b", 1 << 19, 21.8), ("qwen2.5-0.5b", 3 << 20, 38.7)],
)
def test_time_on_a_gpu_is_about_what_was_measured(name, tokens, measured):
    """Prefills on an H200 (docs/results), whose large products run at 0.80 PFLOP/s."""
    shape = SHAPES[name]
    parameters = parameter_count(empty_network(shape, torch.bfloat16))
    sizes = {"layers": shape.layers, "heads": shape.heads, "head_dim": shape.head_dim}
    model = SimpleNamespace(device="cuda", parameters=parameters, **sizes)
    runtime = SimpleNamespace(backend=SimpleNamespace(plan=preset("default")))
    keys = placement.keys_read(model, AttentionSettings(), runtime, tokens)
    assert measured / 1.4 < prefill_seconds(model, tokens, keys, 0.8e15) < measured * 1.4


def test_a_session_follows_keys_to_the_host(model, tmp_path, monkeypatch):
    """A plan moves the store after the session was made: what is kept, and loaded by the next run, is the moved one's."""
    monkeypatch.setattr(placement, "places", lambda *given: (True,))
    ids, terminal, answers, said = draw_ids(model, 700, 1), Terminal(quiet=True), [], []
    texts = {"document": ["a"], "source types": [], "encoding": [], "file names": [], "readers": {"version": 1}}
    for reused in (0, len(ids)):
        engine = Engine(model, AttentionSettings(dense_below=0), chunk_tokens=128)
        kept = {"about": {"model": "tiny", "sources": ["book"]}, "note": said.append, "warn": said.append}
        session = SessionKeeper(Library(tmp_path), Fingerprint({"model": "tiny"}, texts), ids, **kept)
        with ending(session, terminal):
            pipeline._prefill(engine, ids, 64, session, terminal)
            answers.append(list(engine.generate(draw_ids(model, 5, 2), max_tokens=9)))
        assert engine.store.in_place and session.reused == reused and not said
        engine.close()
    assert answers[0] == answers[1]
