"""One file of a batch as a document, and what a fault costs: that file, or the batch.

Knows no models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hipcli.batching.job import Task
from hipcli.console import Terminal
from hipcli.document import Document
from hipcli.errors import DiskError, HipError, InputError, ModelError
from hipcli.faults import recognise
from hipcli.input import read
from hipcli.inspection import check_complete
from hipcli.options import RunOptions


def read_task(task: Task, options: RunOptions, terminal: Terminal) -> Document:
    """Read a file, silently but for --verbose; raises every fault of a file, IncompleteError under --strict."""
    options = replace(options, sources=(task.path,))
    # one bar shows the whole batch
    document = read(options, Terminal(quiet=True))
    for warning in document.warnings:
        terminal.detail(warning)
    # before anything is spent on it; a later run would take its rows for whole
    check_complete(document, options)
    if task.sha256 and len(document.sources) == 1 and document.sources[0].sha256 != task.sha256:
        raise InputError(f"{document.sources[0].name} changed while it was waiting to be read", "run the same command again")
    return document


def fault_of(work: Callable[[], None]) -> HipError | None:
    """Do the work on one file; its fault, when it has one.

    Raises what concerns every file: ModelError, DiskError and interruptions.
    """
    try:
        work()
    except (ModelError, DiskError):
        raise
    except HipError as fault:
        return fault
    except Exception as fault:
        known = recognise(fault)
        if isinstance(known, DiskError):
            raise known from fault
        return known
    return None
