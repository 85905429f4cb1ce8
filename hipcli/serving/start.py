"""Starts a server: documents read, the model loaded, a worker on it, the application before it; and ends it in order.

The only file that knows all of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hipcli import config
from hipcli.console import Terminal, write_stdout
from hipcli.document import Document
from hipcli.input import read
from hipcli.loading import attention_settings, find_model, load
from hipcli.options import RunOptions
from hipcli.reuse import check_choices
from hipcli.serving.access import Access
from hipcli.serving.answering import Answerer
from hipcli.serving.app import make_app
from hipcli.serving.documents import Documents, file_name
from hipcli.serving.extracting import renamed
from hipcli.serving.fair_queue import FairQueue
from hipcli.serving.limits import Limits
from hipcli.serving.listener import listen, listening_socket, url_of
from hipcli.serving.service import Service
from hipcli.serving.shelf import Shelf
from hipcli.serving.worker import Worker


@dataclass(frozen=True)
class ServeOptions:
    """What a server was asked to be. files: documents that everyone may ask."""

    files: tuple[str, ...]
    host: str
    port: int
    access: Access
    limits: Limits


def serve(options: ServeOptions, run: RunOptions, terminal: Terminal) -> None:
    """Serve until a signal comes; raises every HipError before that."""
    attention_settings(run)
    check_choices(run)
    with ExitStack() as stack:
        listener = stack.enter_context(listening_socket(options.host, options.port))
        given = [_given(name, run, terminal) for name in options.files]
        documents = Documents(stack.enter_context(uploads_folder(run)), options.limits.documents)
        entries = [documents.give(document, name) for document, name in given]
        files = find_model(run, terminal)
        model = load(files, run, terminal)
        worker = stack.enter_context(_working(_shelf(model, files, run, terminal, options.limits, documents), options, terminal))
        answerer = Answerer(worker.shelf, options.limits)
        service = Service(documents, worker, answerer, options.limits, files.name, terminal)

        def on_start() -> None:
            for entry in entries:
                service.read_ahead(entry)
            # the one line that programs wait for
            write_stdout(url_of(listener) + "\n")
            terminal.note(f"{files.name} ({model.dtype_name} on {model.device}), {documents.count} documents; Ctrl-C ends")

        listener.listen(options.limits.connections)
        listen(make_app(service, options.access, on_start), listener, options.limits, worker.stop)


def _given(name: str, run: RunOptions, terminal: Terminal) -> tuple[Document, str]:
    """A document of the command line; clients are told what it is called, not where it lies."""
    shown = file_name(name.rstrip("/"))
    return renamed(read(replace(run, sources=(name,)), terminal), name, shown), shown


@contextmanager
def uploads_folder(run: RunOptions) -> Iterator[Path]:
    """The folder of uploads; one that goes with the server where nothing is to be kept."""
    if not run.no_session:
        yield config.cache_dir() / "serve" / "uploads"
        return
    folder = tempfile.mkdtemp(prefix="hip-serve-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _shelf(model, files, run: RunOptions, terminal: Terminal, limits: Limits, documents: Documents) -> Shelf:
    from hipcli.tokens import load_tokenizer

    tokenizer = load_tokenizer(files.path)
    if tokenizer.prompt_format != "chat":
        terminal.warn(f"{files.name} has no chat template that works: it is asked in plain text")
    return Shelf(model, files, tokenizer, run, terminal, limits.loaded, documents.note_session)


@contextmanager
def _working(shelf: Shelf, options: ServeOptions, terminal: Terminal) -> Iterator[Worker]:
    """A worker, which in the end has saved what was read."""
    worker = Worker(FairQueue(options.limits.backlog, options.access.owners), shelf, terminal)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        with terminal.phase("saving sessions"):
            worker.join()
