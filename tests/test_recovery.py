"""When memory ends in the middle of a prefill: the chunk is cut away, the next ones are shorter, and the answer is the same."""

import weakref

import pytest
import torch

from hipcli.engine import Engine
from hipcli.errors import DoesNotFit
from hipcli.model import load_model
from hipcli.settings import AttentionSettings

SPARSE = AttentionSettings(dense_below=0)


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model, dtype="float32", name="tiny")


@pytest.fixture
def starve(model, monkeypatch):
    """Makes the second layer run out of memory for chunks longer than `most`; returns what it held when it did."""

    def arm(most, fault=torch.OutOfMemoryError, times=1000):
        layer, held = model.network.model.layers[1], []
        real = layer.forward

        def forward(hidden_states, *args, **kwargs):
            assert all(ref() is None for ref in held), "tensors of the failed call are still there"
            if hidden_states.shape[1] > most and len(held) < times:
                held.append(weakref.ref(hidden_states))
                raise fault("no more")
            return real(hidden_states, *args, **kwargs)

        monkeypatch.setattr(layer, "forward", forward)
        return held

    return arm


def draw_ids(count):
    return torch.randint(0, 400, (count,), generator=torch.Generator().manual_seed(5)).tolist()


def answer(engine, suffix=(7, 8, 9)):
    return list(engine.generate(list(suffix), max_tokens=8))


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError, MemoryError])
@pytest.mark.parametrize(
    "settings", [SPARSE, AttentionSettings(mode="dense"), AttentionSettings(dense_below=700)], ids=["sparse", "dense", "early-dense"]
)
def test_a_disturbed_prefill_equals_an_undisturbed_one(model, starve, settings, fault):
    ids, notices, seen = draw_ids(2900), [], []
    whole = Engine(model, settings, chunk_tokens=1024)
    whole.prefill(ids)
    hidden, expected = whole._hidden, answer(whole)
    held = starve(300, fault)
    engine = Engine(model, settings, chunk_tokens=1024, on_notice=notices.append)
    engine.prefill(ids, lambda done, total: seen.append(done))
    assert len(held) == 2 and engine.chunk_tokens == 256
    assert notices == [
        "memory ran out at a chunk of 1,024 tokens: going on with 512",
        "memory ran out at a chunk of 512 tokens: going on with 256",
    ]
    assert seen == [*range(256, 2900, 256), 2900]
    assert engine.cached_len == 2900
    engine.store.check_integrity()
    assert (engine._hidden - hidden).norm() <= 2e-5 * hidden.norm()
    assert answer(engine) == expected


def test_chunks_that_went_well_stay_and_later_ones_end_at_multiples_of_the_new_length(model, starve):
    ids, seen = draw_ids(2100), []
    engine = Engine(model, SPARSE, chunk_tokens=1024)
    engine.prefill(ids[:1000])
    held = starve(900, times=1)
    engine.prefill(ids[1000:], lambda done, total: seen.append(done + 1000))
    # 1000..1024 was short enough, 1024..2048 was not
    assert len(held) == 1 and seen == [1024, 1536, 2048, 2100]
    # what failed once is not tried again
    assert engine.plan(5000).chunk_tokens == 512


def test_a_short_chunk_that_fails_is_not_tried_again_at_its_length(model, starve):
    engine, notices = Engine(model, SPARSE, chunk_tokens=1024, on_notice=lambda text: notices.append(text)), []
    starve(150)
    engine.prefill(draw_ids(200))
    assert notices == ["memory ran out at a chunk of 200 tokens: going on with 128"]


def test_a_question_that_finds_no_memory_is_read_in_shorter_chunks(model, starve):
    engine = Engine(model, SPARSE)
    engine.prefill(draw_ids(1500), room=400)
    suffix = draw_ids(300)
    expected = answer(engine, suffix)
    starve(100)
    assert answer(engine, suffix) == expected
    assert engine.cached_len == 1500


def test_below_the_shortest_chunk_the_run_ends_with_the_ways_out_and_what_was_read_stays(model, starve, monkeypatch):
    notices = []
    engine = Engine(model, SPARSE, chunk_tokens=256, on_notice=notices.append)
    engine.prefill(draw_ids(256))
    with monkeypatch.context():
        starve(0)
        with pytest.raises(DoesNotFit, match="ran out after 256 tokens, even with a chunk of 64") as caught:
            engine.prefill(draw_ids(500))
        assert "fewer pages" in caught.value.hint and len(notices) == 2
        assert engine.cached_len == 256
        engine.store.check_integrity()


def test_other_faults_pass_through(model, starve):
    starve(10, RuntimeError)
    engine = Engine(model, SPARSE)
    with pytest.raises(RuntimeError, match="no more"):
        engine.prefill(draw_ids(100))
    assert engine.cached_len == 0


def test_a_store_that_finds_no_memory_is_a_refusal(model, monkeypatch):
    engine = Engine(model, SPARSE)

    def reserve(tokens):
        raise MemoryError(f"no memory for {tokens} tokens of keys and values")

    monkeypatch.setattr(engine.store, "reserve", reserve)
    with pytest.raises(DoesNotFit, match="100 tokens need .* GiB of memory"):
        engine.prefill(draw_ids(100))


@pytest.mark.parametrize("length", [0, -64, 100])
def test_chunk_lengths_are_multiples_of_a_block(model, length):
    with pytest.raises(ValueError, match="multiple of 64"):
        Engine(model, SPARSE, chunk_tokens=length)
