"""Where keys and values go: what is tried in which order, what a plan counts, what is refused, and that answers do not change."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from hipcli import pipeline, placement
from hipcli.cache.host import HostStore
from hipcli.cache.resident import ResidentStore
from hipcli.console import Terminal
from hipcli.engine import Engine
from hipcli.errors import DoesNotFit, UsageError
from hipcli.kernels.presets import preset
from hipcli.memory import most_device_parts, plan_memory, prefill_seconds, resident_bytes, used_bytes
from hipcli.model import load_model, parameter_count
from hipcli.reuse import ending
from hipcli.sessions import Fingerprint, Library, SessionKeeper
from hipcli.settings import AttentionSettings, KvSettings
from hipcli.shapes import SHAPES, empty_network

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model, dtype="float32", name="tiny")


def draw_ids(model, count, seed):
    return torch.randint(0, model.vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


ALL, NONE = (2, 2), (0, 0)


@pytest.mark.parametrize(
    ("device", "kv", "held", "parts", "tried"),
    [
        ("cpu", "host", 0, ALL, (ALL,)),
        ("cuda", "auto", 0, ALL, (ALL, NONE)),
        ("cuda", "auto", 5, ALL, (ALL,)),
        ("cuda", "auto", 5, (2, 1), ((2, 1),)),
        ("cuda", "gpu", 0, ALL, (ALL,)),
        ("cuda", "host", 0, ALL, (NONE,)),
    ],
)
def test_what_is_held_stays_where_it_is(model, device, kv, held, parts, tried):
    assert model.layers == 2
    store = ResidentStore(model.store_shape) if parts == ALL else HostStore(model.store_shape, *parts)
    store.reserve(held)
    store.claim(held)
    assert placement.places(replace(model, device=device), store, kv) == tried


def make_plan(model, tokens, device_parts=NONE, **more):
    sizes = {"token_bytes": model.kv_bytes_per_token, "device_parts": device_parts, "free": 1 << 60, "host_free": 1 << 60}
    sizes |= {"held_bytes": 0, "host_held_bytes": 0, "rotated_tokens": 0, "dense_tokens": 0, "keys_read": 100.0, "rate": 1e12}
    return plan_memory(model, tokens, prune=preset("default"), **sizes | {"chunk_lengths": (1024,)} | more)


def test_a_plan_counts_what_lies_where(model):
    """Two staging buffers for each part that is not whole on the device, banks of all layers, candidates of those with far keys."""
    tokens, token = 1 << 20, model.kv_bytes_per_token
    part, bank, candidates = tokens * token // 4, (256 + 4096 + 1024 + 128) * token, (32768 + 8192) * token // 4
    expected = {NONE: (4 * part + bank + 2 * candidates, 4), (1, 0): (5 * part + bank + candidates, 3)}
    expected |= {(2, 0): (4 * part + bank, 2), (2, 1): (5 * part + bank, 1)}
    for parts, (resident, on_host) in expected.items():
        plan = make_plan(model, tokens, parts)
        assert resident_bytes(2, tokens, token, parts, preset("default")) == resident
        assert plan.on_host and plan.host_bytes == on_host * part and plan.peak_bytes == resident + plan.working_bytes, parts
    whole = make_plan(model, tokens, ALL)
    assert not whole.on_host and whole.peak_bytes == 4 * part + whole.working_bytes
    assert make_plan(model, tokens, host_held_bytes=part).host_bytes == 3 * part


@pytest.mark.parametrize("room", [4.0, 5.1, 8.0, 30.5, 31.5, 45.0, 60.0])
def test_as_many_layers_as_fit_lie_on_the_device_keys_first(room):
    """Of 32 layers; room in units of one part of one layer."""
    layers, tokens, token = 32, 1 << 20, 1 << 16
    part, needed = tokens * token // (2 * layers), partial(resident_bytes, layers, tokens, token, prune=preset("default"))
    none = needed(device_parts=NONE)
    bare = SimpleNamespace(tokens=tokens, available_bytes=none + int((room - 4) * part), peak_bytes=none)
    keys, values = most_device_parts(bare, layers, token, preset("default"))
    assert needed(device_parts=(keys, values)) <= bare.available_bytes and (keys == layers or values == 0)
    more = (keys, values + 1) if keys == layers else (keys + 1, 0)
    # a whole part needs no staging buffers: the last layer of one may fit where the last but one does not
    assert needed(device_parts=more) > bare.available_bytes or more == (layers, layers)
    assert keys + values >= int(room) - 4


def test_a_refusal_names_the_place_that_is_full(model):
    full = replace(make_plan(model, 1 << 20), device="cuda", host_bytes=9 * GIB, host_available_bytes=GIB)
    assert not full.fits
    assert "need 9.0 GiB of host memory and 1.0 GiB are free" in str(placement.does_not_fit(full))
    assert "--kv-dtype fp8" in placement.does_not_fit(full).hint
    near = replace(full, host_bytes=None, peak_bytes=9 * GIB, available_bytes=GIB)
    refusal = placement.does_not_fit(near)
    assert "9.0 GiB of GPU memory" in str(refusal) and "--kv host" in refusal.hint
    assert isinstance(refusal, DoesNotFit)


def test_a_limit_counts_what_is_taken_already(model):
    engine = Engine(model, AttentionSettings(), kv=KvSettings(host_bytes=used_bytes("cpu") + (1 << 30)))
    plan = engine.plan(1000)
    assert 0 < plan.available_bytes <= (1 << 30) + (64 << 20) and plan.fits
    with pytest.raises(DoesNotFit, match="tokens need"):
        Engine(model, AttentionSettings(), kv=KvSettings(host_bytes=1)).prefill([1] * 100)


@pytest.mark.parametrize("settings", [AttentionSettings(), AttentionSettings(mode="dense"), AttentionSettings(backend="torch")])
def test_eight_bits_are_refused_where_no_kernel_reads_them(model, settings):
    with pytest.raises(UsageError, match="--kv-dtype fp8 needs an NVIDIA GPU and sparse attention"):
        Engine(model, settings, kv=KvSettings(dtype="fp8"))
    with pytest.raises(UsageError, match="computes in float32"):
        Engine(model, settings, kv=KvSettings(dtype="bf16"))


@pytest.mark.parametrize("mode", ["sparse", "dense"])
def test_answers_are_the_same_wherever_keys_lie(model, mode, monkeypatch):
    """Layers, chunks, questions and a prefix that grows, through the staging buffers."""
    answers = []
    for parts in (ALL, NONE, (2, 0), (1, 0), (2, 1)):
        monkeypatch.setattr(placement, "places", lambda *given: (parts,))
        engine = Engine(model, AttentionSettings(mode=mode, dense_below=0), chunk_tokens=256)
        engine.prefill(draw_ids(model, 900, 1))
        assert engine.store.device_parts == parts
        found = [list(engine.generate(draw_ids(model, 5, 2), max_tokens=9))]
        engine.prefill(draw_ids(model, 300, 3))
        found += [list(engine.generate(draw_ids(model, 70, 4), max_tokens=9)), engine.peek(draw_ids(model, 3, 5))]
        engine.store.check_integrity()
        engine.close()
        answers.append(found)
    for other in answers[1:]:
        assert answers[0][:2] == other[:2] and torch.equal(answers[0][2], other[2])


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
    monkeypatch.setattr(placement, "places", lambda *given: (NONE,))
    ids, terminal, answers, said = draw_ids(model, 700, 1), Terminal(quiet=True), [], []
    texts = {"document": ["a"], "source types": [], "encoding": [], "file names": [], "readers": {"version": 1}}
    for reused in (0, len(ids)):
        engine = Engine(model, AttentionSettings(dense_below=0), chunk_tokens=128)
        kept = {"about": {"model": "tiny", "sources": ["book"]}, "note": said.append, "warn": said.append}
        session = SessionKeeper(Library(tmp_path), Fingerprint({"model": "tiny"}, texts), ids, **kept)
        with ending(session, terminal):
            pipeline._prefill(engine, ids, 64, session, terminal)
            answers.append(list(engine.generate(draw_ids(model, 5, 2), max_tokens=9)))
        assert engine.store.device_parts == NONE and session.reused == reused and not said
        engine.close()
    assert answers[0] == answers[1]
