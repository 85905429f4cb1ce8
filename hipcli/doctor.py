"""`hip doctor`: checks the installation and the machine, each line with a fix for what is wrong.

Never uses the network and changes nothing. Knows nothing of documents.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, util

from hipcli import __version__, config
from hipcli.config_keys import SETTINGS
from hipcli.console import Terminal, amount, visible, write_json, write_stdout
from hipcli.doctor_report import report
from hipcli.errors import HipError
from hipcli.models_command import home_short

_NEEDED = (
    "torch",
    "transformers",
    "tokenizers",
    "tiktoken",
    "safetensors",
    "pypdf",
    "pypdfium2",
    "httpx",
    "chardet",
    "psutil",
    "xxhash",
    "prompt_toolkit",
)
_ROOM_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Check:
    """One finding. state: "ok", "warn" or "fail"; fix: what to do, None when nothing is wrong."""

    name: str
    state: str
    detail: str
    fix: str | None = None


def doctor(terminal: Terminal, as_report: bool = False) -> int:
    """Print every check on stdout, as_report: for others to read; returns 1 when one of them failed, else 0."""
    checks = []
    with terminal.phase("checking"):
        for probe in _PROBES:
            checks.extend(_safely(probe))
    if as_report:
        write_stdout(visible(report((check.state, check.name, check.detail) for check in checks)))
    elif terminal.as_json:
        write_json({"schema_version": 1, "checks": [asdict(check) for check in checks], "hip_version": __version__})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            write_stdout(visible(f"{check.state:<4}  {check.name:<{width}}  {check.detail}") + "\n")
            if check.fix:
                write_stdout(visible(f"{'':<4}  {'':<{width}}  try: {check.fix}") + "\n")
    return int(any(check.state == "fail" for check in checks))


def _safely(probe: Callable[[], Iterator[Check]]) -> list[Check]:
    """A probe's checks; its own failure is a finding too."""
    try:
        return list(probe())
    except Exception as fault:
        name = probe.__name__.strip("_").replace("_", " ")
        if isinstance(fault, HipError):
            return [Check(name, "fail", fault.message, fault.hint)]
        return [Check(name, "fail", f"{type(fault).__name__}: {fault}", "reinstall: pip install --force-reinstall hipcli")]


def _program() -> Iterator[Check]:
    yield Check("hip", "ok", __version__)
    version = platform.python_version()
    old = sys.version_info < (3, 10)
    yield Check("python", "fail" if old else "ok", f"{version} on {platform.platform()}", "install Python 3.10 or newer" if old else None)


def _packages() -> Iterator[Check]:
    for name in _NEEDED:
        if util.find_spec(name) is None:
            yield Check(name, "fail", "not installed", f"pip install {name}")
        else:
            yield Check(name, "ok", metadata.version(name))
    if util.find_spec("triton") is not None:
        yield Check("triton", "ok", metadata.version("triton"))
    elif sys.platform == "linux":
        yield Check("triton", "warn", "not installed; needed for a GPU only", "pip install triton")


def _settings() -> Iterator[Check]:
    origins = [config.choice(key).origin for key in SETTINGS]
    file = config.config_path()
    where = home_short(file) if file.exists() else "no file"
    yield Check("settings", "ok", f"{origins.count('file')} from {where}, {origins.count('environment')} from the environment")


def _machine() -> Iterator[Check]:
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check("cpu cores", "ok", str(cores))
    memory = psutil.virtual_memory()
    tight = memory.available < _ROOM_BYTES
    detail = f"{amount(memory.available, 'bytes')} free of {amount(memory.total, 'bytes')}"
    yield Check("memory", "warn" if tight else "ok", detail, "close other programs: the default model needs about 2 GB" if tight else None)


def _devices() -> Iterator[Check]:
    import torch

    from hipcli.devices import untested, unused_accelerators, why_no_gpu

    for name in unused_accelerators():
        yield Check("accelerator", "ok", f"{name}: hip has not been tested on it and leaves it alone; the CPU is used")
    if not torch.cuda.is_available():
        yield Check("gpu", "ok", f"{why_no_gpu()}; the CPU is used")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name, used = torch.cuda.get_device_name(index), "" if index == 0 else "; not used"
        yield Check(f"gpu {index}", "ok", f"{name}, {amount(free, 'bytes')} free of {amount(total, 'bytes')}{used}")
    kit = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    yield Check("gpu software", "ok", f"driver {_driver_version()}, torch {torch.__version__} for {kit}")
    if notice := untested("cuda"):
        yield Check("gpu", "warn", notice, "hip ask --device cpu")
    yield _kernels()


