"""Writes the parts of the documentation that the program itself knows: tables, the command reference, the sizing table.

    python docs/generate.py            writes them
    python docs/generate.py --check    names the files that are out of date; exits with 1 when there are any

A part stands between `<!-- made by docs/generate.py: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from hipcli.cli import app
from hipcli.topics import TOPICS

DOCS = Path(__file__).resolve().parent
# what a system and its other programs keep of a machine's memory, and what a driver keeps of a GPU's
HOST_LEFT, GPU_LEFT = 2 << 30, 1 << 30
MACHINES = {
    "8 GB": (8, None),
    "16 GB": (16, None),
    "64 GB": (64, None),
    "GPU of 24 GB": (None, 24),
    "GPU of 80 GB": (None, 80),
    "GPU of 24 GB, keys and values on a host of 64 GB": (64, 24),
    "GPU of 80 GB, on a host of 256 GB": (256, 80),
}
LONGEST = 16 << 20


def commands() -> str:
    """A section for every command, in the order of `hip --help`."""
    root = typer.main.get_command(app)
    return "\n".join(_section(["hip", *path], command) for path, command in _walk(root, []))


def _walk(group: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk(command, [*path, name])
        else:
            yield [*path, name], command


def _section(path: list[str], command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    usage = " ".join([*path, "[OPTIONS]", *(param.metavar or param.name.upper() for param in arguments)])
    rows = [(f"`{param.metavar or param.name.upper()}`", param.help or "") for param in arguments]
    rows += [(_flags(option), _meaning(option)) for option in options]
    table = "".join(f"| {flags} | {_cell(meaning)} |\n" for flags, meaning in [*rows, ("`-h`, `--help`", "Show help and exit.")])
    example = command.epilog.removeprefix("Example:").strip()
    return f"## {' '.join(path)}\n\n{command.help}\n\n```text\n{usage}\n{example}\n```\n\n| | |\n| --- | --- |\n{table}"


def _flags(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or '|'.join(_choices(option)) or 'VALUE'}"
    return _cell(", ".join(f"`{name}{value if name.startswith('--') else ''}`" for name in option.opts))


def _choices(option: Any) -> tuple[str, ...]:
    """The words that an option allows; older versions of typer keep them elsewhere."""
    if hasattr(option, "type_descriptor"):
        annotation = option.type_descriptor.annotation
        return get_args(annotation) if get_origin(annotation) is Literal else ()
    return tuple(getattr(option.type, "choices", ()))


def _meaning(option: Any) -> str:
    shown = option.show_default and option.default is not None and not option.is_flag
    return option.help + (f" Default: {option.default}." if shown else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def sizing() -> str:
    """Longest contexts by model and machine, from the figures that a run is planned with."""
    from hipcli.shapes import SHAPES

    head = ["model, in bfloat16", "weights", "a token", *MACHINES]
    lines = [head, ["---"] * len(head)]
    for name in reversed(SHAPES):
        host, gpu = _sizes(name, "cpu"), _sizes(name, "cuda")
        row = [name, f"{host.parameters * 2 / 2**30:.1f} GiB", f"{host.kv_bytes_per_token / 1024:g} KiB"]
        lines.append(row + [_longest(host, gpu, *memory) for memory in MACHINES.values()])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _sizes(name: str, device: str) -> Any:
    """The sizes of a published model as the planner takes them; its weights have no memory."""
    import torch

    from hipcli.model import LoadedModel, parameter_count
    from hipcli.shapes import SHAPES, empty_network

    shape, dtype = SHAPES[name], torch.bfloat16
    network = empty_network(shape, dtype)
    return LoadedModel(
        name, network, None, dtype, device, shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.trained_window,
        shape.vocab, parameter_count(network), 0.0,
    )  # fmt: skip


def _longest(host: Any, gpu: Any, host_gb: int | None, gpu_gb: int | None) -> str:
    """The longest context that fits, in words."""

    def fits(tokens: int) -> bool:
        needs = _needs(host, gpu, host_gb, gpu_gb, tokens)
        free = ((host_gb or 0) * 2**30 - HOST_LEFT, (gpu_gb or 0) * 2**30 - GPU_LEFT)
        return all(need <= room for need, room in zip(needs, free) if need)

    low, high = 0, LONGEST // 1024
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * 1024) else (low, middle - 1)
    if low * 1024 >= LONGEST:
        return "over 16M"
    return "no" if not low else f"{low}K" if low < 1024 else f"{low / 1024:.1f}M"


def _needs(host: Any, gpu: Any, host_gb: int | None, gpu_gb: int | None, tokens: int) -> tuple[int, int]:
    """Bytes on host and GPU of `tokens` tokens, with the shortest chunk of prefill."""
    from hipcli.engine import CHUNK_TOKENS
    from hipcli.kernels.presets import preset
    from hipcli.memory import resident_bytes, working_bytes

    model, plan = (host, preset("cpu")) if gpu_gb is None else (gpu, preset("default"))
    dense = min(8192, model.trained_window)
    # the planner's own sum; torch's attention, which runs on a CPU, keeps the keys of dense blocks rotated too
    here = model.parameters * 2 + working_bytes(model, CHUNK_TOKENS, tokens, plan, dense)
    kv = tokens * model.kv_bytes_per_token
    if gpu_gb is None:
        return here + kv + min(tokens, dense) * model.kv_bytes_per_token // 2, 0
    return (0, here + kv) if host_gb is None else (kv, here + resident_bytes(model.layers, tokens, model.kv_bytes_per_token, (0, 0), plan))


PARTS = {**{name: table.as_markdown for name, table in TOPICS.items()}, "commands": commands, "sizing": sizing}
_PART = re.compile(r"(<!-- made by docs/generate.py: (\S+) -->\n\n?).*?(\n?<!-- end -->)", re.S)


def renew(text: str) -> str:
    """A page with its parts made anew."""
    return _PART.sub(lambda match: f"{match[1].rstrip()}\n\n{PARTS[match[2]]().strip()}\n\n<!-- end -->", text)


def main() -> int:
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        if (after := renew(before)) != before:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(after, encoding="utf-8")
    print("\n".join(f"{'out of date' if '--check' in sys.argv else 'written'}: {name}" for name in stale) or "all up to date")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
