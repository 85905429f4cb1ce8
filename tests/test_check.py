"""`hip ask --check`: what is kept, how much of dense attention that is, and what a user is told of it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hipcli import config
from hipcli.ask import ask
from hipcli.attention import AttentionRuntime
from hipcli.cache.base import StoreShape
from hipcli.cache.resident import ResidentStore
from hipcli.check import Check, LayerShares
from hipcli.console import Terminal
from hipcli.kernels import coverage, reference
from hipcli.kernels.backends import backend_class
from hipcli.kernels.coverage import measure
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage
from hipcli.meter import Meter, sampled_layers, sampled_rows
from hipcli.options import RunOptions
from hipcli.questions import Question, ask_all

KV, G, D = 2, 3, 16
SINKS, WINDOW, BLOCK = 32, 20, 16
ROPE = Rope(1.0 / (10000 ** (torch.arange(0, D, 2) / D)))
DEVICES = {"torch": "cpu", "reference": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}
HIP = Path(sys.executable).with_name("hip")
SAMPLES = Path(__file__).resolve().parent.parent / "samples"

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make_plan(**changes):
    stages = (PruneStage(32, 128, 4, 2, 4), PruneStage(8, 64, 2, 1, 2), PruneStage(2, 32, 1, 0, 1))
    fields = {"stages": stages, "sink_tokens": SINKS, "window_tokens": WINDOW, "block_len": BLOCK, "special_layers": 1}
    return PrunePlan(**(fields | {"special_keep_tokens": 48} | changes))


class QuarterTurns(Rope):
    """Pair i turns by i % 4 quarters a position: whole numbers stay whole, so that scores are exact and often tie."""

    def table(self, length):
        device = self.inv_freq.device
        quarters = torch.arange(length, device=device)[:, None] * torch.arange(self.inv_freq.numel(), device=device) % 4
        return torch.tensor([1, 1j, -1, -1j], dtype=torch.complex64, device=device)[quarters]


def kept_by(name, plan, layer, q, k, first):
    device = DEVICES[name]
    backend = backend_class(name)(plan, QuarterTurns(ROPE.inv_freq.to(device)), 0)
    return [tokens.tolist() for tokens in backend.kept_keys(layer, q.to(device), k.to(device), first)]


CASES = {
    "whole-block": ({}, 1, 240, BLOCK, torch.float32),
    "special-fp16": ({}, 0, 247, 9, torch.float16),
    "one-row-fp16": ({}, 1, 241, 1, torch.float16),
    "paper": ({"descent": "head", "probe": "first", "score": "last", "share": "all"}, 1, 150, 3, torch.float32),
    "no-middle": ({}, 1, SINKS + WINDOW - 1, 5, torch.float32),
    "before-the-window": ({}, 0, 12, 2, torch.float32),
    "one-key": ({}, 1, SINKS + WINDOW, 3, torch.float32),
}


@pytest.mark.parametrize(("changes", "layer", "first", "rows", "dtype"), CASES.values(), ids=CASES)
def test_every_backend_keeps_the_same_keys(changes, layer, first, rows, dtype):
    """Whole numbers, so that every score is exact; k goes on after the block."""
    q, k = torch.randint(-2, 3, (KV * G, rows, D)).to(dtype), torch.randint(-2, 3, (KV, first + rows + 7, D)).to(dtype)
    plan = make_plan(**changes) if rows == BLOCK else make_plan(**changes).question
    wanted = kept_by("reference", plan, layer, q, k, first)
    assert all(all(SINKS <= token <= first - WINDOW for token in tokens) for tokens in wanted)
    assert max(len(tokens) for tokens in wanted) == max(0, min(plan.keep_tokens(layer), first - WINDOW + 1 - SINKS))
    assert kept_by("torch", plan, layer, q, k, first) == wanted
    assert kept_by("triton", plan, layer, q, k, first) == wanted


def test_kept_keys_are_those_that_prefill_reads():
    """Attention of the definition over the list a backend tells of is what its prefill returned."""
    first, rows, plan = 215, 9, make_plan()
    q, k, v = torch.randn(KV * G, rows, D), torch.randn(KV, first + rows, D), torch.randn(KV, first + rows, D)
    backend = backend_class("torch")(plan, ROPE, 0)
    kept = backend.kept_keys(1, q, k, first)
    wanted = reference.attend_ref(q, k, v, first, first - WINDOW + 1, kept, plan, ROPE)
    torch.testing.assert_close(backend.prefill(1, q, k, v, backend.new_state()), wanted, rtol=1e-5, atol=1e-5)


def test_a_dense_backend_keeps_the_whole_middle():
    kept = backend_class("dense")(make_plan(), ROPE, 0).kept_keys(1, torch.randn(KV * G, 3, D), torch.randn(KV, 103, D), 100)
    assert [tokens.tolist() for tokens in kept] == [list(range(SINKS, 81))] * KV


def brute_force(q, k, at, kept, stop):
    """Every share of Coverage by whole rows of dense weights and plain sets: name -> [H, R]."""
    found = {name: torch.zeros(q.shape[:2]) for name in ("caught", "outside", "outside_caught", "top_caught", "outside_top_caught")}
    for head in range(q.shape[0]):
        keys = reference.turn(k[head // G], torch.arange(k.shape[1]), ROPE)
        middle, picked = set(range(SINKS, stop)), set(kept[head // G].tolist())
        for row, position in enumerate(at.tolist()):
            logits = keys[: position + 1] @ reference.turn(q[head, row][None], at[row : row + 1], ROPE)[0] / math.sqrt(D)
            weights, order = logits.softmax(0).double(), logits.argsort(descending=True).tolist()
            read = (set(range(position + 1)) - middle) | picked
            top, outside_top = order[: coverage.TOP_KEYS], [key for key in order if key in middle][: coverage.TOP_KEYS]
            found["caught"][head, row] = weights[sorted(read)].sum()
            found["outside"][head, row] = weights[sorted(middle)].sum()
            found["outside_caught"][head, row] = weights[sorted(picked)].sum()
            found["top_caught"][head, row] = len(read.intersection(top)) / len(top)
            found["outside_top_caught"][head, row] = len(picked.intersection(outside_top)) / len(outside_top) if outside_top else 1
    return found


@pytest.mark.parametrize("slice_bytes", [1, 10**9], ids=["many-slices", "one-slice"])
@pytest.mark.parametrize(("first", "rows"), [(215, [0, 3, 8]), (40, [0, 1, 2])], ids=["pruned", "no-middle"])
def test_coverage_equals_brute_force(first, rows, slice_bytes, monkeypatch):
    monkeypatch.setattr(coverage, "SLICE_BYTES", slice_bytes)
    stop, at = first - WINDOW + 1, first + torch.tensor(rows)
    q, k = 2 * torch.randn(KV * G, len(rows), D), torch.randn(KV, first + 12, D)
    kept = [torch.randperm(max(0, stop - SINKS))[:60].sort().values + SINKS for _ in range(KV)]
    found, wanted = measure(q, k, at, kept, SINKS, stop, ROPE), brute_force(q, k, at, kept, stop)
    for name, shares in wanted.items():
        torch.testing.assert_close(getattr(found, name), shares, rtol=1e-5, atol=1e-5, msg=name)


def test_phases_equal_the_table():
    scaled = Rope(ROPE.inv_freq, 1.25)
    torch.testing.assert_close(coverage.phases_at(torch.arange(500), scaled), scaled.table(500), rtol=0, atol=0)


def meter_of(plan, total, dense_below=0, name="torch", layers=2):
    backend = backend_class(name)(plan, ROPE, dense_below)
    return Meter(AttentionRuntime(backend, ResidentStore(StoreShape(layers, KV, D, torch.float32))))


def check_of(plan, q, k, **settings):
    meter = meter_of(plan, k.shape[1], **settings)
    for layer in range(2):
        meter(layer, q, k)
    return Check.of(meter, k.shape[1])


def test_a_budget_that_covers_the_middle_catches_exactly_everything():
    stages = (PruneStage(32, 192, 4, 2, 4), PruneStage(8, 192, 2, 1, 2))
    check = check_of(make_plan(stages=stages, special_keep_tokens=192), torch.randn(KV * G, 30, D), torch.randn(KV, 230, D))
    assert len(check.layers) == 2 and check.rows == 30
    assert check.agreement == check.outside_caught == check.mean("top_caught") == check.mean("outside_top_caught") == 1.0
    assert check.is_trusted and not check.beyond_window and 0 < check.mean("outside") < 1


def test_a_heavy_key_that_the_list_misses_costs_its_mass():
    """The same rows and list; the key is one that the list leaves out, made to take most of one row's attention."""
    first, stop, missed = 215, 196, 101
    q, k, at = torch.randn(KV * G, 1, D), torch.randn(KV, 216, D), torch.tensor([first])
    kept = [torch.arange(SINKS, missed), torch.arange(SINKS, stop)]
    before = measure(q, k, at, kept, SINKS, stop, ROPE)
    # along the query as it stands at the key's place, so that the rotated two are parallel
    turned = reference.turn(q[0], at - missed, ROPE)[0]
    k[0, missed] = turned * 40 / turned.norm() ** 2 * math.sqrt(D) / 4
    after = measure(q, k, at, kept, SINKS, stop, ROPE)
    weight = brute_force(q, k, at, [torch.tensor([missed])] * KV, stop)["outside_caught"][0, 0]
    assert weight > 0.5
    assert after.caught[0, 0] < before.caught[0, 0] and 1 - after.caught[0, 0] >= weight
    kept[0] = torch.cat([kept[0], torch.tensor([missed])])
    torch.testing.assert_close(measure(q, k, at, kept, SINKS, stop, ROPE).caught[0, 0], after.caught[0, 0] + weight)
    # the other head has it in no list of its own, and loses nothing
    assert after.caught[G:].eq(1).all()