def _kernels() -> Check:
    """Whether the Triton kernels can be compiled here."""
    if util.find_spec("triton") is None:
        return Check("gpu kernels", "fail", "triton is not installed", "pip install triton; or hip ask --backend torch, which is slow")
    if not any(shutil.which(name) for name in ("gcc", "clang", "cc")):
        return Check(
            "gpu kernels", "fail", "triton needs a C compiler and finds none", "install gcc; or hip ask --backend torch, which is slow"
        )
    return Check("gpu kernels", "ok", f"Triton {metadata.version('triton')} is used")


def _driver_version() -> str:
    """Version of NVIDIA's driver, "unknown" where its own tool does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        said = []
    return said[0] if said else "unknown"


def _number_format() -> Iterator[Check]:
    import torch

    from hipcli.dtype_probe import choose_dtype, matmul_rate, remembered_dtype

    rates = {name: matmul_rate(getattr(torch, name)) / 1e9 for name in ("float32", "bfloat16")}
    chosen = remembered_dtype(config.cache_dir()) or str(choose_dtype("cpu")).removeprefix("torch.")
    speeds = ", ".join(f"{name} {rate:,.0f} GFLOP/s" for name, rate in rates.items())
    yield Check("cpu numbers", "ok", f"{chosen} is used ({speeds})")
    if torch.cuda.is_available():
        chosen = choose_dtype("cuda")
        rate = matmul_rate(chosen, "cuda") / 1e12
        yield Check("gpu numbers", "ok", f"{str(chosen).removeprefix('torch.')} is used ({rate:,.0f} TFLOP/s)")


def _storage() -> Iterator[Check]:
    folder = config.data_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        # permissions alone do not tell on every file system
        tempfile.TemporaryFile(dir=existing).close()
    except OSError:
        yield Check("data folder", "fail", f"{home_short(folder)} cannot be written", "set HIP_DATA_DIR to a folder of yours")
        return
    free = shutil.disk_usage(existing).free
    tight = free < _ROOM_BYTES
    detail = f"{home_short(folder)}, {amount(free, 'bytes')} free"
    yield Check("data folder", "warn" if tight else "ok", detail, "free some space, or set HIP_DATA_DIR" if tight else None)


def _sessions() -> Iterator[Check]:
    from hipcli.sessions import Library
    from hipcli.sessions.folder import existing, total_bytes

    library = Library(config.cache_dir(), config.cache_budget())
    try:
        tempfile.TemporaryFile(dir=existing(library.root)).close()
    except OSError:
        fix = "set HIP_CACHE_DIR to a folder of yours; without one every question reads its document again"
        yield Check("sessions", "warn", f"{home_short(library.root)} cannot be written", fix)
        return
    found = library.sessions()
    damaged = [session.key for session in found if session.fault and list(session.folder.glob("*.safetensors"))]
    detail = f"{len(found)}, {amount(total_bytes(found), 'bytes')} of {amount(library.budget_bytes, 'bytes')} in {home_short(library.root)}"
    fix = f"hip sessions rm {' '.join(damaged)}" if damaged else None
    yield Check("sessions", "warn" if damaged else "ok", detail + (f"; damaged: {', '.join(damaged)}" if damaged else ""), fix)


def _model() -> Iterator[Check]:
    from hipcli.models import DEFAULT_MODEL, list_models, obtain_model, verify_model
    from hipcli.tokens import load_tokenizer

    wanted, stored = config.default_model(), [files.name for files in list_models(config.data_dir())]
    if wanted is None and DEFAULT_MODEL not in stored:
        yield Check("model", "warn", f"{DEFAULT_MODEL} has not been fetched yet", "hip models get")
        return
    try:
        files = obtain_model(wanted, data_dir=config.data_dir(), offline=True)
        verified = files.name in stored and bool(verify_model(files.name, config.data_dir()))
    except HipError as fault:
        yield Check("model", "fail", fault.message, fault.hint)
        return
    where = f"{files.name}, {amount(files.size_bytes, 'bytes')} in {home_short(files.path)}"
    yield Check("model", "ok", where + (", verified" if verified else ""))
    fast = load_tokenizer(files.path).fast_path
    # its slower path is as right, so nothing needs a fix
    yield Check("tokenizer", "ok", f"{fast} path" + ("" if fast == "tiktoken" else ": long documents take longer to tokenize"))


def _terminal() -> Iterator[Check]:
    encoding = (sys.stdout.encoding if sys.stdout is not None else None) or "none"
    plain = encoding.lower().replace("-", "") not in ("utf8", "utf8sig")
    fix = "set LC_ALL=C.UTF-8 or PYTHONUTF8=1: other characters are shown as escapes"
    yield Check("terminal", "warn" if plain else "ok", f"{encoding} output", fix if plain else None)


_PROBES = (_program, _packages, _settings, _machine, _devices, _number_format, _storage, _sessions, _model, _terminal)
