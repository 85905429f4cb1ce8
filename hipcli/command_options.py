"""Which options belong together, said once: commands take groups of them.

A group maps a parameter's name to its annotation, from config.py, and its default. Knows nothing of what options do.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Optional

from hipcli import config

Group = dict[str, tuple[Any, Any]]
Work = Callable[[], Optional[int]]

FILES: Group = {"file": (config.Files, None)}
SOURCES: Group = {"sources": (config.Sources, None)} | FILES
READING: Group = {
    "encoding": (config.Encoding, None),
    "type": (config.Type, None),
    "pages": (config.Pages, None),
    "password_file": (config.PasswordFile, None),
}
MODEL: Group = {"model": (config.Model, None)}
MACHINE: Group = {"device": (config.Device, "auto"), "dtype": (config.Dtype, "auto")}
PLACE: Group = {"kv": (config.Kv, "auto")}
SAMPLING: Group = {
    "max_tokens": (config.MaxTokens, 256),
    "temperature": (config.Temperature, 0.0),
    "top_p": (config.TopP, 1.0),
    "seed": (config.Seed, None),
    "system": (config.System, None),
}
DENSE: Group = {"dense": (config.Dense, False)}
PRESET: Group = {"preset": (config.Preset, "auto")}
ATTENTION: Group = DENSE | {"dense_below": (config.DenseBelow, None)} | PRESET | {"backend": (config.Backend, "auto")}
OUTPUT: Group = {"as_json": (config.Json, False), "strict": (config.Strict, False), "quiet": (config.Quiet, False)}
VERBOSE: Group = {"verbose": (config.Verbose, False)}
OFFLINE: Group = {"offline": (config.Offline, False)}
SESSION: Group = {"session": (config.SessionName, None), "no_session": (config.NoSession, False)}
SUMMARY: Group = {
    "length": (config.SummaryLength, "medium"),
    "by": (config.SummaryBy, "auto"),
    "focus": (config.Focus, None),
    "spans": (config.Spans, None),
    "markdown": (config.Markdown, False),
}
# what every command has that lets a model read documents
RUN: Group = MODEL | SAMPLING | ATTENTION | MACHINE | PLACE | READING | OUTPUT | VERBOSE | OFFLINE | SESSION


def takes(*groups: Group) -> Callable[[Callable[[dict[str, Any]], Work]], Callable[..., Work]]:
    """Make a function of one dict a command with these options; the dict holds their values by name."""
    options: Group = {}
    for group in groups:
        options |= group

    def decorate(function: Callable[[dict[str, Any]], Work]) -> Callable[..., Work]:
        def command(**given: Any) -> Work:
            return function(given)

        kind = Parameter.POSITIONAL_OR_KEYWORD
        command.__signature__ = Signature(
            [Parameter(name, kind, default=value, annotation=type) for name, (type, value) in options.items()]
        )
        command.__annotations__ = {name: type for name, (type, _) in options.items()}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        return command

    return decorate
