"""The process that reads sources of every format but PDF, one after the other, under caps of time and memory.

Run as `main()` in a fresh interpreter by `isolation.py`. A job is one JSON line: the fields of RawSource (without data and with the first
bytes as Latin-1), "bytes" (how many of its bytes follow the line, null where there is a path), format, encoding, pages (as written),
memory_bytes and processor_seconds. Answers: {"progress": [done, total]} as reading goes, {"page": {...}} for each page,
then {"content": {remarks, encoding, total_pages}}; or {"fault": [class of hipcli.errors, message, hint]}.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hipcli.errors import HipError
from hipcli.page_selection import PageSelection
from hipcli.readers.content import ReadOptions
from hipcli.readers.formats import format_named
from hipcli.readers.guarded import over_memory, read_content
from hipcli.readers.source import RawSource
from hipcli.readers.worker_side import Answers, jobs, limit_processor, limited_memory

_SOURCE_FIELDS = ("name", "size_bytes", "sha256", "hint", "charset")


def job_for(raw: RawSource, format: str, options: ReadOptions) -> dict[str, Any]:
    """The job that `main` takes, less its caps."""
    return {
        **{name: getattr(raw, name) for name in _SOURCE_FIELDS},
        "path": os.fspath(raw.path) if raw.path else None,
        "bytes": None if raw.data is None else len(raw.data),
        "head": raw.head.decode("latin-1"),
        "format": format,
        "encoding": options.encoding,
        "pages": options.pages.text if options.pages else None,
    }


def main() -> None:
    """Read what the jobs name until there are no more."""
    import psutil  # noqa: F401  every reader needs it, and a low cap on memory would then forbid to load it

    answers = Answers()
    for job, data in jobs():
        try:
            with limited_memory(job["memory_bytes"]):
                limit_processor(job["processor_seconds"])
                _read(job, data, answers.say)
        except MemoryError:
            fault = over_memory(job["name"], job["memory_bytes"])
            answers.say({"fault": ["InputError", fault.message, fault.hint]})
        except HipError as fault:
            answers.say({"fault": [type(fault).__name__, fault.message, fault.hint]})


def _read(job: dict[str, Any], data: bytes, say: Callable[[dict[str, Any]], None]) -> None:
    path = Path(job["path"]) if job["path"] else None
    fields = {name: job[name] for name in _SOURCE_FIELDS}
    raw = RawSource(path=path, data=None if path else data, head=job["head"].encode("latin-1"), **fields)
    pages = PageSelection.parse(job["pages"]) if job["pages"] else None
    options = ReadOptions(job["encoding"], on_page=lambda done, total: say({"progress": [done, total]}), pages=pages)
    content = read_content(raw, format_named(job["format"]), options, job["memory_bytes"])
    for page in content.pages:
        say({"page": asdict(page)})
    say({"content": {"remarks": content.remarks, "encoding": content.encoding, "total_pages": content.total_pages}})
