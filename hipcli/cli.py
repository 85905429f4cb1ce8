"""The command line: parses and dispatches.

Commands parse into a function that `main` runs, so that no fault passes through the parser's own
handling. Imports nothing heavy: `hip --help` needs typer and rich only.
"""

import sys
from typing import Annotated, Any, Optional

import typer

from hipcli import __version__, faults, option_types
from hipcli.command_options import BATCH, DENSE, FILES, MACHINE, MANY, MODEL, OFFLINE, OUTPUT, PLACE, PRESET, READING, RUN, SOURCES
from hipcli.command_options import SUMMARY, VERBOSE, GivenOnce, Work, takes
from hipcli.config_command import config_app
from hipcli.console import Terminal
from hipcli.errors import UsageError
from hipcli.help_command import help_on, names
from hipcli.models_command import models_app
from hipcli.serve_command import SERVE_GROUPS, serve
from hipcli.sessions_command import sessions_app
from hipcli.topics import TOPICS

app = typer.Typer(
    name="hip",
    help="Ask questions of documents far longer than a model's window, losing nothing.",
    epilog='Example:  hip ask samples/lighthouse.pdf "When was the lamp first lit?"\n\nTopics:  hip help environment|exit-codes|formats',
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)
app.add_typer(models_app, name="models")
app.add_typer(sessions_app, name="sessions")
app.add_typer(config_app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hip {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _terminal(given: dict[str, Any]) -> Terminal:
    return Terminal(quiet=given["quiet"], verbose=given.get("verbose", False), as_json=given["as_json"])


def _sources(given: dict[str, Any]) -> list[str]:
    return [*(given["file"] or []), *(given["sources"] or [])]


ASKED = {
    "arguments": (option_types.SourcesAndQuestion, None),
    "question": (option_types.Question, None),
    "questions": (option_types.Questions, None),
    "out": (option_types.Out, None),
}
CITING = {"cite": (option_types.Cite, "auto"), "map": (option_types.Map, False), "map_file": (option_types.MapFile, None)}


ASKING = {"no_stream": (option_types.NoStream, False), "check": (option_types.Check, False), "plan": (option_types.PlanOnly, False)}


@app.command("ask", cls=GivenOnce, epilog='Example:  hip ask samples/lighthouse.pdf "When was the lamp first lit?"')
@takes(ASKED, FILES, RUN, CITING, ASKING)
def _ask(given: dict[str, Any]) -> Work:
    """Answer a question about documents, naming the pages."""

    def work() -> None:
        from hipcli import ask
        from hipcli import questions as many
        from hipcli.citing import CiteOptions
        from hipcli.options import RunOptions

        questions, out, check = given["questions"], given["out"], given["check"]
        if out is not None and questions is None:
            raise UsageError("--out keeps the answers of --questions", "redirect a single answer: hip ask … > FILE")
        sources, asked = ask.split_arguments(given["arguments"] or [], given["file"] or [], given["question"], questions)
        options, terminal = RunOptions.chosen(sources, given, stream=not given["no_stream"]), _terminal(given)
        cite = CiteOptions(given["cite"], given["map"], given["map_file"])
        if given["plan"]:
            from hipcli.inspection import inspect

            inspect(options, terminal)
        elif questions is not None:
            many.ask_all(options, many.load_questions(questions), terminal, check, out, cite)
        else:
            ask.ask(options, asked, terminal, check, cite)

    return work


@app.command("summarize", cls=GivenOnce, epilog="Example:  hip summarize samples/lighthouse.pdf")
@takes(SOURCES, SUMMARY, RUN, {"max_tokens": (option_types.SummaryTokens, None)})
def _summarize(given: dict[str, Any]) -> Work:
    """Summarise documents, showing that every page was covered."""

    def work() -> None:
        from hipcli.options import RunOptions
        from hipcli.summarize import LENGTHS, SummaryChoice, summarize

        choice = SummaryChoice(**{name: given[name] for name in (*SUMMARY, "as_json")})
        if given["max_tokens"] is None:
            given["max_tokens"] = LENGTHS[choice.length].merged_tokens
        summarize(RunOptions.chosen(_sources(given), given), choice, _terminal(given))

    return work


@app.command("chat", cls=GivenOnce, epilog="Example:  hip chat samples/lighthouse.pdf")
@takes(SOURCES, RUN)
def _chat(given: dict[str, Any]) -> Work:
    """Talk about documents: one question after the other, the earlier ones in mind."""

    def work() -> None:
        from hipcli.chat import chat
        from hipcli.options import RunOptions

        chat(RunOptions.chosen(_sources(given), given), _terminal(given))

    return work


@app.command("serve", cls=GivenOnce, epilog="Example:  hip serve samples/lighthouse.pdf")
@takes(*SERVE_GROUPS)
def _serve(given: dict[str, Any]) -> Work:
    """Serve a page and an OpenAI-compatible API for questions about documents."""
    return lambda: serve(given)


@app.command("batch", cls=GivenOnce, epilog='Example:  hip batch samples/ --prompt "When was it built?" --out rows.jsonl')
@takes(BATCH, MANY)
def _batch(given: dict[str, Any]) -> Work:
    """Ask the same of many files, each a document of its own; goes on where an earlier run ended."""

    def work() -> None:
        from hipcli.batching.job import BatchJob, chosen_questions, context_tokens, required_out
        from hipcli.batching.run import batch
        from hipcli.options import RunOptions

        job = BatchJob(
            RunOptions.chosen(_sources(given), given, no_session=True),
            chosen_questions(given["prompt"], given["questions"]),
            required_out(given["out"]),
            max_context=context_tokens(given["max_context"]),
            **{name: given[name] for name in ("retry_failed", "engine", "workers", "export")},
        )
        batch(job, _terminal(given))

    return work


@app.command("inspect", cls=GivenOnce, epilog="Example:  hip inspect samples/lighthouse.pdf")
@takes(SOURCES, {"warnings": (option_types.Warnings, False)}, MODEL, DENSE, PRESET, MACHINE, PLACE, READING, OUTPUT, VERBOSE, OFFLINE)
def _inspect(given: dict[str, Any]) -> Work:
    """Tell what was read of documents, and whether they fit."""

    def work() -> None:
        from hipcli.inspection import inspect
        from hipcli.options import RunOptions

        inspect(RunOptions.chosen(_sources(given), given), _terminal(given), given["warnings"])

    return work


@app.command("extract", cls=GivenOnce, epilog="Example:  hip extract samples/lighthouse.pdf")
@takes(SOURCES, {"no_marks": (option_types.NoMarks, False)}, READING, OUTPUT, OFFLINE)
def _extract(given: dict[str, Any]) -> Work:
    """Print the text of documents as a model would be given it."""

    def work() -> None:
        from hipcli.extraction import extract
        from hipcli.options import RunOptions

        extract(RunOptions.chosen(_sources(given), given), _terminal(given), marks=not given["no_marks"])

    return work


MEASURED = {
    "context": (option_types.Contexts, None),
    "shape": (option_types.Shape, None),
    "part": (option_types.Parts, None),
    "minutes": (option_types.Minutes, 5.0),
    "whole": (option_types.Whole, False),
    "out": (option_types.Out, None),
    "plot": (option_types.Plot, None),
    "as_json": (option_types.Json, False),
}
SUITE = {
    "suite": (option_types.Suites, None),
    "task": (option_types.Tasks, None),
    "samples": (option_types.Samples, None),
    "pack": (option_types.Pack, None),
    "text": (option_types.Texts, None),
    "data": (option_types.Data, None),
    "attention": (option_types.Attentions, None),
    "scoring": (option_types.Scoring, None),
    "check": (option_types.Check, False),
    "seed": (option_types.Seed, None),
    "dense_below": (option_types.DenseBelow, None),
}


@app.command("bench", cls=GivenOnce, epilog="Example:  hip bench --context 64K")
@takes(MODEL, PRESET, MACHINE, PLACE, MEASURED, SUITE)
def _bench(given: dict[str, Any]) -> Work:
    """Measure this machine: sparse against dense attention, their speed or, with --suite, what they find."""

    def work() -> None:
        from hipcli.suite.command import bench_or_suite

        bench_or_suite(given)

    return work


@app.command("doctor", epilog="Example:  hip doctor --report")
def _doctor(as_json: option_types.Json = False, report: option_types.Report = False) -> Work:
    """Check this installation and machine, with a fix for what is wrong."""
    from hipcli import doctor

    if as_json and report:
        raise UsageError("--json and --report are two ways to print one thing, so not both")
    return lambda: doctor.doctor(Terminal(as_json=as_json), report)


_Topic = Annotated[
    Optional[list[str]], typer.Argument(metavar="[TOPIC|COMMAND]", help="; ".join(TOPICS), show_default=False, autocompletion=names)
]


@app.command("help", epilog="Example:  hip help exit-codes")
def _help(parsed: typer.Context, topic: _Topic = None) -> Work:
    """Explain exit codes, environment variables, formats, or a command."""
    return lambda: help_on(topic or [], parsed.parent)


def main() -> None:
    """Run the command line and exit with the code that errors.py and the signals define."""
    arguments = sys.argv[1:]
    as_json = "--json" in arguments[: arguments.index("--")] if "--" in arguments else "--json" in arguments
    try:
        faults.prepare()
        work = typer.main.get_command(app).main(arguments, prog_name="hip", standalone_mode=False)
        code = work() if callable(work) else work
        # the parser turns an interruption into a return value
        faults.raise_if_interrupted()
    except BaseException as fault:
        code = faults.report(fault, as_json)
    faults.leave(int(code or 0))
