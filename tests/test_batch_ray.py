"""Batches on two workers of Ray on this machine: the same rows, whichever worker ends on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hipcli.batching.job import BatchJob
from hipcli.batching.run import batch
from hipcli.console import Terminal
from hipcli.errors import IncompleteError
from hipcli.options import RunOptions
from hipcli.questions import Question

# 240 MB installed: continuous integration does without
pytest.importorskip("ray", reason="Ray is not installed (pip install 'hipcli[ray]')")

HIP = Path(sys.executable).with_name("hip")
TEXT = "The library was founded in 1911 by Maria Lindqvist, a printer. "


@pytest.fixture
def start(tmp_path, tiny_model):
    """Starts `hip batch --engine ray` in a folder of six files, one of them bad."""
    for number in range(6):
        (tmp_path / f"f{number}.txt").write_text(f"Volume {number}. {TEXT}" * 12)
    (tmp_path / "f3.txt").write_bytes(b"")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HIP_") and name != "RAY_ADDRESS"}
    env |= {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_CACHE_DIR": str(tmp_path / "cache"), "HIP_MODEL": str(tiny_model)}
    env |= {"HIP_OFFLINE": "1", "HOME": str(tmp_path)}

    def run(*more: str, **extra: str) -> subprocess.Popen:
        command = [HIP, "batch", "--out", "ray.jsonl", "--engine", "ray", "--json", *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=env | extra)

    return run


def busy_worker(run: subprocess.Popen) -> psutil.Process:
    """A worker of this run that is at a file; Ray names its processes by what they do."""
    while run.poll() is None:
        for process in psutil.Process(run.pid).children(recursive=True):
            try:
                if process.cmdline()[:1] == ["ray::RayWorker.answer"]:
                    return process
            except psutil.Error:
                pass
        time.sleep(0.02)
    raise AssertionError(run.communicate())


def rows(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(
        ({name: value for name, value in row.items() if name != "timing"} for row in found), key=lambda row: row["document"]["path"]
    )


def test_two_workers_give_the_rows_of_one_process(start, tmp_path, tiny_model, monkeypatch):
    run = start("f*.txt", "--prompt", "Who?", "--workers", "2", "--max-tokens", "60")
    busy_worker(run).kill()
    out, err = run.communicate(timeout=300)
    assert run.returncode == 6, err
    told = json.loads(out)
    assert (told["done"], told["rows_added"], told["failed"][0]["message"]) == (5, 5, "f3.txt is empty (0 bytes)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIP_DATA_DIR", str(tmp_path / "data"))
    options = RunOptions(("f*.txt",), model=str(tiny_model), max_tokens=60, offline=True, no_session=True)
    with pytest.raises(IncompleteError, match="1 of 6 files failed"):
        batch(BatchJob(options, (Question("Who?"),), "local.jsonl"), Terminal(quiet=True))
    assert rows(tmp_path / "ray.jsonl") == rows(tmp_path / "local.jsonl")


def test_a_cluster_that_does_not_answer_is_refused_at_once(start):
    run = start("f1.txt", "--prompt", "Who?", RAY_ADDRESS="127.0.0.1:1")
    out, err = run.communicate(timeout=100)
    assert (run.returncode, out) == (2, b"")
    assert "no Ray cluster answers at RAY_ADDRESS, 127.0.0.1:1" in json.loads(err.splitlines()[-1])["error"]["message"]


def test_a_file_whose_workers_end_is_reported_and_may_be_tried_again(start, tmp_path):
    run = start("f1.txt", "--prompt", "Who?", "--max-tokens", "200")
    for _ in range(2):
        worker = busy_worker(run)
        worker.kill()
        psutil.wait_procs([worker], timeout=30)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 6, err
    assert json.loads(out)["failed"][0]["message"] == "the worker that read it ended, 2 times"
    again = start("f1.txt", "--prompt", "Who?", "--max-tokens", "200", "--retry-failed")
    assert json.loads(again.communicate(timeout=300)[0])["done"] == 1 and again.returncode == 0
    assert len(rows(tmp_path / "ray.jsonl")) == 1 and not (tmp_path / "ray.jsonl.failed").exists()
