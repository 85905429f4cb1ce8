"""`hip batch --export openai-batch`: requests for `vllm run-batch` and hosted batch APIs.

One for each file and question. No model runs here; one that is on this machine counts the tokens. Documents that the target cannot take are refused, never cut.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hipcli import config
from hipcli.answers_file import RowsFile
from hipcli.batching.failures import Failures
from hipcli.batching.files import find_files, runs_of
from hipcli.batching.job import BatchJob, Task
from hipcli.batching.ledger import Ledger
from hipcli.batching.reading import fault_of, read_task
from hipcli.console import Terminal, amount
from hipcli.document import Document
from hipcli.errors import DoesNotFit, ModelError, UsageError
from hipcli.options import RunOptions
from hipcli.pipeline import as_question, find_model, open_tokenizer
from hipcli.tokens.layout import lay_out

if TYPE_CHECKING:
    from hipcli.tokens import Tokenizer

# what hosted batch APIs take in one file
_MOST_REQUESTS, _MOST_BYTES = 50_000, 200_000_000
# where no tokenizer is here; English has more than four
_BYTES_PER_TOKEN = 3
_URL = "/v1/chat/completions"
_LONGEST_SLUG = 40


class RequestsFile:
    """Requests as rows of a file, by the digest in which each custom_id ends."""

    def __init__(self, path: str) -> None:
        """Raises what RowsFile does."""
        self._known: set[str] = set()
        self._rows = RowsFile(path, self._take, b'{"custom_id"')
        self.path, self.half_row = path, self._rows.half_row

    def __len__(self) -> int:
        return len(self._known)

    def _take(self, row: dict[str, Any]) -> bool:
        self._known.add(str(row.get("custom_id")).rpartition("-")[2])
        return isinstance(row.get("custom_id"), str) and isinstance(row.get("body"), dict)

    def skip(self, run: str, question: str) -> bool:
        """Whether a request of this run puts this question."""
        return _digest(run, question) in self._known

    def add(self, record: dict[str, Any], run: str) -> None:
        """Append one request; its custom_id says which run it is of. Raises DiskError."""
        self._take(record)
        self._rows.add(record)

    def close(self) -> None:
        """Let another run add requests."""
        self._rows.close()


def export(job: BatchJob, terminal: Terminal) -> Ledger:
    """Write the requests that are not there yet; raises every HipError that ends the run."""
    model = job.options.model or config.default_model()
    if model is None:
        raise UsageError("say which model answers the requests, as its server calls it: --model NAME")
    # the same question twice would be the same custom_id twice, which no target takes
    job = replace(job, questions=tuple(dict.fromkeys(job.questions)))
    files = find_files(job.options.sources, terminal)
    requests = RequestsFile(job.out)
    ledger = Ledger(job, requests, Failures(job.out + ".failed"), terminal, "requests")
    with closing(requests), ledger.kept():
        tasks = ledger.plan(files, runs_of(files, f"{job.export} {model}", job.options))
        tokenizer = _tokenizer(job.options, terminal) if tasks and job.max_context else None
        with terminal.phase("batch", len(tasks), "files", long=True) as phase:
            for task in tasks:
                ledger.done(task, fault_of(partial(_export_file, task, job, model, tokenizer, ledger, terminal)))
                phase.advance()
    if len(requests) > _MOST_REQUESTS or os.path.getsize(job.out) > _MOST_BYTES:
        most = f"{_MOST_REQUESTS:,} requests and {amount(_MOST_BYTES, 'bytes')}"
        terminal.warn(f"hosted batch APIs take {most} a file, and {job.out} is more: split it between lines")
    return ledger


def _export_file(task: Task, job: BatchJob, model: str, tokenizer: Tokenizer | None, ledger: Ledger, terminal: Terminal) -> None:
    document = read_task(task, job.options, terminal)
    text = "".join(lay_out(document, lambda page: page).parts)
    if job.max_context:
        _require_room(text, document, task, job, tokenizer)
    for question in task.questions:
        custom_id = f"{_slug(task.path)}-{_digest(task.run, question.text)}"
        content = f"{text}\n\n{as_question(question.text)}"
        ledger.row(task, {"custom_id": custom_id, "method": "POST", "url": _URL, "body": _body(content, model, job.options)})


def _body(content: str, model: str, options: RunOptions) -> dict[str, Any]:
    system = [{"role": "system", "content": options.system}] if options.system else []
    body = {"model": model, "messages": [*system, {"role": "user", "content": content}], "max_tokens": options.max_tokens}
    body |= {"temperature": options.temperature} | ({"top_p": options.top_p} if options.top_p < 1 else {})
    return body | ({"seed": options.seed} if options.seed is not None else {})


def _tokenizer(options: RunOptions, terminal: Terminal) -> Tokenizer | None:
    """That of the model, when its files are here; it counts exactly."""
    try:
        return open_tokenizer(find_model(options, terminal, local_only=True), terminal)
    except ModelError:
        terminal.note(f"the model's tokenizer is not here: tokens are estimated as one for {_BYTES_PER_TOKEN} bytes")
        return None


def _require_room(text: str, document: Document, task: Task, job: BatchJob, tokenizer: Tokenizer | None) -> None:
    """Raise DoesNotFit when document, longest question and answer exceed what the target takes."""
    options, questions = job.options, [as_question(question.text) for question in task.questions]
    if tokenizer is not None:
        prompt = tokenizer.prompt(options.system)
        asked = max(len(prompt.suffix_ids(question)) for question in questions)
        tokens, about = len(prompt.prefix_ids) + len(tokenizer.encode_document(document).ids) + asked, ""
    else:
        longest = max((*questions, options.system or ""), key=len)
        tokens, about = sum(len(part.encode("utf-8", "replace")) for part in (text, longest)) // _BYTES_PER_TOKEN, "about "
    if tokens + options.max_tokens > job.max_context:
        sizes = f"{about}{tokens:,} tokens and an answer of up to {options.max_tokens:,} are more than {job.max_context:,}"
        raise DoesNotFit(f"{sizes}; nothing was cut", "a target with a longer context, and --retry-failed; or hip batch without --export")


def _slug(path: str) -> str:
    """The end of a path in the characters that every target allows in a custom_id, which may have 64."""
    return re.sub(r"[^A-Za-z0-9]+", "_", path)[-_LONGEST_SLUG:].strip("_") or "file"


def _digest(run: str, question: str) -> str:
    return hashlib.sha256(f"{run} {question}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