def test_a_meter_measures_pruned_blocks_only_and_each_once():
    q, k = torch.randn(KV * G, 40, D), torch.randn(KV, 240, D)
    meter = meter_of(make_plan(), 240, dense_below=216)
    meter(0, q, k)
    whole = meter.layers()[0].caught
    # blocks [200, 208) and [208, 224): the first alone ends below the limit
    assert whole.shape == (KV * G, 32)
    meter(0, q, k)
    torch.testing.assert_close(meter.layers()[0].caught, whole)
    for name, below in (("torch", 240), ("dense", 0)):
        silent = meter_of(make_plan(), 240, dense_below=below, name=name)
        silent(0, q, k)
        assert silent.layers() == {} and silent.seconds == 0


def test_samples():
    assert sampled_layers(30) == [0, 1, 2, 7, 13, 18, 24, 29] and sampled_layers(5) == [0, 1, 2, 3, 4]
    assert sampled_layers(80)[-1] == 79 and len(set(sampled_layers(9))) == 8
    assert sampled_rows(7, 10).tolist() == [7, 8, 9]
    spread = sampled_rows(100, 1000).tolist()
    assert len(set(spread)) == 32 and spread[-1] == 999 and min(spread) >= 100


def shares(caught, outside=0.2, outside_caught=0.1):
    return LayerShares(0, (caught,), (outside,), (outside_caught,), (0.9,), (0.8,))


