"""What a user can set for all runs: each key's variable, kind, default and meaning. Reads neither file nor environment."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.errors import UsageError
from hipcli.settings import BACKENDS, DEVICES, DTYPES, PLACES

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Kind:
    """A kind of value. wanted: in words. types: in TOML. read: from a shell's text, raises ValueError; holds: may raise it too."""

    wanted: str
    types: tuple[type, ...]
    read: Callable[[str], Any] = str
    holds: Callable[[Any], bool] = lambda value: True


@dataclass(frozen=True)
class Setting:
    """One key. help: what it is. shown: its default in words, where `default` (of the option, None for none) does not say it."""

    key: str
    kind: Kind
    help: str
    default: Any = None
    shown: str = ""

    @property
    def variable(self) -> str:
        return f"HIP_{self.key.upper()}"

    def check(self, value: Any, name: str) -> Any:
        """`value` as it came from TOML; raises UsageError that says `name`."""
        why = ""
        try:
            # a boolean is an integer for Python, and not for a user
            if type(value) in self.kind.types and self.kind.holds(value):
                return value
        except ValueError as error:
            why = f" ({error})"
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        if isinstance(value, str) and str not in self.kind.types:
            shown = f"the text {shown}"
        raise UsageError(f"{name} must be {self.kind.wanted}, got {shown}{why}")

    def parse(self, text: str, name: str) -> Any:
        """The value of a shell's text; raises UsageError that says `name`."""
        try:
            value = self.kind.read(text)
        except ValueError:
            raise UsageError(f"{name} must be {self.kind.wanted}, got {text!r}") from None
        return self.check(value, name)


def parse_size(text: str, name: str) -> int:
    """Bytes of "20GB", "512 MB", "1000" or "24GiB"; units of 1000, of 1024 where an i says so. Raises UsageError that says `name`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.strip().upper())
    if not match:
        raise UsageError(f"{name} must be a size like 20GB or 500MB, got {text!r}")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " "))


def parse_age(text: str, name: str) -> float:
    """Seconds of "30d", "12h", "45min" or "2w". Raises UsageError that says `name`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)", text.strip().lower())
    if not match:
        raise UsageError(f"{name} must be an age like 30d, 12h or 2w, got {text!r}")
    return float(match[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]


def require_preset(name: str, option: str = "preset") -> None:
    """Refuse an attention preset that does not exist, or changes to one that cannot be; raises UsageError."""
    try:
        _is_preset(name)
    except ValueError as error:
        raise UsageError(f"--{option}: {error}") from None


def _is_preset(name: str) -> bool:
    from hipcli.kernels.presets import preset

    head, colon, changes = name.partition(":")
    preset(("default" if head == "auto" else head) + colon + changes)
    return True


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return word in _TRUE


def _is_folder(text: str) -> bool:
    try:
        # relative to which folder would depend on where hip is started
        return Path(text).expanduser().is_absolute()
    except RuntimeError:
        raise ValueError("no such user") from None


def _is_size(value: str | int) -> bool:
    try:
        return (value if isinstance(value, int) else parse_size(value, "")) >= 0
    except UsageError:
        return False


def _choice(names: tuple[str, ...]) -> Kind:
    return Kind(f"one of {', '.join(names)}", (str,), holds=names.__contains__)


_TEXT = Kind("a text that is not empty", (str,), holds=lambda text: bool(text.strip()))
_TRUTH = Kind("true or false", (bool,), read=_truth)
_FOLDER = Kind("a folder's full path, or one that begins with ~", (str,), holds=_is_folder)
_COUNT = Kind("a whole number, at least 1", (int,), read=int, holds=lambda count: count >= 1)

# those that are options of commands have the option's name and default
SETTINGS = {
    setting.key: setting
    for setting in (
        Setting("model", _TEXT, "the model used without --model", shown="SmolLM2-135M-Instruct"),
        Setting("device", _choice(DEVICES), "where to compute", "auto"),
        Setting("dtype", _choice(DTYPES), "number format of the model", "auto"),
        Setting("kv", _choice(PLACES), "where a GPU keeps keys and values", "auto"),
        Setting("preset", Kind("an attention preset", (str,), holds=_is_preset), "attention budget", "auto"),
        Setting("backend", _choice(BACKENDS), "implementation of the attention", "auto"),
        Setting("max_tokens", _COUNT, "longest answer, in tokens", 256),
        Setting(
            "temperature",
            Kind("a number, 0 or more", (int, float), float, lambda x: math.isfinite(x) and x >= 0),
            "0 takes the likeliest token",
            0.0,
        ),
        Setting(
            "top_p",
            Kind("a number above 0 and at most 1", (int, float), float, lambda x: 0 < x <= 1),
            "share of probability sampled from",
            1.0,
        ),
        Setting("system", _TEXT, "replaces the system prompt", shown="the built-in one"),
        Setting("strict", _TRUTH, "exit with 6 when pages could not be read", False),
        Setting("offline", _TRUTH, "never use the network", False),
        Setting("data_dir", _FOLDER, "where models are kept", shown="the system's folder for a user's data"),
        Setting("cache_dir", _FOLDER, "where sessions are kept", shown="the system's folder for a user's cache"),
        Setting(
            "cache_size",
            Kind("a size like 20GB or 500MB", (str, int), holds=_is_size),
            "what sessions may take",
            shown="a quarter of the free disk, at most 64 GB",
        ),
    )
}
OPTIONS = ("device", "dtype", "kv", "preset", "backend", "max_tokens", "temperature", "top_p", "system", "strict")


LOADERS = "loaders"  # a table of the file, with a command for each suffix; no variable, since variables are set by more than the user


def check_loader(suffix: str, command: Any, name: str) -> str:
    """A command that reads files of a suffix; raises UsageError that says `name`."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_+-]{0,19}", suffix):
        raise UsageError(
            f"{name} must name a file's suffix in small letters without the dot, got {suffix!r}", 'like: loaders.odt = "odt2txt {path}"'
        )
    try:
        parts = shlex.split(command) if isinstance(command, str) else []
    except ValueError as error:
        raise UsageError(f"{name} must be a command, got {command!r} ({str(error).lower()})") from None
    if not parts or "{path}" in parts[0] or not any("{path}" in part for part in parts):
        raise UsageError(f"{name} must be a command in which {{path}} stands for the file, got {command!r}", 'like: "odt2txt {path}"')
    return command


def loader_suffix(key: str) -> str | None:
    """The suffix of a key such as "loaders.odt", None for other keys."""
    table, dot, suffix = key.partition(".")
    return suffix.lower().removeprefix(".") if table == LOADERS and dot else None


def default(key: str) -> Any:
    """What an option is when nobody chose."""
    return SETTINGS[key].default


def require_key(name: str) -> Setting:
    """The setting called `name`; raises UsageError with the nearest that there is."""
    key = name.replace("-", "_")
    if key not in SETTINGS:
        raise UsageError(f"there is no setting {name!r}", near_hint(key))
    return SETTINGS[key]


def near_hint(name: str) -> str:
    """The key that was perhaps meant, else all of them."""
    import difflib

    near = difflib.get_close_matches(name.replace("-", "_").lower(), SETTINGS, 1)
    return f"did you mean {near[0]}?" if near else f"settings: {', '.join(SETTINGS)}"
