"""Reads an uploaded file in a process of its own, which can be ended: a hostile document costs a sentence, not the server.

Knows readers and clocks; nothing of models or HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hipcli.document import Document, Page, PageFault, Source
from hipcli.errors import DoesNotFit, HipError, InputError

# the working directory must not be searched for modules
_START = "import sys; sys.path[:] = [p for p in sys.path if p]; from hipcli.serving.extracting import main; main()"


def document_record(document: Document) -> dict[str, Any]:
    """A document as JSON that `document_of` takes back."""
    return asdict(document)


def document_of(record: dict[str, Any]) -> Document:
    """The document of such a record. Raises KeyError or TypeError for anything else."""
    kinds = {"sources": Source, "pages": Page, "failed": PageFault}
    lists = {name: tuple(kind(**_with_tuples(item)) for item in record[name]) for name, kind in kinds.items()}
    return Document(**lists, warnings=tuple(record["warnings"]), pages_chosen=record["pages_chosen"])


def _with_tuples(value: Any) -> Any:
    """What JSON made a list of was a tuple before."""
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    return {key: _with_tuples(inner) for key, inner in value.items()} if isinstance(value, dict) else value


async def extract(path: Path, name: str, seconds: float, most_pages: int) -> Document:
    """The document in a file, which is called `name` wherever it is shown.

    Raises InputError, DoesNotFit; also when it takes longer than `seconds` or has more pages than `most_pages`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _START, str(path), name),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), seconds)
    except asyncio.TimeoutError:
        raise InputError(f"reading {name} took longer than {seconds:g} s", "split it, or give it to hip serve as a FILE") from None
    finally:
        await _end(process)
    try:
        record = json.loads(out)
    except ValueError:
        raise InputError(f"cannot read {name}: the process that read it ended before it was done") from None
    if "error" in record:
        raise (DoesNotFit if record["error"] == DoesNotFit.exit_code else InputError)(record["message"], record["hint"])
    document = document_of(record)
    if len(document.pages) + len(document.failed) > most_pages:
        raise InputError(f"{name} has {len(document.pages) + len(document.failed):,} pages, and the server takes {most_pages:,}")
    return document


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and those it started, where it has not ended."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await process.wait()


def renamed(document: Document, path: str, name: str) -> Document:
    """The document as if its file, or folder, were called `name`."""

    def shown(text: str) -> str:
        if text.startswith(path):
            return name + text[len(path) :]
        # a relative path may be a word like any other
        return text.replace(path, name) if os.path.isabs(path) else text

    sources = tuple(replace(source, name=shown(source.name)) for source in document.sources)
    failed = tuple(replace(fault, reason=shown(fault.reason)) for fault in document.failed)
    return replace(document, sources=sources, failed=failed, warnings=tuple(map(shown, document.warnings)))


def main() -> None:
    """The process: reads the file that it is told, and prints the document or the fault as JSON."""
    from hipcli.readers import read_document

    path, name = sys.argv[1:]
    try:
        document = renamed(read_document([path], offline=True), path, name)
        if not any(page.text.strip() for page in document.pages):
            raise InputError(f"{name} holds no text to read", "a scan needs its text recognised first: ocrmypdf in.pdf out.pdf")
        record = document_record(document)
    except HipError as fault:
        record = {"error": fault.exit_code, "message": fault.message.replace(path, name), "hint": fault.hint}
    sys.stdout.buffer.write(json.dumps(record).encode())
