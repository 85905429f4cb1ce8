"""What a user asked of a run, checked once: sources, model, sampling, attention, device. Knows names and numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from hipcli.config_keys import parse_size
from hipcli.errors import UsageError
from hipcli.page_selection import PageSelection
from hipcli.settings import DEVICES, DTYPES, PLACES, KvSettings


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for, checked; raises UsageError.

    model: None means HIP_MODEL or the default. dense_below: tokens, None means the model's own limit. device: "auto" is
    a GPU where there is one. dtype: "auto" is what the device multiplies fastest. session: the user's name for what is kept.
    gpu_memory, host_memory: sizes, the most that may be taken of either.
    """

    sources: tuple[str, ...]
    model: str | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    system: str | None = None
    dense: bool = False
    dense_below: int | None = None
    preset: str = "auto"
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    encoding: str | None = None
    type: str | None = None
    pages: str | None = None
    password_file: str | None = None
    strict: bool = False
    stream: bool = True
    offline: bool = False
    kv: str = "auto"
    kv_dtype: str = "auto"
    gpu_memory: str | None = None
    host_memory: str | None = None
    session: str | None = None
    no_session: bool = False

    @classmethod
    def chosen(cls, sources: Sequence[str], given: dict[str, Any], **more: Any) -> RunOptions:
        """The options among a command's parameters; raises UsageError also for flags that do not go together."""
        flags = given.get("flags", frozenset())
        for other in ("preset", "dense_below"):
            if {"dense", other} <= flags:
                raise UsageError(f"--dense reads every key, so --{other.replace('_', '-')} changes nothing", "leave one of them out")
        known = {item.name for item in fields(cls)} - {"sources"}
        return cls(tuple(sources), **{name: value for name, value in given.items() if name in known}, **more)

    @property
    def kv_settings(self) -> KvSettings:
        """How keys and values are kept."""
        return kv_settings(self.kv, self.kv_dtype, self.gpu_memory, self.host_memory)

    def __post_init__(self) -> None:
        if not self.sources:
            raise UsageError("no document was given", "name a file, a folder or an address; - is standard input")
        if self.sources.count("-") > 1:
            raise UsageError("standard input ('-') can be read only once")
        if self.pages is not None:
            PageSelection.parse(self.pages)
        _require(self.max_tokens >= 1, "--max-tokens", "at least 1", self.max_tokens)
        finite = math.isfinite(self.temperature) and self.temperature >= 0
        _require(finite, "--temperature", "0 or more", self.temperature)
        _require(0 < self.top_p <= 1, "--top-p", "above 0 and at most 1", self.top_p)
        _require(self.seed is None or 0 <= self.seed < 2**63, "--seed", "0 or more, below 2^63", self.seed)
        if self.session is not None and self.no_session:
            raise UsageError("give either --session or --no-session, not both")
        for name, allowed in (("device", DEVICES), ("dtype", DTYPES), ("kv", PLACES)):
            _require(getattr(self, name) in allowed, f"--{name}", f"one of {', '.join(allowed)}", getattr(self, name))
        self.kv_settings  # refuses what is no size
        _require(self.dense_below is None or self.dense_below >= 0, "--dense-below", "0 or more", self.dense_below)


def kv_settings(kv: str, kv_dtype: str, gpu_memory: str | None, host_memory: str | None) -> KvSettings:
    """How keys and values are kept, from what a command line says. Raises UsageError."""
    sizes = {"--gpu-memory": gpu_memory, "--host-memory": host_memory}
    limits = [None if text is None else parse_size(text, name) for name, text in sizes.items()]
    return KvSettings(kv, kv_dtype, *limits)


def _require(holds: bool, name: str, wanted: str, got: object) -> None:
    if not holds:
        raise UsageError(f"{name} must be {wanted}, got {got}")
