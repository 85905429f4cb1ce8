"""Where a run computes: what auto takes, what is refused in one sentence, and what a machine without a GPU is told."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hipcli import devices, doctor, model, pipeline
from hipcli.console import Terminal
from hipcli.devices import choose_device
from hipcli.dtype_probe import choose_dtype
from hipcli.errors import DoesNotFit, UsageError
from hipcli.options import RunOptions

HIP = Path(sys.executable).with_name("hip")


@pytest.fixture
def gpu(monkeypatch):
    """Pretends that torch has, or has not, a GPU."""
    return lambda present: monkeypatch.setattr(torch.cuda, "is_available", lambda: present)


@pytest.mark.parametrize(
    ("present", "wanted", "backend", "device"),
    [
        (False, "auto", "auto", "cpu"),
        (False, "cpu", "torch", "cpu"),
        (True, "auto", "auto", "cuda"),
        (True, "auto", "triton", "cuda"),
        (True, "cuda", "torch", "cuda"),
        (True, "cpu", "auto", "cpu"),
    ],
)
def test_auto_takes_a_gpu_where_there_is_one(gpu, present, wanted, backend, device):
    gpu(present)
    assert choose_device(wanted, backend) == device


@pytest.mark.parametrize(
    ("present", "wanted", "backend", "words"),
    [
        (False, "cuda", "auto", "--device cuda was asked for, but (torch finds no GPU here|this torch was built without GPU support)"),
        (False, "auto", "triton", "--backend triton needs an NVIDIA GPU, and (torch finds no GPU|this torch was built without)"),
        (True, "cpu", "triton", "--backend triton needs an NVIDIA GPU, and this run was told to use the CPU"),
    ],
)
def test_what_is_not_there_is_refused(gpu, present, wanted, backend, words):
    gpu(present)
    with pytest.raises(UsageError, match=words):
        choose_device(wanted, backend)


def test_other_accelerators_are_named_as_untested_and_never_taken(monkeypatch):
    assert devices.untested("cpu") is None
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "not been tested on AMD GPUs (ROCm 6.4)" in devices.untested("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.unused_accelerators()[0] == "Apple GPU (MPS)" and choose_device() == "cpu"
    checks = list(doctor._devices())
    assert "not been tested" in checks[0].detail and checks[-1].detail.endswith("the CPU is used")


def test_doctor_describes_a_gpu(gpu, monkeypatch):
    gpu(True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index=0: (100 * 10**9, 140 * 10**9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: "NVIDIA H200")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found = {check.name: check for check in doctor._devices()}
    assert found["gpu 0"].detail == "NVIDIA H200, 100.0 GB free of 140.0 GB"
    assert "CUDA 13.0" in found["gpu software"].detail and "driver" in found["gpu software"].detail
    assert found["gpu kernels"].state == "fail" and found["gpu kernels"].fix
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: True)
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "3.6")
    assert doctor._kernels().detail == "Triton 3.6 is used"


def test_the_number_format_of_a_gpu(monkeypatch):
    for native, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True, native=native: native)
        assert choose_dtype("cuda") is expected


@pytest.mark.parametrize("bad", [{"device": "tpu"}, {"dtype": "int4"}], ids=str)
def test_options_out_of_range_are_refused(bad):
    with pytest.raises(UsageError, match="must be one of auto"):
        RunOptions(("book.txt",), **bad)


def test_weights_larger_than_the_gpu_are_refused_before_they_are_moved(monkeypatch):
    monkeypatch.setattr(model, "free_bytes", lambda device: 1000)
    with pytest.raises(DoesNotFit, match="the weights of big take 0.0 GiB and 0.0 GiB of the GPU's memory are free"):
        model.place(torch.nn.Linear(100, 100), "big", "cuda")
    network = torch.nn.Linear(2, 2)
    assert model.place(network, "small", "cpu") is network


def test_the_gpu_is_prepared_in_a_phase_of_its_own(capsys):
    asked = []
    timing = pipeline._warm_up(SimpleNamespace(warm_up=asked.append), 123, Terminal())
    assert asked == [123] and timing["warm_up_seconds"] >= 0


@pytest.fixture
def hip(tmp_path, tiny_model):
    """Runs the command on a machine whose GPU, if any, is hidden."""
    (tmp_path / "book.txt").write_text("The library was founded in 1911 by Maria Lindqvist, a printer. " * 12)
    hidden = {
        "HIP_DATA_DIR": str(tmp_path / "data"),
        "HIP_CACHE_DIR": str(tmp_path / "cache"),
        "HIP_OFFLINE": "1",
        "HIP_MODEL": str(tiny_model),
        "CUDA_VISIBLE_DEVICES": "",
    }

    def run(*arguments):
        env = os.environ | hidden | {"OMP_NUM_THREADS": "1"}
        return subprocess.run([HIP, *arguments], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)

    return run


@pytest.mark.parametrize("extra", [("--device", "cuda"), ("--backend", "triton")], ids=lambda extra: extra[-1])
def test_the_command_refuses_a_gpu_that_is_not_there_before_it_looks_for_a_model(hip, extra):
    done = hip("ask", "book.txt", "Who?", "--model", "nowhere/at-all", *extra)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"hip: {' '.join(extra)}") and "try: " in done.stderr and len(done.stderr.splitlines()) == 2


def test_a_run_shows_what_it_planned_and_what_it_took(hip):
    done = hip("ask", "book.txt", "Who?", "--max-tokens", "3", "--dtype", "float16", "--device", "cpu", "--json")
    record = json.loads(done.stdout)
    assert record["model"]["dtype"] == "float16" and record["model"]["device"] == "cpu"
    assert 0 < record["timing"]["peak_memory_bytes"] <= record["timing"]["planned_peak_bytes"]
    assert "warm_up_seconds" not in record["timing"]
    shown = hip("ask", "book.txt", "Who?", "--max-tokens", "3", "--verbose").stderr
    assert "on cpu): " in shown and "chunks of 1,024" in shown and "(planned " in shown
    assert "preparing the GPU" not in shown


def test_a_busy_machine_does_not_change_the_number_format(tmp_path, monkeypatch):
    """What was read in one format is of no use in another, so the first measurement stands."""
    from hipcli import dtype_probe

    monkeypatch.setattr(dtype_probe, "choose_dtype", lambda device: torch.bfloat16)
    assert dtype_probe.remembered_dtype(tmp_path / "cache") is None
    assert dtype_probe.settled_dtype(tmp_path / "cache") == "bfloat16"
    monkeypatch.setattr(dtype_probe, "choose_dtype", lambda device: torch.float32)
    assert dtype_probe.settled_dtype(tmp_path / "cache") == "bfloat16"
    (path,) = (tmp_path / "cache").iterdir()
    path.unlink()
    path.write_text("nonsense")
    assert dtype_probe.settled_dtype(tmp_path / "cache") == dtype_probe.remembered_dtype(tmp_path / "cache") == "float32"
    (tmp_path / "file").touch()
    assert dtype_probe.settled_dtype(tmp_path / "file" / "cache") == "float32"
