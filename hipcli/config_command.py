"""`hip config`: where the settings are, which hold and why, and changes to the file; and the command line for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hipcli import config, config_file
from hipcli.config_keys import LOADERS, SETTINGS, Setting, check_loader, loader_suffix, require_key
from hipcli.console import Terminal, visible, write_json, write_stdout
from hipcli.option_types import Json

config_app = typer.Typer(
    help="Show and change what holds for all runs.",
    epilog="Example:  hip config set model ~/models/qwen2.5-7b",
    rich_markup_mode=None,
    no_args_is_help=True,
)


def _keys(incomplete: str) -> list[str]:
    """Keys that begin so, for a shell's completion."""
    return [key for key in SETTINGS if key.startswith(incomplete)]


_Key = Annotated[
    str, typer.Argument(metavar="KEY", help="As `hip config show` lists them; loaders.SUFFIX for a command.", autocompletion=_keys)
]
_Value = Annotated[str, typer.Argument(metavar="VALUE", help="As the option of that name takes it; true or false for a switch.")]


@config_app.command("path", epilog="Example:  hip config path")
def _path(as_json: Json = False) -> Callable[[], None]:
    """Print the file of settings, which need not exist."""
    return lambda: path(Terminal(as_json=as_json))


@config_app.command("show", epilog="Example:  hip config show --json")
def _show(as_json: Json = False) -> Callable[[], None]:
    """Show every setting and where it comes from; a flag of a command wins over all."""
    return lambda: show(Terminal(as_json=as_json))


@config_app.command("set", epilog="Example:  hip config set max_tokens 512")
def _set(key: _Key, value: _Value, as_json: Json = False) -> Callable[[], None]:
    """Keep a setting in the file."""
    return lambda: set_(key, value, Terminal(as_json=as_json))


@config_app.command("unset", epilog="Example:  hip config unset max_tokens")
def _unset(key: _Key, as_json: Json = False) -> Callable[[], None]:
    """Take a setting out of the file."""
    return lambda: unset(key, Terminal(as_json=as_json))


def path(terminal: Terminal) -> None:
    """Print the path of the file."""
    if terminal.as_json:
        write_json({"schema_version": 1, "path": str(config.config_path())})
    else:
        write_stdout(f"{config.config_path()}\n")


def show(terminal: Terminal) -> None:
    """Print every setting, its value and origin. Raises UsageError for a file or variable that is wrong."""
    choices = {key: config.choice(key) for key in SETTINGS} | config.loader_choices()
    file = config.config_path()
    if terminal.as_json:
        rows = [{"key": key} | vars(chosen) | {"value": _value(SETTINGS.get(key), chosen.value)} for key, chosen in choices.items()]
        write_json({"schema_version": 1, "path": str(file), "exists": file.exists(), "settings": rows})
        return
    width = max(map(len, choices))
    for key, chosen in choices.items():
        where = {"environment": f"from {chosen.variable}", "file": f"from line {chosen.line} of the file", "default": "default"}
        write_stdout(visible(f"{key:<{width}}  {_words(SETTINGS.get(key), chosen.value)}  ({where[chosen.origin]})") + "\n")
    terminal.note(f"the file: {file}" + ("" if file.exists() else ", not there yet"))


def set_(key: str, text: str, terminal: Terminal) -> None:
    """Keep a value in the file. Raises UsageError for what cannot be set, DiskError."""
    suffix = loader_suffix(key)
    setting = None if suffix is not None else require_key(key)
    key = setting.key if setting else f"{LOADERS}.{suffix}"
    value = setting.parse(_absolute(setting, text), key) if setting else check_loader(suffix, text, key)
    file = config.config_path()
    config_file.store(file, key, value)
    if terminal.as_json:
        write_json({"schema_version": 1, "path": str(file), "key": key, "value": value})
    else:
        terminal.note(f"{key} = {_words(setting, value)}, kept in {file}")
    if setting:
        _tell_what_wins(setting, terminal)


def unset(key: str, terminal: Terminal) -> None:
    """Take a key, known or not, out of the file. Raises UsageError, DiskError."""
    file, removed = config.config_path(), None
    for name in dict.fromkeys((key, key.replace("-", "_"))):
        removed = removed or (name if config_file.remove(file, name) else None)
    if removed is None and loader_suffix(key) is None:
        # a key that is neither there nor known is a slip of the pen
        require_key(key)
    if terminal.as_json:
        write_json({"schema_version": 1, "path": str(file), "key": removed or key, "removed": removed is not None})
    else:
        terminal.note(f"{key} removed from {file}" if removed else f"{key} is not set in {file}")


def _absolute(setting: Setting, text: str) -> str:
    """Paths as they are from every folder: a model's name stays a name unless something of that name lies here."""
    if not text or text.startswith("~") or not (setting.key.endswith("_dir") or (setting.key == "model" and Path(text).exists())):
        return text
    return str(Path(text).absolute())


def _tell_what_wins(setting: Setting, terminal: Terminal) -> None:
    chosen = config.choice(setting.key)
    if chosen.origin == "environment":
        terminal.warn(f"{chosen.variable} is set too and wins over the file")


def _value(setting: Setting | None, value: Any) -> Any:
    """A value as it holds: the folder, where a default names none. setting: None for a loader."""
    folders = {"data_dir": config.data_dir, "cache_dir": config.cache_dir}
    return str(folders[setting.key]()) if setting and setting.key in folders else value


def _words(setting: Setting | None, value: Any) -> str:
    value = _value(setting, value)
    if isinstance(value, bool):
        return str(value).lower()
    return setting.shown if setting and value is None else str(value)
