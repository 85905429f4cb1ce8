"""`hip doctor --report`: what the checks found, as Markdown to paste into a bug tracker, with nothing that says who or where you are.

Knows no checks. Names of models stay: they are what a fault is about.
"""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hipcli import config
from hipcli.config_keys import SETTINGS
from hipcli.errors import UsageError
from hipcli.models_command import home_short

_PATH = re.compile(r"(?<![\w.~:/])(?:~|[A-Za-z]:)?[/\\][^\s'\"`,;:()]*")
_SHORTEST_NAME = 3  # a user called "a" is in every word


def report(rows: Iterable[tuple[str, str, str]]) -> str:
    """Markdown of (state, name, detail) rows, and of the settings that are not the default."""
    lines = [f"{state:<4}  {name}: {detail}" for state, name, detail in rows]
    lines += [f"set   {key} (from the {origin})" for key, origin in _set()]
    return f"```text\n{without_names(chr(10).join(lines))}\n```\n"


def without_names(text: str, names: Sequence[str] | None = None) -> str:
    """`text` with folders, the user and the machine replaced by what they are. names: of both, None finds out."""
    for folder in _folders():  # first as they are: their names may hold spaces
        text = text.replace(folder, "<path>")
    text = _PATH.sub("<path>", text).replace("<path><path>", "<path>")
    for name in _names() if names is None else names:
        if len(name) >= _SHORTEST_NAME:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<name>", text)
    return text


def _folders() -> list[str]:
    """The folders that checks name, in both ways of writing them, longest first."""
    known = [config.config_path()]
    try:
        model = config.default_model() or ""
        known += [config.data_dir(), config.cache_dir(), *([Path(model).absolute()] if "/" in model else [])]
    except UsageError:
        pass  # settings that are wrong name no folders; a check says what is wrong with them
    return sorted({written for path in known for written in (str(path), home_short(path))}, key=len, reverse=True)


def _names() -> list[str]:
    host = platform.node()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user, as in some containers
        user = ""
    # a superuser's name tells nothing, and is a word
    return sorted({user, Path.home().name, host, host.split(".")[0]} - {"root"}, key=len, reverse=True)


def _set() -> list[tuple[str, str]]:
    """Keys that the user set, with their origin; no values, which may name files."""
    try:
        chosen = {key: config.choice(key) for key in SETTINGS} | config.loader_choices()
    except UsageError:
        return []
    return [(key, choice.origin) for key, choice in chosen.items() if choice.origin != "default"]
