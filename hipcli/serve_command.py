"""`hip serve`: the command line of the server. Knows nothing of how it works."""

from typing import Any

from hipcli import option_types
from hipcli.command_options import ATTENTION, Group, MACHINE, MODEL, OFFLINE, PLACE, READING, SAMPLING, SOURCES, VERBOSE
from hipcli.console import Terminal

SERVED: Group = SOURCES | {
    "host": (option_types.Host, "127.0.0.1"),
    "port": (option_types.Port, 8642),
    "token_file": (option_types.TokenFile, None),
    "allow_host": (option_types.AllowHosts, None),
    "backlog": (option_types.Backlog, 64),
    "loaded": (option_types.Loaded, 4),
    "documents": (option_types.MostDocuments, 100),
    "upload_size": (option_types.UploadSize, "100MB"),
    "upload_pages": (option_types.UploadPages, 10_000),
    "upload_seconds": (option_types.UploadSeconds, 120.0),
}
SERVE_GROUPS = (
    *(SERVED, MODEL, SAMPLING, ATTENTION, MACHINE, PLACE, READING),
    {"no_session": (option_types.NoSession, False), "quiet": (option_types.Quiet, False)},
    *(VERBOSE, OFFLINE),
)


def serve(given: dict[str, Any]) -> None:
    """Serve until a signal comes; raises every HipError."""
    from hipcli import config
    from hipcli.errors import UsageError
    from hipcli.options import RunOptions
    from hipcli.serving.access import open_access
    from hipcli.serving.limits import Limits

    try:
        import multipart  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
        from starlette import applications  # noqa: F401
    except ImportError as fault:
        raise UsageError(f"hip serve needs {fault.name}, which is not installed", "pip install 'hipcli[serve]'") from None
    files, terminal = [*(given["file"] or []), *(given["sources"] or [])], Terminal(quiet=given["quiet"], verbose=given["verbose"])
    counts = {name: given[name] for name in ("backlog", "loaded", "documents", "upload_pages", "upload_seconds")}
    limits = Limits(upload_bytes=config.parse_size(given["upload_size"], "--upload-size"), **counts)
    access = open_access(given["host"], given["allow_host"] or (), given["token_file"], config.serve_token(), terminal.warn)
    # documents may also come later
    run = RunOptions.chosen(files or ["uploads"], given)
    # only now, since it brings torch
    from hipcli.serving.start import ServeOptions, serve

    serve(ServeOptions(tuple(files), given["host"], given["port"], access, limits), run, terminal)
