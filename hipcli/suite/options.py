"""What a run of the suite is asked to do, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hipcli import config
from hipcli.errors import UsageError
from hipcli.options import kv_settings
from hipcli.settings import KvSettings
from hipcli.suite.catalogue import choose
from hipcli.suite.tasks import Task

SCORINGS = ("pass", "greedy", "both")
DEFAULT_CONTEXTS = ("4K", "8K", "16K")
DEFAULT_ATTENTION = ("dense", "auto", "paper-3k")


@dataclass(frozen=True)
class SuiteOptions:
    """tasks: to run. contexts: tokens, ascending. attention: "dense", "auto" or presets. samples: haystacks a cell, or
    examples of a data file; None for one, or all.
    pack: questions a haystack at most; 1 is the published form. dense_below: of the presets, None for the program's own.
    seconds: to spend at most. check: measure agreement with dense attention too. kv: how keys and values are kept.

    Raises UsageError on what cannot be run.
    """

    tasks: tuple[Task, ...]
    contexts: tuple[int, ...]
    attention: tuple[str, ...] = DEFAULT_ATTENTION
    samples: int | None = None
    scoring: str = "both"
    pack: int = 50
    seed: int = 0
    text: tuple[str, ...] = ()
    dense_below: int | None = None
    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    seconds: float = 300.0
    check: bool = False
    kv: KvSettings = KvSettings()

    def __post_init__(self) -> None:
        for name in ("samples", "pack"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"--{name} must be 1 or more, got {getattr(self, name)}")
        if not self.seconds > 0:
            raise UsageError(f"--minutes must be above 0, got {self.seconds / 60:g}")
        if self.scoring not in SCORINGS:
            raise UsageError(f"--scoring must be one of {', '.join(SCORINGS)}, got {self.scoring!r}")
        if self.dense_below is not None and self.dense_below < 0:
            raise UsageError(f"--dense-below must be 0 or more, got {self.dense_below}")
        for name in self.attention:
            if name != "dense":
                config.require_preset(name, "attention")


def listed(texts: Sequence[str] | None) -> list[str]:
    """The items of comma lists, in order, none twice."""
    return list(dict.fromkeys(item.strip() for text in texts or () for item in text.split(",") if item.strip()))


def options_from(suites: Sequence[str], given: dict, data: Sequence[Task] = ()) -> SuiteOptions:
    """Options from the command line's values, which may be comma lists. Raises UsageError."""
    from hipcli.bench import parse_context

    contexts = sorted({parse_context(text) for text in listed(given["context"]) or DEFAULT_CONTEXTS})
    return SuiteOptions(
        tasks=choose(listed(suites), listed(given["task"]), data),
        contexts=tuple(contexts),
        attention=tuple(listed(given["attention"])) or DEFAULT_ATTENTION,
        samples=given["samples"],
        scoring=given["scoring"] or "both",
        pack=50 if given["pack"] is None else given["pack"],
        seed=given["seed"] or 0,
        text=tuple(given["text"] or ()),
        dense_below=given["dense_below"],
        model=given["model"],
        device=given["device"],
        dtype=given["dtype"],
        seconds=60 * given["minutes"],
        check=given["check"],
        kv=kv_settings(given["kv"], given["kv_dtype"], given["gpu_memory"], given["host_memory"]),
    )
