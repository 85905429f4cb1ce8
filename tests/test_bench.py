"""`hip bench` through the installed command: real rows, honest refusals; and its arithmetic. Speed itself is never asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.bench import BenchOptions, judge, parse_context
from hipcli.errors import DoesNotFit, HipError, UsageError

HIP = Path(sys.executable).with_name("hip")


@pytest.fixture
def bench(tiny_model, tmp_path):
    env = os.environ | {"HIP_MODEL": str(tiny_model), "HIP_DATA_DIR": str(tmp_path / "data"), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([HIP, "bench", "--device", "cpu", *arguments], cwd=tmp_path, env=env, capture_output=True, timeout=300)

    return run


@pytest.fixture
def tiny(tiny_model):
    from hipcli.model import load_model

    return load_model(tiny_model, dtype="float32")


@pytest.mark.parametrize(("text", "tokens"), [("4096", 4096), ("64K", 65536), ("64k", 65536), ("1M", 1048576), (" 2m ", 2097152)])
def test_contexts(text, tokens):
    assert parse_context(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "-4", "4.5K", "1G", "K", "1_000", "one"])
def test_contexts_that_mean_nothing(text):
    with pytest.raises(UsageError, match="--context"):
        parse_context(text)


def test_rows_of_one_layer_and_of_the_whole_model(bench, tmp_path):
    done = bench("--context", "9000", "--json", "--out", "rows.jsonl", "--minutes", "3")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [row["row"] for row in rows] == ["machine", "layer", "model", "model"]
    assert (tmp_path / "rows.jsonl").read_bytes() == done.stdout
    assert {row["weights"] for row in rows} == {"trained"}
    machine, layer, sparse, dense = rows
    assert all(machine[key] > 0 for key in ("matmul_gflops", "matmul_fp32_gflops", "read_gbytes_per_second"))
    for key in ("decode", "prefill"):
        assert layer[f"{key}_speedup"] == pytest.approx(layer[f"dense_{key}_ms"] / layer[f"sparse_{key}_ms"])
    assert (sparse["mode"], dense["mode"]) == ("sparse", "dense")
    for row in (sparse, dense):
        assert row["prefill_tokens_per_second"] == pytest.approx(9000 / row["prefill_seconds"])
        assert row["time_to_first_token_seconds"] > row["prefill_seconds"]
        assert row["decode_p50_ms"] <= row["decode_p99_ms"] <= row["decode_max_ms"] and row["decode_steps"] == 32
        assert row["decode_tokens_per_second"] > 0 and row["kv_bytes"] > 0 and row["peak_bytes"] > 0
        assert sum(row["last_chunk_shares"].values()) == pytest.approx(1, abs=0.01)
    # the scan belongs to sparse attention alone
    assert sparse["last_chunk_shares"]["scan"] > 0.01 > dense["last_chunk_shares"]["scan"]
    assert sparse["decode_bytes_per_step"] < dense["decode_bytes_per_step"]


def test_a_shape_in_aligned_lines_and_a_picture(bench, tmp_path):
    pytest.importorskip("matplotlib")
    done = bench("--context", "128", "--context", "256", "--shape", "smollm2-135m", "--part", "layer", "--plot", "times.svg")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "random weights: speed only" in text and "accuracy" not in text and "whole model" not in text
    titles, *lines = [line for line in text.splitlines() if line.startswith("  ")]
    assert len(lines) == 2 and len({len(line) for line in (titles, *lines)}) == 1
    picture = (tmp_path / "times.svg").read_text()
    assert "<svg" in picture and picture.count("<g id=") > 10


def test_a_sampled_prefill_covers_the_whole_context(tiny):
    from hipcli.bench_model import MemoryWatch, sample_starts, sampled_prefill
    from hipcli.engine import Engine
    from hipcli.settings import AttentionSettings

    engine = Engine(tiny, AttentionSettings(dense_below=2048))
    places = sample_starts(engine, 9000)
    # both ends, and both sides of the change from dense to sparse
    assert places[0] == 0 and places[-1] == 7168 and {1024, 2048} <= set(places)
    assert sampled_prefill(engine, 9000, MemoryWatch("cpu")) > 0
    assert engine.cached_len == 9000
    whole = Engine(engine.model, AttentionSettings())
    assert sampled_prefill(whole, 100, MemoryWatch("cpu")) > 0 and whole.cached_len == 100


def test_what_does_not_fit_says_what_it_would_need(bench):
    done = bench("--context", "900M", "--json")
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()][1:]
    assert done.returncode == 4 and len(rows) == 3
    assert all("GiB" in row["skipped"] and row["context"] == 900 << 20 for row in rows)
    assert json.loads(done.stderr)["error"]["code"] == 4


def test_what_there_is_no_time_for_is_no_want_of_memory(bench):
    done = bench("--context", "1M", "--minutes", "0.0001", "--part", "model")
    assert done.returncode == 1 and done.stdout.count(b"give --minutes more") == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--context", "x"), b"--context"),
        (("--minutes", "0"), b"--minutes"),
        (("--preset", "x"), b"preset"),
        (("--part", "x"), b"--part"),
        (("--shape", "gpt-2"), b"shape"),
        (("--shape", "smollm2-135m", "--model", "default"), b"--model and --shape"),
        (("--plot", "times.gif"), b".svg, .png, .pdf"),
        (("--plot", "nowhere/times.svg"), b"folder"),
        (("--context", "9" * 5000), b"--context"),
    ],
)
def test_bad_arguments(bench, arguments, word):
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, b"") and word in done.stderr


def test_a_picture_needs_matplotlib(monkeypatch, tmp_path):
    from hipcli import bench_plot

    with pytest.raises(UsageError, match="folder"):
        (tmp_path / "folder.svg").mkdir()
        bench_plot.require_plot(tmp_path / "folder.svg")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="matplotlib"):
        bench_plot.require_plot(tmp_path / "times.svg")


def test_the_verdict_on_a_run():
    skipped = {"row": "one layer at 9 keys", "skipped": "it needs more"}
    judge([skipped | {"reason": "memory"}, {"row": "layer"}])
    with pytest.raises(DoesNotFit):
        judge([skipped | {"reason": "memory"}])
    with pytest.raises(HipError, match="no context fits the time"):
        judge([skipped | {"reason": "time"}])
    with pytest.raises(HipError, match="1 of 2 measurements failed: one layer at 9 keys"):
        judge([{"row": "layer"}, skipped | {"reason": "failed"}])
    assert BenchOptions((64,)).parts == ("layer", "model")


def test_shapes_have_the_published_number_of_weights():
    import torch

    from hipcli import option_types
    from hipcli.shapes import SHAPES, empty_network, parameter_count

    published = {
        "llama-3.1-8b": 8_030_261_248, "qwen2.5-7b": 7_615_616_512, "llama-3.2-1b": 1_235_814_400,
        "qwen2.5-0.5b": 494_032_768, "smollm2-135m": 134_515_008,
    }  # fmt: skip
    assert {name: parameter_count(empty_network(shape, torch.bfloat16)) for name, shape in SHAPES.items()} == published
    assert set(SHAPES) == set(option_types.SHAPE_NAMES)


def test_a_shape_that_does_not_fit_is_refused_before_it_is_built():
    import torch

    from hipcli.shapes import random_model

    with pytest.raises(DoesNotFit, match="llama-3.1-8b take 15.0 GiB and 1.0 GiB"):
        random_model("llama-3.1-8b", "cpu", torch.bfloat16, 1 << 30)


def test_costs_of_a_layer_counted_by_hand():
    from dataclasses import replace

    from hipcli.bench_floors import Cost, Sizes, cadence, dense_cost, sparse_costs
    from hipcli.kernels.presets import DEFAULT_PLAN

    sizes, total = Sizes(heads=32, kv_heads=8, head_dim=128, itemsize=2), 1 << 20
    costs = sparse_costs(DEFAULT_PLAN, 5, sizes, total, 1)
    chunks = -(-(total - 1024 - 256) // 256)
    assert costs["scan 1"] == Cost(8 * chunks * 256 * 128 * 2, 2 * 8 * chunks * 256 * 4 * 128)
    # a decode step scores every key: 1024 chunks of 32, 1024 chunks of 8; by descent two rounds of two probes, then 8 keys
    assert costs["scan 2"].bytes == 8 * 1024 * 32 * 256 and costs["scan 3"].bytes == 8 * 1024 * 8 * 256
    keys = 256 + 2048 + 1024
    assert costs["attention"] == Cost(keys * 4096, 4 * 32 * keys * 128)
    assert set(sparse_costs(DEFAULT_PLAN, 5, sizes, total, 1, None)) == {"attention"}
    assert cadence(DEFAULT_PLAN) == {0: 1, 1: 7, 2: 8, None: 112}
    # the middle fits the budget of the first stage: nothing to choose there
    assert "scan 1" not in sparse_costs(DEFAULT_PLAN, 5, sizes, 32768, 1)
    # of a document by descent
    assert sparse_costs(replace(DEFAULT_PLAN, decode_rounds=None), 5, sizes, total, 1)["scan 2"].bytes == 8 * 1024 * 12 * 256
    # what blocks read in common counts once
    assert sparse_costs(DEFAULT_PLAN, 5, sizes, total, 8192)["attention"].bytes <= total * sizes.kv_bytes
    assert dense_cost(sizes, 10, 10).flops == 4 * 32 * 55 * 128


def test_kernels_are_sorted_into_stages_by_their_names():
    from hipcli.bench_split import kind_of, sort_kernels

    one = ["pickers_kernel", "descend_kernel", "rest_kernel", "select_kernel", "rest_kernel", "select_kernel"]
    kernels = [(name, 1.0) for name in [*one, *one, "split_attend_kernel", "merge_kernel", "void at::native::fill<float>()"]]
    assert sort_kernels(kernels, 2) == {"scan 1": 6.0, "scan 2": 2.0, "selection": 4.0, "attention": 2.0, "other": 1.0}
    assert kind_of("ampere_forest_gemm") == "other"


def test_a_chunk_in_two_parts_is_dense_attention():
    import torch

    from hipcli.bench_dense import as_rows, fastest, in_one_call, in_parts
    from hipcli.kernels.torch_attend import dense_decode, dense_prefill

    def kernel(q, k, v, causal):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=causal)

    q, (k, v) = torch.randn(6, 40, 16), torch.randn(2, 2, 100, 16)
    for keys in (100, 40):
        expected = dense_prefill(q, k[:, :keys], v[:, :keys])
        torch.testing.assert_close(in_parts(kernel, as_rows(kernel))(q, k[:, :keys], v[:, :keys]), expected)
    one = in_one_call(as_rows(kernel), False)
    torch.testing.assert_close(one(q[:, :1], k, v), dense_decode(q[:, :1], k, v))

    def absent(q, k, v):
        raise RuntimeError("no such kernel\nat all")

    assert fastest([("absent", absent), ("here", one)], lambda attend: attend(q[:, :1], k, v).numel()) == ("here", one)
    with pytest.raises(HipError, match=r"\(absent: no such kernel\)"):
        fastest([("absent", absent)], lambda attend: attend(q, k, v))


def test_a_faulty_row_does_not_end_a_run_on_a_gpu():
    import torch

    from hipcli.bench import attempt

    def fault(error):
        def work():
            raise error

        return work

    row = attempt(fault(ValueError("bad tile\nat line 3")), "x", "layer", 64, "gpu")
    assert (row["skipped"], row["reason"]) == ("failed: bad tile", "failed")
    assert attempt(fault(torch.OutOfMemoryError("no room")), "x", "layer", 64, "cpu")["reason"] == "memory"
    with pytest.raises(ValueError, match="bad tile"):
        attempt(fault(ValueError("bad tile")), "x", "layer", 64, "cpu")


def test_tables_show_every_row_once_and_keep_numbers_whole(capsys):
    from hipcli.bench_report import Tables

    cases = {"ordinary": {"full": 0.123456, "reuse": 0.01}}
    split = {"prefill chunk": {"scan 1": {"ms": 4.0, "floor_ms": 2.0, "gap": 2.0}, "other": {"ms": 0.5, "floor_ms": None, "gap": None}}}
    times = {f"{mode}_{what}_ms": 1234567.0 for mode in ("sparse", "dense") for what in ("prefill", "decode")}
    row = {"row": "layer", "context": 1 << 20, "prefill_queries": 8192, "prefill_speedup": 1.0, "decode_speedup": 1.0, **times}
    tables = Tables()
    tables.add(row | {"decode_cases_ms": cases, "split": split})
    tables.add({"row": "one layer at 2,097,152 keys", "part": "layer", "context": 1 << 21, "skipped": "too large", "reason": "memory"})
    assert capsys.readouterr().out == ""
    tables.close()
    text = capsys.readouterr().out
    assert text.count("1,234,567.00 ") == text.count("1,234,567.0000 ") == 2 and "0.1235" in text and "scan 1" in text
    assert "one layer at 2,097,152 keys: not run: too large" in text


def test_spread_of_step_times():
    from hipcli.bench_timing import spread_ms

    assert spread_ms([step / 1e3 for step in range(1, 129)]) == pytest.approx({"p50_ms": 64.5, "p99_ms": 127, "max_ms": 128})
    assert spread_ms([0.002]) == pytest.approx({"p50_ms": 2, "p99_ms": 2, "max_ms": 2})