def test_what_is_said(capsys):
    good, bad = Check((shares(0.995),), 12, 0.31), Check((shares(0.5),), 12, 0.31)
    good.say(Terminal())
    said = capsys.readouterr().err
    assert said.startswith(
        "check: the pruned attention caught 99.5% of what dense attention would have weighed, 50% of the 20% that lay outside"
    )
    assert "warning" not in said and len(said.splitlines()) == 1
    bad.say(Terminal(verbose=True))
    said = capsys.readouterr().err
    assert "least was caught in layers 0 (50.0%)" in said
    assert "warning: " in said and "--dense" in said and "window the model" not in said
    replace(bad, beyond_window=True).say(Terminal())
    said = capsys.readouterr().err
    assert "beyond the window" in said and "--dense" not in said
    Check((), 0, 0.0).say(Terminal())
    assert "nothing was pruned" in capsys.readouterr().err
    assert bad.record["trusted"] is False and bad.record["agreement"] == 0.5 and bad.record["worst_layers"] == [0]


def read_and_ask(folder, model, capsys, *, as_json=True, check=True, **attention):
    """`hip ask` without the process: stdout as JSON or stderr as text."""
    options = RunOptions((str(folder / "book.txt"),), model=str(model), max_tokens=3, device="cpu", offline=True, **attention)
    terminal = Terminal(as_json=as_json)
    if as_json:
        ask(options, "Who?", terminal, check)
    else:
        ask_all(options, [Question("Who?"), Question("When?", ("1911",))], terminal, check)
    shown = capsys.readouterr()
    return json.loads(shown.out) if as_json else shown.err


def test_questions_to_a_tiny_model(tiny_model, tmp_path, capsys):
    (tmp_path / "book.txt").write_text("The library was founded in 1911 by Maria Lindqvist, a printer. " * 110)
    with_check = read_and_ask(tmp_path, tiny_model, capsys, dense_below=0)
    without = read_and_ask(tmp_path, tiny_model, capsys, dense_below=0, check=False)
    assert "check" not in without and with_check["answer"] == without["answer"]
    check = with_check["check"]
    assert (
        check["pruned"]
        and 0 < check["rows"] < 32
        and 0 < check["agreement"] < 1
        and [layer["layer"] for layer in check["layers"]] == [0, 1]
    )
    assert all(len(heads) == 2 for layer in check["layers"] for heads in layer["heads"].values())
    assert read_and_ask(tmp_path, tiny_model, capsys, as_json=False, dense_below=0).count("check: the pruned attention caught") == 2
    assert read_and_ask(tmp_path, tiny_model, capsys, as_json=False, dense=True).count("nothing was pruned") == 2
    # as many tokens as fit the model's window: read by dense attention
    (tmp_path / "book.txt").write_text("Maria Lindqvist, a printer.")
    assert read_and_ask(tmp_path, tiny_model, capsys)["check"] == {"pruned": False, "agreement": 1.0, "trusted": True}


def test_the_command_with_the_real_model(real_model, tmp_path):
    env = os.environ | {"HIP_DATA_DIR": str(config.data_dir()), "HIP_OFFLINE": "1"}
    env.pop("HIP_MODEL", None)
    asked = [str(SAMPLES / "lighthouse.md"), "When was the lamp first lit?", "--dense-below", "0", "--device", "cpu", "--max-tokens", "20"]
    done = subprocess.run([HIP, "ask", *asked, "--check", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    check = record["check"]
    assert "3 March 1874" in record["answer"]
    assert check["trusted"] and 0.97 < check["agreement"] < 1 and 0.8 < check["outside_caught"] < 1
    assert [layer["layer"] for layer in check["layers"]] == [0, 1, 2, 7, 13, 18, 24, 29] and check["rows"] >= 12
