"""The command line: parses and dispatches.

Commands parse into a function that `main` runs, so that no fault passes through the parser's own
handling. Imports nothing heavy: `hip --help` needs typer and rich only.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Optional

import typer

from hipcli import __version__, faults
from hipcli.config import Backend, Check, Cite, Contexts, Dense, DenseBelow, Device, Dtype, Encoding, Files, Json, MaxTokens, Minutes, Model
from hipcli.config import NoMarks, NoStream, Offline, Out, Parts, Plot, Preset, Question, Questions, Quiet, Seed, Shape, Sources
from hipcli.config import Attentions, Data, Pack, Samples, Scoring, Suites, Tasks, Texts
from hipcli.config import Map, MapFile, SourcesAndQuestion, Spans, Strict, System, Temperature, TopP, Type, Verbose, Whole
from hipcli.console import Terminal
from hipcli.models_command import models_app

Work = Callable[[], Optional[int]]

app = typer.Typer(
    name="hip",
    help="Ask questions of documents far longer than a model's window, losing nothing.",
    epilog='Example:  hip ask samples/lighthouse.pdf "When was the lamp first lit?"',
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)
app.add_typer(models_app, name="models")


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


@app.command("ask", epilog='Example:  hip ask samples/lighthouse.pdf "When was the lamp first lit?"')
def _ask(
    arguments: SourcesAndQuestion = None,
    question: Question = None,
    questions: Questions = None,
    file: Files = None,
    model: Model = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    system: System = None,
    dense: Dense = False,
    dense_below: DenseBelow = None,
    preset: Preset = "auto",
    backend: Backend = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    encoding: Encoding = None,
    type: Type = None,
    no_stream: NoStream = False,
    check: Check = False,
    cite: Cite = "auto",
    map: Map = False,
    map_file: MapFile = None,
    as_json: Json = False,
    strict: Strict = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    offline: Offline = False,
) -> Work:
    """Answer a question about documents, naming the pages."""
    given = locals()

    def work() -> None:
        from hipcli import ask, questions as many
        from hipcli.citing import CiteOptions
        from hipcli.pipeline import RunOptions

        sources, asked = ask.split_arguments(arguments or [], file or [], question, questions)
        options = RunOptions.chosen(sources, given, stream=not no_stream)
        terminal = Terminal(quiet=quiet, verbose=verbose, as_json=as_json)
        citing = CiteOptions(cite, map, map_file)
        if questions is not None:
            many.ask_all(options, many.load_questions(questions), terminal, check, citing)
        else:
            ask.ask(options, asked, terminal, check, citing)

    return work


@app.command("summarize", epilog="Example:  hip summarize samples/lighthouse.pdf")
def _summarize(
    sources: Sources = None,
    file: Files = None,
    spans: Spans = None,
    model: Model = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    system: System = None,
    dense: Dense = False,
    dense_below: DenseBelow = None,
    preset: Preset = "auto",
    backend: Backend = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    encoding: Encoding = None,
    type: Type = None,
    as_json: Json = False,
    strict: Strict = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    offline: Offline = False,
) -> Work:
    """Summarise documents, showing that every page was covered."""
    given = locals()

    def work() -> None:
        from hipcli.pipeline import RunOptions
        from hipcli.summarize import summarize

        options = RunOptions.chosen([*(file or []), *(sources or [])], given)
        summarize(options, spans, Terminal(quiet=quiet, verbose=verbose, as_json=as_json))

    return work


@app.command("inspect", epilog="Example:  hip inspect samples/lighthouse.pdf")
def _inspect(
    sources: Sources = None,
    file: Files = None,
    model: Model = None,
    dense: Dense = False,
    preset: Preset = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    encoding: Encoding = None,
    type: Type = None,
    as_json: Json = False,
    strict: Strict = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Work:
    """Tell what was read of documents, and whether they fit."""
    given = locals()

    def work() -> None:
        from hipcli.inspection import inspect
        from hipcli.pipeline import RunOptions

        options = RunOptions.chosen([*(file or []), *(sources or [])], given)
        inspect(options, Terminal(quiet=quiet, verbose=verbose, as_json=as_json))

    return work


@app.command("extract", epilog="Example:  hip extract samples/lighthouse.pdf")
def _extract(
    sources: Sources = None,
    file: Files = None,
    no_marks: NoMarks = False,
    encoding: Encoding = None,
    type: Type = None,
    as_json: Json = False,
    strict: Strict = False,
    quiet: Quiet = False,
) -> Work:
    """Print the text of documents as a model would be given it."""
    given = locals()

    def work() -> None:
        from hipcli.extraction import extract
        from hipcli.pipeline import RunOptions

        options = RunOptions.chosen([*(file or []), *(sources or [])], given)
        extract(options, Terminal(quiet=quiet, as_json=as_json), marks=not no_marks)

    return work


@app.command("bench", epilog="Example:  hip bench --context 64K")
def _bench(
    context: Contexts = None,
    suite: Suites = None,
    task: Tasks = None,
    samples: Samples = None,
    pack: Pack = None,
    text: Texts = None,
    data: Data = None,
    attention: Attentions = None,
    scoring: Scoring = None,
    check: Check = False,
    seed: Seed = None,
    dense_below: DenseBelow = None,
    model: Model = None,
    shape: Shape = None,
    part: Parts = None,
    minutes: Minutes = 5.0,
    whole: Whole = False,
    preset: Preset = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Out = None,
    plot: Plot = None,
    as_json: Json = False,
) -> Work:
    """Measure this machine: sparse against dense attention, their speed or, with --suite, what they find."""
    given = locals()

    def work() -> None:
        from hipcli.suite.command import bench_or_suite

        bench_or_suite(given)

    return work


@app.command("doctor", epilog="Example:  hip doctor --json")
def _doctor(as_json: Json = False) -> Work:
    """Check this installation and machine, with a fix for what is wrong."""
    from hipcli import doctor

    return lambda: doctor.doctor(Terminal(as_json=as_json))


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
