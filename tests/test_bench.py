"""`hip bench` through the installed command: real rows, honest refusals. Speed itself is never asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.bench import parse_context
from hipcli.errors import UsageError

HIP = Path(sys.executable).with_name("hip")


@pytest.fixture
def bench(tiny_model, tmp_path):
    env = os.environ | {"HIP_MODEL": str(tiny_model), "HIP_DATA_DIR": str(tmp_path / "data"), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([HIP, "bench", *arguments], cwd=tmp_path, env=env, capture_output=True, timeout=300)

    return run


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
    layer, sparse, dense = rows[1:]
    assert layer["decode_speedup"] == pytest.approx(layer["dense_decode_ms"] / layer["sparse_decode_ms"])
    assert (sparse["mode"], dense["mode"]) == ("sparse", "dense")
    for row in (sparse, dense):
        assert row["prefill_tokens_per_second"] == pytest.approx(9000 / row["prefill_seconds"])
        assert row["decode_tokens_per_second"] > 0 and row["kv_bytes"] > 0
        assert sum(row["last_chunk_shares"].values()) == pytest.approx(1, abs=0.01)
    # the scan belongs to sparse attention alone
    assert sparse["last_chunk_shares"]["scan"] > 0.01 > dense["last_chunk_shares"]["scan"]


def test_a_sampled_prefill_covers_the_whole_context(tiny_model):
    from hipcli.bench_model import MemoryWatch, sample_starts, sampled_prefill
    from hipcli.engine import Engine
    from hipcli.model import load_model
    from hipcli.settings import AttentionSettings

    engine = Engine(load_model(tiny_model, dtype="float32"), AttentionSettings(dense_below=2048))
    places = sample_starts(engine, 9000)
    # both ends, and both sides of the change from dense to sparse
    assert places[0] == 0 and places[-1] == 7168 and {1024, 2048} <= set(places)
    assert sampled_prefill(engine, 9000, MemoryWatch()) > 0
    assert engine.cached_len == 9000
    whole = Engine(engine.model, AttentionSettings())
    assert sampled_prefill(whole, 100, MemoryWatch()) > 0 and whole.cached_len == 100


def test_what_does_not_fit_says_what_it_would_need(bench):
    done = bench("--context", "900M", "--json")
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()][1:]
    assert done.returncode == 0 and len(rows) == 3
    assert all("GiB" in row["skipped"] and row["context"] == 900 << 20 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "word"), [(("--context", "x"), b"--context"), (("--minutes", "0"), b"--minutes"), (("--preset", "x"), b"preset")]
)
def test_bad_arguments(bench, arguments, word):
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, b"") and word in done.stderr
