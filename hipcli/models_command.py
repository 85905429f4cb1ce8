"""`hip models`: list, fetch, locate and remove models, and the command line for it.

Knows nothing of how a model is fetched or made usable.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hipcli import config
from hipcli.option_types import Json, Offline, Quiet, Spec
from hipcli.console import Terminal, amount, visible, write_json, write_stdout

if TYPE_CHECKING:
    from hipcli.models import ModelFiles


models_app = typer.Typer(
    help="List, fetch, locate and remove models.", epilog="Example:  hip models get", rich_markup_mode=None, no_args_is_help=True
)


@models_app.command("ls", epilog="Example:  hip models ls --json")
def _models_ls(as_json: Json = False) -> Callable[[], None]:
    """List the models that are here."""
    return lambda: list_(Terminal(as_json=as_json))


@models_app.command("get", epilog="Example:  hip models get")
def _models_get(spec: Spec = None, as_json: Json = False, quiet: Quiet = False, offline: Offline = False) -> Callable[[], None]:
    """Fetch a model, by default the built-in one, and print its folder."""
    return lambda: get(spec, offline, Terminal(quiet=quiet, as_json=as_json))


@models_app.command("path", epilog="Example:  hip models path default")
def _models_path(spec: Spec = None, as_json: Json = False) -> Callable[[], None]:
    """Print a model's folder, or the folder that holds all models."""
    return lambda: path(spec, Terminal(as_json=as_json))


@models_app.command("rm", epilog="Example:  hip models rm SmolLM2-135M-Instruct")
def _models_rm(name: Annotated[str, typer.Argument(help="As `hip models ls` shows it.")], as_json: Json = False) -> Callable[[], None]:
    """Delete a model's files."""
    return lambda: remove(name, Terminal(as_json=as_json))


def list_(terminal: Terminal) -> None:
    """Print every model that is here."""
    from hipcli.models import list_models

    found = list_models(config.data_dir())
    if terminal.as_json:
        write_json({"schema_version": 1, "models": [_record(files) for files in found]})
    elif not found:
        terminal.note(f"no models in {home_short(config.data_dir())}; fetch the default one: hip models get")
    else:
        width = max(len(files.name) for files in found)
        for files in found:
            write_stdout(f"{visible(files.name):<{width}}  {amount(files.size_bytes, 'bytes'):>9}  {files.origin}\n")


def get(spec: str | None, offline: bool, terminal: Terminal) -> None:
    """Fetch a model unless it is here, and print its folder; raises ModelError."""
    files = _obtain(spec, offline, terminal)
    _show(files, terminal)


def path(spec: str | None, terminal: Terminal) -> None:
    """Print a model's folder, without a name the folder that holds the models; raises ModelError when it is not here."""
    if spec is not None:
        _show(_obtain(spec, True, terminal), terminal)
    elif terminal.as_json:
        write_json({"schema_version": 1, "path": str(config.data_dir())})
    else:
        write_stdout(f"{config.data_dir()}\n")


def remove(name: str, terminal: Terminal) -> None:
    """Delete a model's files; raises ModelError for an unknown name."""
    from hipcli.models import remove_model

    freed = remove_model(name, config.data_dir())
    if terminal.as_json:
        write_json({"schema_version": 1, "removed": name, "freed_bytes": freed})
    else:
        terminal.note(f"removed {name}, {amount(freed, 'bytes')} freed")


def _obtain(spec: str | None, offline: bool, terminal: Terminal) -> "ModelFiles":
    from hipcli.models import obtain_model

    wanted = spec or config.default_model()
    return obtain_model(wanted, data_dir=config.data_dir(), offline=offline or config.offline(), progress=terminal.sink())


def _show(files: "ModelFiles", terminal: Terminal) -> None:
    if terminal.as_json:
        write_json({"schema_version": 1, **_record(files)})
    else:
        write_stdout(f"{files.path}\n")


def _record(files: "ModelFiles") -> dict[str, Any]:
    return {
        "name": files.name,
        "path": str(files.path),
        "origin": files.origin,
        "size_bytes": files.size_bytes,
        "digest": files.digest,
    }


def home_short(path: Any) -> str:
    """A path with the home folder written as ~, fit to be pasted into a report."""
    try:
        return str(Path("~") / Path(path).relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path)
