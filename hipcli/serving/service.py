"""What a server does, between its protocols and its worker: finds the document, hands the question in, passes on what comes.

Lives in the event loop. Knows nothing of routes or headers.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hipcli.console import Terminal
from hipcli.serving.answering import Answered, Answerer
from hipcli.serving.asking import Ask
from hipcli.serving.documents import Documents, Entry, file_name, suffix_of
from hipcli.serving.events import comment
from hipcli.serving.extracting import extract
from hipcli.serving.jobs import Job
from hipcli.serving.limits import Limits
from hipcli.serving.metrics import Metrics
from hipcli.serving.problems import Problem, problem_of
from hipcli.serving.shelf import library_of
from hipcli.serving.worker import Worker

_QUIET_S = 1.0  # after which a silent connection is given a sign of life
_READERS = 2  # uploads that are read at the same time


class Writer(Protocol):
    """An answer in one of the protocols."""

    def whole(self, answered: Answered) -> dict[str, Any]: ...
    def begin(self): ...
    def text(self, piece: str): ...
    def end(self, answered: Answered): ...
    def fail(self, problem: Problem): ...


class Service:
    """Documents, worker and figures of one server. model: its name."""

    def __init__(self, documents: Documents, worker: Worker, answerer: Answerer, limits: Limits, model: str, log: Terminal) -> None:
        self.documents, self.worker, self.limits, self.model, self.log = documents, worker, limits, model, log
        self._answerer, self._readers = answerer, asyncio.Semaphore(_READERS)
        self.metrics = Metrics(lambda: len(worker.queue), lambda: len(worker.shelf), lambda: documents.count)
        self._background: set[asyncio.Task] = set()

    # answers

    async def document_for(self, ask: Ask, owner: str) -> Entry:
        """The document that a request is about, brought by it, named by it, or the only one there is. Raises Problem."""
        if ask.file is not None:
            return await self._brought(ask, owner)
        if ask.document is not None:
            return self.documents.require(owner, ask.document, "document")
        if entry := self.documents.find(owner, ask.model):
            return entry
        seen = self.documents.visible(owner)
        if ask.model not in ("", self.model, "hip", "default"):
            raise Problem(404, "there is no such model: GET /v1/models lists them", code="model_not_found", param="model")
        if len(seen) != 1:
            what = (
                "upload a document first: POST /v1/files" if not seen else 'say which document: as the model, or as "hip": {"document": ID}'
            )
            raise Problem(400, what, code="document_missing", param="model")
        return seen[0]

    async def _brought(self, ask: Ask, owner: str) -> Entry:
        """The document within a request, kept as an upload; the same bytes again are the same upload."""

        def write(path: Path) -> None:
            path.write_bytes(ask.file.data)

        return await self.upload(owner, ask.file.name, write)

    def job_for(self, ask: Ask, entry: Entry, owner: str, client: str) -> Job:
        """A job that is waiting for its turn. Raises Problem when there is no room."""
        work = partial(self._answerer.answer, ask, entry, partial(self.documents.text, entry))
        job = Job(work, owner, ask.user or client, entry.id)
        self.worker.hand_in(job)
        return job

    async def answer(self, job: Job) -> Answered:
        """What comes of it. Raises Problem, HipError; cancelled, it calls the job off."""
        try:
            while (event := await job.event()).kind not in ("done", "fault"):
                pass
        except asyncio.CancelledError:
            self._left(job)
            raise
        return self._ended(event.kind, event.value)

    async def stream(self, job: Job, writer: Writer) -> AsyncIterator[bytes]:
        """The answer as it comes, in the words of a protocol."""
        for chunk in writer.begin():
            yield chunk
        while True:
            event = await job.event(_QUIET_S)
            if event.kind in ("progress", "silence"):
                yield comment(event.value or self._why_silent(job))
            elif event.kind == "text":
                for chunk in writer.text(event.value):
                    yield chunk
            else:
                for chunk in self._last(event.kind, event.value, writer):
                    yield chunk
                return

    def _why_silent(self, job: Job) -> str:
        """What a client is told while nothing comes: how far its document is, and nothing of others' work."""
        running = self.worker.running
        return running.progress if running and running.progress and running.document == job.document else "waiting"

    def _last(self, kind: str, value: Any, writer: Writer):
        try:
            return list(writer.end(self._ended(kind, value)))
        except Exception as fault:
            return list(writer.fail(problem_of(fault)))

    def _ended(self, kind: str, value: Any) -> Any:
        if kind == "fault":
            self.metrics.answers.labels("failed").inc()
            raise value
        self.metrics.count(value)
        return value

    def end(self, job: Job) -> None:
        """Whoever waited for the job is gone, or has all of it."""
        if not job.is_over:
            self._left(job)

    def _left(self, job: Job) -> None:
        self.worker.give_up(job)
        self.metrics.answers.labels("gone").inc()

    # documents

    async def upload(self, owner: str, name: str | None, write: Callable[[Path], Any]) -> Entry:
        """Keep a document. write: puts its bytes where it is told, which may take a while. Raises Problem, InputError, DoesNotFit."""
        shown = file_name(name)
        folder = self.documents.incoming(owner)
        try:
            path = folder / f"upload{suffix_of(shown)}"
            if isinstance(waiting := write(path), Awaitable):
                await waiting
            size = path.stat().st_size
            if size > self.limits.upload_bytes:
                raise too_large(self.limits.upload_bytes)
            digest = await asyncio.to_thread(_digest, path, shown)
            if known := self.documents.same(owner, digest):
                return known
            self.documents.check_room(owner)
            async with self._readers:
                document = await extract(path, shown, self.limits.upload_seconds, self.limits.upload_pages)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        entry = self.documents.same(owner, digest) or await asyncio.to_thread(self.documents.keep, owner, document, shown, digest, size)
        self.read_ahead(entry)
        return entry

    def read_ahead(self, entry: Entry) -> None:
        """Let a document be read when nothing else waits, so that the first question does not wait for it."""
        work = partial(self._answerer.read, entry, partial(self.documents.text, entry))
        job = Job(work, f"reading {entry.owner}", entry.id, entry.id)
        try:
            self.worker.hand_in(job)
        except Problem:
            # then the first question reads it
            return
        self._watch(self._reading(job, entry))

    async def _reading(self, job: Job, entry: Entry) -> None:
        while (event := await job.event()).kind not in ("done", "fault"):
            pass
        if event.kind == "fault" and not self.worker.stopping:
            self.log.note(f"{entry.id} could not be read ahead: {type(event.value).__name__}")

    def _watch(self, work: Any) -> None:
        # a task that nobody holds may be dropped before it has run
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def remove(self, entry: Entry) -> None:
        """Forget an upload: its pages now, its keys and values as soon as the model lets go of them. Raises Problem."""
        self.documents.remove(entry)
        running = self.worker.running
        if running is not None and running.document == entry.id:
            running.cancel()
        job = Job(lambda job: self._forget(entry), "forgetting", entry.id)
        self.worker.hand_in(job, first=True)
        self._watch(self._reading(job, entry))

    def _forget(self, entry: Entry) -> None:
        """In the worker's thread."""
        self.worker.shelf.drop(entry.id)
        library, key = library_of(entry), self.documents.session_of(entry)
        self.documents.forget_session(entry)
        session = library.get(key) if key else None
        # what a user gave a name of its own stays
        if session is not None and not session.names:
            library.remove(session)

    def state(self, entry: Entry) -> str:
        """Whether a document is "loaded" (in memory), "saved" (on the disk as keys and values) or "unread"."""
        if entry.id in self.worker.shelf:
            return "loaded"
        key = self.documents.session_of(entry)
        session = library_of(entry).get(key) if key else None
        return "saved" if session and session.manifest and session.manifest.complete else "unread"


def _digest(path: Path, name: str) -> str:
    """Of a file and what it is called."""
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace") + b"\0")
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def too_large(most: int) -> Problem:
    """An upload that is larger than may be."""
    return Problem(413, f"a document may have {most / 1e6:,.0f} MB here (--upload-size)", code="too_large", headers={"Connection": "close"})
