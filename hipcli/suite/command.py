"""`hip bench` measures speed or, with --suite, accuracy: which of its options belong to which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.console import Terminal
from hipcli.errors import InputError, UsageError

if TYPE_CHECKING:
    from hipcli.suite.tasks import Task

SUITE_ONLY = ("task", "samples", "pack", "text", "attention", "scoring", "seed", "dense_below", "check")
SPEED_ONLY = ("shape", "part", "whole")


def bench_or_suite(given: dict[str, Any]) -> None:
    """Run what the command line's values ask for. Raises UsageError for options of the other kind, and what a run raises."""
    suite = given["suite"] or given["data"]
    for name in SPEED_ONLY if suite else SUITE_ONLY:
        # 0 is a seed, and a choice of --dense-below
        if given[name] is not None and given[name] is not False:
            _refuse(name, bool(suite))
    if suite and "preset" in given["flags"]:
        raise UsageError("--preset cannot be used with --suite", "name presets by --attention")
    if suite:
        from hipcli.suite.options import options_from
        from hipcli.suite.run import run

        run(options_from(given["suite"] or [], given, _data(given["data"])), out=given["out"], plot=given["plot"], as_json=given["as_json"])
        return
    from hipcli import bench

    placing = ("kv", "kv_dtype", "gpu_memory", "host_memory")
    speed = {name: given[name] for name in ("model", "shape", "device", "dtype", "preset", *placing, "whole", "minutes", "out", "plot")}
    bench.run(context=given["context"] or [], json=given["as_json"], part=given["part"] or [], **speed)


def _refuse(name: str, with_suite: bool) -> None:
    option = f"--{name.replace('_', '-')}"
    raise UsageError(f"{option} cannot be used with --suite" if with_suite else f"{option} needs --suite")


def _data(folder: str | None) -> Sequence[Task]:
    """The tasks of the user's data files; what cannot be used is said. Raises InputError when nothing can."""
    if folder is None:
        return ()
    from hipcli.suite.official import load_data

    tasks, left_out = load_data(Path(folder))
    for sentence in left_out:
        Terminal().warn(sentence)
    if not tasks:
        raise InputError(f"{folder!r} holds no data file that is known here", "LongBench, InfiniteBench or RULER, as .jsonl or .json")
    return tasks
