"""`hip bench`: what this machine does, sparse beside dense, each row printed as soon as it is measured.

Two kinds of row: one layer's attention at each context, and the whole model's prefill and decode. What does not fit the
memory or the time says so, and what it would need.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli import bench_plot, bench_report, config
from hipcli.console import Terminal, write_json
from hipcli.errors import DiskError, DoesNotFit, HipError, UsageError
from hipcli.options import kv_settings
from hipcli.settings import KvSettings

if TYPE_CHECKING:
    from hipcli.bench_ceilings import Ceilings
    from hipcli.model import LoadedModel
    from hipcli.models import ModelFiles

Row = dict[str, Any]
SHORTEST = 64
DEFAULT_CONTEXTS = ("8K", "64K")
PARTS = ("layer", "model")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def parse_context(text: str, option: str = "--context") -> int:
    """Tokens of "4096", "64K" (65,536) or "1M" (1,048,576). Raises UsageError."""
    number, unit = text.strip().upper(), ""
    if number[-1:] in ("K", "M"):
        number, unit = number[:-1], number[-1]
    # no context has more digits than a 64-bit number
    if not number.isdecimal() or len(number) > 18 or int(number) * _UNITS[unit] < SHORTEST:
        raise UsageError(f"{option} must be a number of tokens such as 4096, 64K or 1M, at least {SHORTEST}, got {text!r}")
    return int(number) * _UNITS[unit]


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. contexts: tokens, ascending. parts: of PARTS. seconds: to spend at most. model and shape: at most one.

    Raises UsageError on what cannot be measured.
    """

    contexts: tuple[int, ...]
    parts: tuple[str, ...] = PARTS
    model: str | None = None
    shape: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    preset: str = "auto"
    kv: KvSettings = KvSettings()
    seconds: float = 300.0
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise UsageError(f"--minutes must be above 0, got {self.seconds / 60:g}")
        if self.model and self.shape:
            raise UsageError("--model and --shape cannot be used together", "--shape has random weights of its own")
        for name in self.parts:
            if name not in PARTS:
                raise UsageError(f"--part must be one of {', '.join(PARTS)}, got {name!r}")
        config.require_preset(self.preset)


def run(
    *,
    context: Sequence[str],
    json: bool,
    minutes: float,
    part: Sequence[str] = (),
    out: str | None = None,
    plot: str | None = None,
    **choices: Any,
) -> None:
    """Measure each context and print its rows; `choices` are BenchOptions. Raises UsageError, ModelError, DiskError, DoesNotFit."""
    contexts = tuple(sorted({parse_context(text) for text in (context or DEFAULT_CONTEXTS)}))
    placing = kv_settings(*(choices.pop(name) for name in ("kv", "kv_dtype", "gpu_memory", "host_memory")))
    options = BenchOptions(contexts, tuple(part) or PARTS, seconds=minutes * 60, kv=placing, **choices)
    deadline = time.monotonic() + options.seconds
    if plot is not None:
        bench_plot.require_plot(Path(plot))
    if out is not None:
        require_out(Path(out))
    terminal, rows = Terminal(as_json=json), []
    report = None if json else bench_report.open_report()
    model = load(options, terminal)
    try:
        for row in measure(model, options, deadline, terminal):
            rows.append(row)
            if report is None:
                write_json(row)
            else:
                report.add(row)
            if out is not None:
                append_line(Path(out), row)
    finally:
        if report is not None:
            report.close()
        if plot is not None and rows:
            draw(Path(plot), rows, terminal)
    judge(rows[1:])


def draw(path: Path, rows: list[Row], terminal: Terminal) -> None:
    machine = rows[0]
    weights = " (random weights)" if machine["weights"] == "random" else ""
    title = f"{machine['model']}{weights}, {machine['dtype']}, {machine['processor' if machine['device'] == 'cpu' else 'device']}"
    if bench_plot.plot(path, rows, title):
        terminal.note(f"plot: {path}")
    else:
        terminal.warn(f"nothing was measured, so {path} was not drawn")


def judge(rows: list[Row]) -> None:
    """Raise for a run that measured nothing, or in which something failed."""
    reasons = {row.get("reason") for row in rows}
    if reasons and reasons <= {"memory", "time"}:
        if "memory" in reasons:
            raise DoesNotFit("nothing was measured: no context fits the memory", "a shorter --context, a smaller --shape or --model")
        raise HipError("nothing was measured: no context fits the time", "give --minutes more, or a shorter --context")
    failed = [row["row"] for row in rows if row.get("reason") == "failed"]
    if failed:
        raise HipError(f"{len(failed)} of {len(rows)} measurements failed: {', '.join(failed)}")


def load(options: BenchOptions, terminal: Terminal) -> LoadedModel:
    """The model to measure, on its device. Raises UsageError, ModelError, DoesNotFit."""
    if options.shape:
        with terminal.phase(f"making random weights of {options.shape}"):
            return make_random(options)
    return load_trained(options.model, options.device, options.dtype, terminal)[1]


