"""What a user chose for all runs: the environment, read here alone, before the file of settings, before the defaults.

Knows nothing of what is done with them; a command lets its flag win over all three. config_keys.py lists the settings.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli import config_file
from hipcli.config_keys import OPTIONS, SETTINGS, loader_suffix
from hipcli.config_keys import parse_age as parse_age
from hipcli.config_keys import parse_size as parse_size
from hipcli.config_keys import require_preset as require_preset
from hipcli.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """A setting's value and its origin: "environment", "file" or "default"; the variable or the line where there is one."""

    value: Any
    origin: str
    variable: str | None = None
    line: int | None = None


def config_path() -> Path:
    """The file of settings, HIP_CONFIG or the one of this user; it need not exist."""
    if chosen := _folder("HIP_CONFIG"):
        return chosen
    from platformdirs import user_config_path

    return user_config_path("hip") / "config.toml"


def choice(key: str) -> Choice:
    """What holds for a setting when no flag is given; raises UsageError for a variable or file that is wrong."""
    setting = SETTINGS[key]
    if text := os.environ.get(setting.variable):
        # a shell knows where it stands, so its folders may be relative
        text = str(_folder(setting.variable)) if key.endswith("_dir") else text
        return Choice(setting.parse(text, setting.variable), "environment", variable=setting.variable)
    if key == "offline" and os.environ.get("HF_HUB_OFFLINE", "").strip().lower() not in ("", "0", "false", "no", "off"):
        return Choice(True, "environment", variable="HF_HUB_OFFLINE")
    entry = config_file.load(config_path()).get(key)
    return Choice(entry.value, "file", line=entry.line) if entry else Choice(setting.default, "default")


def fill(given: dict[str, Any], flags: Collection[str]) -> dict[str, Any]:
    """A command's values, with the user's settings for the options that no flag chose; raises UsageError."""
    return given | {key: choice(key).value for key in OPTIONS if key in given and key not in flags}


def data_dir() -> Path:
    """Folder that holds the models; it need not exist yet."""
    if chosen := choice("data_dir").value:
        return Path(chosen).expanduser()
    from platformdirs import user_data_path

    return user_data_path("hip")


def cache_dir() -> Path:
    """Folder that holds sessions and what else can be made anew; it need not exist yet."""
    if chosen := choice("cache_dir").value:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("hip")


def cache_budget() -> int | None:
    """Bytes that sessions may take, None for the default; raises UsageError."""
    size = choice("cache_size").value
    return parse_size(size, "cache_size") if isinstance(size, str) else size


def default_model() -> str | None:
    """The model that the user set, None when the built-in default is meant."""
    return choice("model").value


def loaders() -> dict[str, str]:
    """Commands of the user's that read files of a suffix; raises UsageError."""
    return {key.partition(".")[2]: chosen.value for key, chosen in loader_choices().items()}


def loader_choices() -> dict[str, Choice]:
    """The settings "loaders.SUFFIX", which come from the file alone; raises UsageError."""
    entries = config_file.load(config_path())
    return {key: Choice(entry.value, "file", line=entry.line) for key, entry in entries.items() if loader_suffix(key)}


def offline() -> bool:
    """Whether the user forbids the network."""
    return choice("offline").value


def debug() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("HIP_DEBUG", "").strip().lower() not in ("", "0", "false", "no", "off")


def serve_token() -> str | None:
    """A token of `hip serve`. It has no key: a secret does not belong into a file of settings that is printed."""
    return os.environ.get("HIP_SERVE_TOKEN") or None


def ray_address() -> str | None:
    """The Ray cluster that the user's shell names, None for none."""
    return os.environ.get("RAY_ADDRESS") or None


def forbid_ray_telemetry() -> None:
    """Ray, which reads this when it is first imported, tells nobody that it runs."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def plain_terminal() -> bool:
    """Whether the user's shell asks for output without escape codes."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "") in ("dumb", "unknown")


def _folder(name: str) -> Path | None:
    """The path that a variable names, made absolute; raises UsageError."""
    chosen = os.environ.get(name)
    try:
        return Path(chosen).expanduser().absolute() if chosen else None
    except RuntimeError:
        raise UsageError(f"{name} names the home of a user who does not exist: {chosen}") from None
