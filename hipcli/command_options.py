"""Which options belong together, said once: commands take groups of them.

A group maps a parameter's name to its annotation, from option_types.py, and its default; the user's
settings replace the defaults. Knows nothing of what options do.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Optional

import typer
from typer.core import TyperCommand

from hipcli import config, option_types
from hipcli.config_keys import default
from hipcli.errors import UsageError

Group = dict[str, tuple[Any, Any]]
Work = Callable[[], Optional[int]]

FILES: Group = {"file": (option_types.Files, None)}
SOURCES: Group = {"sources": (option_types.Sources, None)} | FILES
READING: Group = {
    "encoding": (option_types.Encoding, None),
    "type": (option_types.Type, None),
    "pages": (option_types.Pages, None),
    "password_file": (option_types.PasswordFile, None),
}
MODEL: Group = {"model": (option_types.Model, None)}
MACHINE: Group = {"device": (option_types.Device, default("device")), "dtype": (option_types.Dtype, default("dtype"))}
PLACE: Group = {
    "kv": (option_types.Kv, default("kv")),
    "kv_dtype": (option_types.KvDtype, "auto"),
    "gpu_memory": (option_types.GpuMemory, None),
    "host_memory": (option_types.HostMemory, None),
}
SAMPLING: Group = {
    "max_tokens": (option_types.MaxTokens, default("max_tokens")),
    "temperature": (option_types.Temperature, default("temperature")),
    "top_p": (option_types.TopP, default("top_p")),
    "seed": (option_types.Seed, None),
    "system": (option_types.System, default("system")),
}
DENSE: Group = {"dense": (option_types.Dense, False)}
PRESET: Group = {"preset": (option_types.Preset, default("preset"))}
ATTENTION: Group = (
    DENSE | {"dense_below": (option_types.DenseBelow, None)} | PRESET | {"backend": (option_types.Backend, default("backend"))}
)
OUTPUT: Group = {
    "as_json": (option_types.Json, False),
    "strict": (option_types.Strict, default("strict")),
    "quiet": (option_types.Quiet, False),
}
VERBOSE: Group = {"verbose": (option_types.Verbose, False)}
OFFLINE: Group = {"offline": (option_types.Offline, False)}
SESSION: Group = {"session": (option_types.SessionName, None), "no_session": (option_types.NoSession, False)}
SUMMARY: Group = {
    "length": (option_types.SummaryLength, "medium"),
    "by": (option_types.SummaryBy, "auto"),
    "focus": (option_types.Focus, None),
    "spans": (option_types.Spans, None),
    "markdown": (option_types.Markdown, False),
}
BATCH: Group = FILES | {
    "sources": (option_types.SourcesApart, None),
    "prompt": (option_types.Prompt, None),
    "questions": (option_types.Questions, None),
    "out": (option_types.Rows, None),
    "retry_failed": (option_types.RetryFailed, False),
    "engine": (option_types.Engine, "local"),
    "workers": (option_types.Workers, None),
    "export": (option_types.Export, None),
    "max_context": (option_types.MaxContext, None),
}
# what every command has that lets a model read documents
MANY: Group = MODEL | SAMPLING | ATTENTION | MACHINE | PLACE | READING | OUTPUT | VERBOSE | OFFLINE
RUN: Group = MANY | SESSION


class GivenOnce(TyperCommand):
    """A command that refuses an option with one value that is given two: the parser would drop the first one and not say so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            single = [option for option in given if option.param_type_name == "option" and not (option.is_flag or option.multiple)]
            for option in single:
                if single.count(option) > 1:
                    names = "/".join(reversed(option.opts))
                    hint = "many questions at once: --questions FILE" if option.name == "question" else None
                    raise UsageError(f"{names} was given {single.count(option)} times, and takes one value", hint)
        return super().parse_args(ctx, args)


def takes(*groups: Group) -> Callable[[Callable[[dict[str, Any]], Work]], Callable[..., Work]]:
    """Make a function of one dict a command with these options.

    The dict holds their values by name, those of the user's settings where no flag was given; "flags" names the flags that were.
    """
    options: Group = {}
    for group in groups:
        options |= group

    def decorate(function: Callable[[dict[str, Any]], Work]) -> Callable[..., Work]:
        def command(parsed: typer.Context, **given: Any) -> Work:
            flags = frozenset(name for name in given if parsed.get_parameter_source(name).name == "COMMANDLINE")
            # settings are read when the work begins, so that help never depends on them
            return lambda: function(config.fill(given, flags) | {"flags": flags})()

        kind = Parameter.POSITIONAL_OR_KEYWORD
        parameters = [Parameter(name, kind, default=value, annotation=type) for name, (type, value) in options.items()]
        command.__signature__ = Signature([Parameter("parsed", kind, annotation=typer.Context), *parameters])
        command.__annotations__ = {"parsed": typer.Context} | {name: type for name, (type, _) in options.items()}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        return command

    return decorate
