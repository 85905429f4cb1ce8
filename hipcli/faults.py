"""Exceptions and signals into messages and exit codes: what, why, what next. The one place that prints a fault.

Imports nothing heavy. Knows nothing of commands.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import threading

from hipcli import config
from hipcli.console import StdoutClosed, Terminal
from hipcli.errors import DiskError, DoesNotFit, HipError

# signals in the order they came; libraries may replace the exception that a signal raised
_received: list[int] = []


def prepare() -> None:
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
    sys.unraisablehook = _again


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt when a signal came and something swallowed what it raised."""
    if _received:
        raise KeyboardInterrupt


def _on_signal(number: int, frame: object) -> None:
    _received.append(number)
    # the second one ends the process at once
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _again(lost: object) -> None:
    """Raise once more what a signal raised where Python drops exceptions, as while an object is being deleted."""
    if lost.exc_type is not KeyboardInterrupt or not _received:
        sys.__unraisablehook__(lost)
        return
    number = _received.pop()
    signal.signal(number, _on_signal)
    # not from here: what a handler raises inside of this would be dropped as well
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()


def report(fault: BaseException, as_json: bool) -> int:
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
    known = fault if isinstance(fault, HipError) else recognise(fault)
    _print_fault(known.message, known.hint, known.exit_code, as_json)
    return known.exit_code


def recognise(fault: BaseException) -> HipError:
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


def leave(code: int) -> None:
    """End the process with `code`, at once.

    A reader of stdout that has gone is no fault. Taking the interpreter and torch apart would cost two seconds, with the
    answer on the screen and the prompt not yet back.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            pass
    atexit._run_exitfuncs()
    os._exit(code)
