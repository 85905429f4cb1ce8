"""The command line: parses, dispatches, and alone turns faults into messages and exit codes.

Commands parse into a function that `main` runs, so that no fault passes through the parser's own
handling. Imports nothing heavy: `hip --help` needs typer and rich only.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Optional

import typer

from hipcli import __version__, config
from hipcli.config import Backend, Contexts, Dense, DenseBelow, Encoding, Files, Json, MaxTokens, Model, NoStream, Offline, Preset
from hipcli.config import Question, Questions, Quiet, Seed, Sources, SourcesAndQuestion, Spans, Strict, System, Temperature, TopP, Type
from hipcli.config import Verbose
from hipcli.console import StdoutClosed, Terminal
from hipcli.errors import DiskError, DoesNotFit, HipError
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
    model: Model = None, max_tokens: MaxTokens = 256, temperature: Temperature = 0.0, top_p: TopP = 1.0, seed: Seed = None,
    system: System = None, dense: Dense = False, dense_below: DenseBelow = None, preset: Preset = "auto", backend: Backend = "auto",
    encoding: Encoding = None, type: Type = None,
    no_stream: NoStream = False,
    as_json: Json = False, strict: Strict = False, quiet: Quiet = False, verbose: Verbose = False, offline: Offline = False,
) -> Work:
    """Answer a question about documents, naming the pages."""
    given = locals()

    def work() -> None:
        from hipcli import ask, questions as many
        from hipcli.pipeline import RunOptions

        sources, asked = ask.split_arguments(arguments or [], file or [], question, questions)
        options = RunOptions.chosen(sources, given, stream=not no_stream)
        terminal = Terminal(quiet=quiet, verbose=verbose, as_json=as_json)
        if questions is not None:
            many.ask_all(options, many.load_questions(questions), terminal)
        else:
            ask.ask(options, asked, terminal)

    return work


@app.command("summarize", epilog="Example:  hip summarize samples/lighthouse.pdf")
def _summarize(
    sources: Sources = None,
    file: Files = None,
    spans: Spans = None,
    model: Model = None, max_tokens: MaxTokens = 256, temperature: Temperature = 0.0, top_p: TopP = 1.0, seed: Seed = None,
    system: System = None, dense: Dense = False, dense_below: DenseBelow = None, preset: Preset = "auto", backend: Backend = "auto",
    encoding: Encoding = None, type: Type = None,
    as_json: Json = False, strict: Strict = False, quiet: Quiet = False, verbose: Verbose = False, offline: Offline = False,
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
    encoding: Encoding = None,
    type: Type = None,
    as_json: Json = False, strict: Strict = False, quiet: Quiet = False, verbose: Verbose = False,
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
    no_marks: Annotated[bool, typer.Option("--no-marks", help="Leave out the lines that name the pages.")] = False,
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
    model: Model = None,
    minutes: Annotated[float, typer.Option("--minutes", metavar="X", help="Time to spend at most.")] = 5.0,
    whole: Annotated[bool, typer.Option("--whole", help="Prefill whole contexts, however long, instead of sampling chunks.")] = False,
    preset: Preset = "auto",
    out: Annotated[Optional[str], typer.Option("--out", metavar="FILE", help="Add each row to this file of JSON lines.", show_default=False)] = None,
    as_json: Json = False,
) -> Work:
    """Measure this machine: sparse against dense attention."""

    def work() -> None:
        from hipcli import bench

        bench.run(context=context or [], json=as_json, model=model, minutes=minutes, whole=whole, preset=preset, out=out)

    return work


@app.command("doctor", epilog="Example:  hip doctor --json")
def _doctor(as_json: Json = False) -> Work:
    """Check this installation and machine, with a fix for what is wrong."""
    from hipcli import doctor

    return lambda: doctor.doctor(Terminal(as_json=as_json))


# signals in the order they came; libraries may replace the exception that a signal raised
_received: list[int] = []


def main() -> None:
    """Run the command line and exit with the code that errors.py and the signals define."""
    arguments = sys.argv[1:]
    as_json = "--json" in arguments[: arguments.index("--")] if "--" in arguments else "--json" in arguments
    try:
        _prepare()
        work = typer.main.get_command(app).main(arguments, prog_name="hip", standalone_mode=False)
        code = work() if callable(work) else work
        if _received:
            # the parser turns an interruption into a return value
            raise KeyboardInterrupt
    except BaseException as fault:
        code = _report(fault, as_json)
    sys.exit(_flush(int(code or 0)))


def _prepare() -> None:
    """Make the streams accept every character, and signals end the work where it stands."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")
    if not config.debug():
        import warnings

        warnings.simplefilter("ignore")
    for number in (signal.SIGINT, signal.SIGTERM):
        # a shell's background job ignores SIGINT on purpose
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: object) -> None:
    _received.append(number)
    # the second one ends the process at once
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _report(fault: BaseException, as_json: bool) -> int:
    """Print a fault as what, why and what next; returns its exit code."""
    if isinstance(fault, StdoutClosed) or isinstance(fault.__context__, BrokenPipeError):
        # the parser meets a closed pipe when it prints help, and exits
        return 0
    if isinstance(fault, SystemExit):
        return fault.code if isinstance(fault.code, int) else 1
    if config.debug():
        import traceback

        traceback.print_exception(fault)
    if _received or isinstance(fault, KeyboardInterrupt):
        number = _received[0] if _received else signal.SIGINT
        _print_fault("Interrupted" if number == signal.SIGINT else "Terminated", None, 128 + number, as_json, prefix="")
        return 128 + number
    if hasattr(fault, "format_message") and hasattr(fault, "exit_code"):
        # the parser's own complaint, whose class is not public
        if not as_json:
            fault.show()
        else:
            _print_fault(fault.format_message(), "see hip --help", fault.exit_code, as_json)
        return fault.exit_code
    known = fault if isinstance(fault, HipError) else _recognise(fault)
    _print_fault(known.message, known.hint, known.exit_code, as_json)
    return known.exit_code


def _recognise(fault: BaseException) -> HipError:
    """The HipError that a foreign exception amounts to."""
    text = " ".join(str(fault).split())[:300]
    starved = ("out of memory", "can't allocate memory", "not enough memory")
    if isinstance(fault, MemoryError) or any(words in text.lower() for words in starved):
        hint = "a smaller document or model; hip inspect shows the need"
        return DoesNotFit("there is not enough memory for this document with this model", hint)
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        hint = "free some space, or point HIP_DATA_DIR elsewhere"
        return DiskError(f"cannot write {fault.filename or 'to disk'}: {fault.strerror}", hint)
    return HipError(f"unexpected error: {type(fault).__name__}: {text}; run again with HIP_DEBUG=1 for the traceback")


def _print_fault(message: str, hint: str | None, code: int, as_json: bool, prefix: str = "hip: ") -> None:
    if as_json:
        import json

        lines = json.dumps({"error": {"code": code, "message": message, "hint": hint}}, ensure_ascii=False)
    else:
        lines = prefix + message + (f"\n  try: {hint}" if hint else "")
    Terminal().error(lines)


def _flush(code: int) -> int:
    """Flush stdout; a reader that has gone is no fault, and the interpreter must not complain of it at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code