def load_trained(spec: str | None, device: str, dtype: str, terminal: Terminal) -> tuple[ModelFiles, LoadedModel]:
    """The files of a model, HIP_MODEL or the default for None, and the model. Raises UsageError, ModelError, DoesNotFit."""
    from hipcli.models import obtain_model

    spec = spec or config.default_model()
    files = obtain_model(spec, data_dir=config.data_dir(), offline=config.offline(), progress=terminal.sink())
    with terminal.phase(f"loading {files.name}"):
        from hipcli.devices import choose_device
        from hipcli.model import load_model

        return files, load_model(files.path, name=files.name, device=choose_device(device), dtype=dtype)


def make_random(options: BenchOptions) -> LoadedModel:
    import torch

    from hipcli.devices import choose_device
    from hipcli.dtype_probe import choose_dtype
    from hipcli.memory import free_bytes
    from hipcli.shapes import random_model

    device = choose_device(options.device)
    dtype = choose_dtype(device) if options.dtype == "auto" else getattr(torch, options.dtype)
    return random_model(options.shape or "", device, dtype, free_bytes(device))


def measure(model: LoadedModel, options: BenchOptions, deadline: float, terminal: Terminal) -> Iterator[Row]:
    """All rows, the cheap ones of every context first."""
    from hipcli.bench_ceilings import measure_ceilings

    with terminal.phase("measuring the machine's ceilings"):
        ceilings = measure_ceilings(model.device, model.dtype)
    weights = "random" if options.shape else "trained"
    yield machine(model, ceilings) | {"weights": weights}
    for label, part, tokens, work in cells(model, options, deadline, ceilings):
        with terminal.phase(label):
            row = attempt(work, label, part, tokens, model.device)
        yield row | {"weights": weights}


def cells(
    model: LoadedModel, options: BenchOptions, deadline: float, ceilings: Ceilings
) -> Iterator[tuple[str, str, int, Callable[[], Row]]]:
    """Label, part, tokens and measurement of each row."""
    from hipcli import bench_layer, bench_model

    if "layer" in options.parts:
        for tokens in options.contexts:
            work = partial(bench_layer.layer_row, model, tokens, options.preset, ceilings)
            yield f"one layer at {tokens:,} keys", "layer", tokens, work
    if "model" in options.parts:
        for tokens in options.contexts:
            for mode in ("sparse", "dense"):
                limits = bench_model.Limits(deadline, options.whole)
                work = partial(bench_model.model_row, model, tokens, mode, options.preset, options.kv, limits, ceilings)
                yield f"whole model, {mode}, {tokens:,} tokens", "model", tokens, work


def attempt(work: Callable[[], Row], label: str, part: str, tokens: int, device: str) -> Row:
    """The row that `work` measures, or one that says why there is none. On a CPU an unforeseen fault is raised as it is."""
    from hipcli.bench_timing import NoTimeLeft
    from hipcli.devices import empty_cache
    from hipcli.memory import ran_out_of_memory
    from hipcli.model import first_line

    skipped = {"row": label, "part": part, "context": tokens}
    try:
        return work()
    except DoesNotFit as error:
        return skipped | {"skipped": str(error), "reason": "memory"}
    except NoTimeLeft as error:
        return skipped | {"skipped": str(error), "reason": "time"}
    except HipError as error:
        return skipped | {"skipped": f"failed: {error}", "reason": "failed"}
    except Exception as error:
        if ran_out_of_memory(error):
            return skipped | {"skipped": f"memory ran out: {first_line(error)}", "reason": "memory"}
        if device == "cpu":
            raise
        # drivers, libraries and compilers raise what they like; the other rows are worth having all the same
        return skipped | {"skipped": f"failed: {first_line(error)}", "reason": "failed"}
    finally:
        empty_cache(device)


def machine(model: LoadedModel, ceilings: Ceilings) -> Row:
    """What the figures were measured on, and its ceilings."""
    import platform

    import psutil
    import torch

    row = {
        "row": "machine", "processor": processor_name() or platform.machine(), "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total, "device": model.device, "torch": torch.__version__,
        "transformers": version_of("transformers"), "model": model.name, "dtype": model.dtype_name,
        "matmul_gflops": round(ceilings.matmul_rate / 1e9), "matmul_fp32_gflops": round(ceilings.fp32_rate / 1e9),
        "read_gbytes_per_second": round(ceilings.read_rate / 1e9),
    }  # fmt: skip
    if model.device != "cpu":
        device = torch.cuda.get_device_properties(0)
        row |= {"device": device.name, "device_memory_bytes": device.total_memory, "cuda": torch.version.cuda}
        row |= {"triton": version_of("triton")}
    return row


def version_of(distribution: str) -> str | None:
    """The installed version of a package, None where there is none of that name."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def processor_name() -> str | None:
    """The processor as the system names it, None where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    names = [row.split(":", 1)[1].strip() for row in text.splitlines() if row.startswith("model name")]
    return names[0] if names else None


def require_out(path: Path) -> None:
    """Raise DiskError when no line can be added to `path`; to be called before the work."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise DiskError(f"cannot write {str(path)!r}: {error.strerror}", "choose another place for --out") from error


def append_line(path: Path, row: Row) -> None:
    """Add a row to a file of JSON lines; raises DiskError."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}", "choose another place for --out") from error
