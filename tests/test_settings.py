"""Sampling and settings: what they draw, what they refuse."""

import pytest
import torch

from hipcli.errors import UsageError
from hipcli.sampling import Sampler, Sampling
from hipcli.settings import AttentionSettings


def test_sampling_is_greedy_at_zero_repeats_with_a_seed_and_honours_top_p():
    logits = torch.tensor([0.0, 3.0, 2.9, -5.0])
    assert int(Sampler(Sampling(), "cpu").draw(logits)) == 1
    draws = [[int(Sampler(Sampling(temperature=1.0, seed=seed), "cpu").draw(logits)) for _ in range(3)] for seed in (1, 1)]
    assert draws[0] == draws[1]
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.6, seed=2), "cpu")
    assert {int(sampler.draw(logits)) for _ in range(200)} == {1, 2}
    for extreme in (Sampling(temperature=1e-320), Sampling(temperature=1.0, top_p=1e-320)):
        assert int(Sampler(extreme, "cpu").draw(logits)) == 1
    narrow = Sampler(Sampling(temperature=5.0, top_p=0.01, seed=2), "cpu")
    assert {int(narrow.draw(logits)) for _ in range(50)} == {1}


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.1}], ids=str)
def test_sampling_out_of_range_is_refused(bad):
    with pytest.raises(UsageError, match="must be|must"):
        Sampling(**bad)


@pytest.mark.parametrize("bad", [{"mode": "fast"}, {"backend": "cuda"}, {"share": "none"}, {"dense_below": -1}], ids=str)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(UsageError, match="must be"):
        AttentionSettings(**bad)
