"""`hip bench`: what this machine does, sparse beside dense, each row printed as soon as it is measured.

Two kinds of row: one layer's attention at each context, and the whole model's prefill and decode. What does not fit the
memory or the time says so, and what it would need.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli import config
from hipcli.console import Terminal, amount, duration, write_json, write_stdout
from hipcli.errors import DiskError, HipError, UsageError

if TYPE_CHECKING:
    from hipcli.model import LoadedModel

Row = dict[str, Any]
SHORTEST = 64
DEFAULT_CONTEXTS = ("8K", "64K")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def parse_context(text: str) -> int:
    """Tokens of "4096", "64K" (65,536) or "1M" (1,048,576). Raises UsageError."""
    number, unit = text.strip().upper(), ""
    if number[-1:] in ("K", "M"):
        number, unit = number[:-1], number[-1]
    if not number.isdecimal() or int(number) * _UNITS[unit] < SHORTEST:
        raise UsageError(f"--context must be a number of tokens such as 4096, 64K or 1M, at least {SHORTEST}, got {text!r}")
    return int(number) * _UNITS[unit]


def run(
    *, context: Sequence[str], json: bool, model: str | None, minutes: float, whole: bool, preset: str = "auto", out: str | None = None
) -> None:
    """Measure each context and print its rows. Raises UsageError, ModelError, DiskError."""
    if not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes}")
    config.require_preset(preset)
    contexts = sorted({parse_context(text) for text in (context or DEFAULT_CONTEXTS)})
    terminal = Terminal(as_json=json)
    loaded = load(model, terminal)
    sinks = [write_json if json else lambda row: write_stdout(line(row) + "\n")]
    if out:
        sinks.append(lambda row: append_line(Path(out), row))
    for row in measure(loaded, contexts, minutes * 60, whole, preset, terminal):
        for sink in sinks:
            sink(row)


def load(spec: str | None, terminal: Terminal) -> LoadedModel:
    from hipcli.models import obtain_model

    files = obtain_model(spec or config.default_model(), data_dir=config.data_dir(), offline=config.offline(), progress=terminal.sink())
    with terminal.phase(f"loading {files.name}"):
        from hipcli.model import load_model

        return load_model(files.path, name=files.name)


def measure(model: LoadedModel, contexts: list[int], seconds: float, whole: bool, preset: str, terminal: Terminal) -> Iterator[Row]:
    """All rows, the cheap ones of every context first."""
    from hipcli import bench_layer, bench_model

    deadline = time.monotonic() + seconds
    yield machine(model)
    cells: list[tuple[str, int, Callable[[], Row]]] = []
    for tokens in contexts:
        cells += [(f"one layer at {tokens:,} keys", tokens, lambda t=tokens: bench_layer.layer_row(model, t, preset))]
    for tokens in contexts:
        for mode in ("sparse", "dense"):
            work = lambda t=tokens, m=mode: bench_model.model_row(model, t, m, preset, deadline, whole)  # noqa: E731
            cells.append((f"whole model, {mode}, {tokens:,} tokens", tokens, work))
    for label, tokens, work in cells:
        with terminal.phase(label):
            try:
                row = work()
            except (MemoryError, HipError) as error:
                row = {"row": label, "context": tokens, "skipped": str(error)}
        yield row


def machine(model: LoadedModel) -> Row:
    """What the figures were measured on."""
    import platform

    import psutil
    import torch

    from hipcli.dtype_probe import matmul_rate

    return {
        "row": "machine", "processor": processor_name() or platform.machine(), "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total, "torch": torch.__version__, "model": model.name,
        "dtype": model.dtype_name, "matmul_gflops": round(matmul_rate(model.dtype) / 1e9),
    }  # fmt: skip


def processor_name() -> str | None:
    """The processor as the system names it, None where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    names = [row.split(":", 1)[1].strip() for row in text.splitlines() if row.startswith("model name")]
    return names[0] if names else None


def line(row: Row) -> str:
    """One row for a person."""
    if row["row"] == "machine":
        memory = amount(row["memory_bytes"], "bytes")
        head = f"{row['processor']}, {row['threads']} threads, {memory}, torch {row['torch']}"
        return f"{head}\n{row['model']} in {row['dtype']}; matrix products at {row['matmul_gflops']} GFLOP/s"
    if "skipped" in row:
        return f"{row['row']}: not run: {row['skipped']}"
    if row["row"] == "layer":
        pairs = (("decode step", "decode"), ("prefill block", "prefill_block"))
        parts = [
            f"{name} {row[f'sparse_{key}_ms']:.2f} ms, dense {row[f'dense_{key}_ms']:.2f} ms ({row[f'{key}_speedup']:.1f}x)"
            for name, key in pairs
        ]
        return f"one layer at {row['context']:,} keys: " + "; ".join(parts)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in row["last_chunk_shares"].items())
    return (
        f"whole model at {row['context']:,} tokens, {row['mode']}: prefill {row['prefill_tokens_per_second']:.0f} tokens/s "
        f"({row['method']}, {duration(row['prefill_seconds'])}), decode {row['decode_tokens_per_second']:.1f} tokens/s, "
        f"KV {amount(row['kv_bytes'], 'bytes')}, working memory {amount(row['working_bytes'], 'bytes')}; last chunk: {shares}"
    )


def append_line(path: Path, row: Row) -> None:
    """Add a row to a file of JSON lines; raises DiskError."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}", "choose another place for --out") from error
