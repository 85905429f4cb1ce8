"""`hip ask`: one document, one question, an answer with the pages it stands on.

Also owns the record that `--json` prints for an answer. Knows nothing of how models or files are read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from hipcli import __version__
from hipcli.check import Check, checked
from hipcli.citing import Citer, CiteOptions, draw_evidence, evidence_record, show_evidence
from hipcli.console import AnswerWriter, Terminal, amount, duration, write_json
from hipcli.errors import UsageError
from hipcli.input import read
from hipcli.inspection import check_complete, document_record
from hipcli.memory import peak_memory_bytes
from hipcli.options import RunOptions
from hipcli.pipeline import Answer, Reading, open_reading, room_for
from hipcli.readers.url import is_url

_EXAMPLE = 'hip ask book.pdf "Who signed the treaty?"'


def split_arguments(
    arguments: Sequence[str], files: Sequence[str], question: str | None, questions_file: str | None
) -> tuple[list[str], str | None]:
    """Tell sources from the question: the last argument is the question unless it came by an option.

    Raises UsageError.
    """
    if question is not None and questions_file is not None:
        raise UsageError("give either --question or --questions, not both")
    if question is not None or questions_file is not None:
        sources = [*files, *arguments]
        if questions_file == "-" and "-" in sources:
            raise UsageError("standard input ('-') cannot be both document and questions")
    else:
        if not arguments or (len(arguments) == 1 and not files):
            raise UsageError("the question is missing", _EXAMPLE)
        if arguments[-1] == "-" or os.path.exists(arguments[-1]) or is_url(arguments[-1]):
            hint = f"put the question last: {_EXAMPLE}; or use -q if the question is also a file's name"
            raise UsageError(f"the question is missing: the last argument, {arguments[-1]!r}, is a document", hint)
        sources, question = [*files, *arguments[:-1]], arguments[-1]
    if question is not None and not question.strip():
        raise UsageError("the question is empty", _EXAMPLE)
    return sources, question


def ask(options: RunOptions, question: str, terminal: Terminal, check: bool = False, cite: CiteOptions = CiteOptions()) -> None:
    """Read, answer on stdout, name the pages on stderr; raises every HipError. check: hold attention against dense attention."""
    began = time.monotonic()
    document = read(options, terminal)
    read_seconds = time.monotonic() - began
    with open_reading(document, options, terminal, room_for([question])) as reading:
        reading.timing["read_seconds"] = read_seconds
        citer, how = Citer(reading, cite), reading.ask if terminal.as_json else partial(stream_answer, reading)
        (answer, evidence), found = checked(reading.engine, check, lambda: citer.cited(question, how))
        if terminal.as_json:
            write_json(answer_record(reading, question, answer, evidence_record(evidence, cite), found))
        else:
            show_evidence(evidence, document, cite, terminal)
            if found:
                found.say(terminal)
            show_numbers(reading, answer, terminal)
        draw_evidence(evidence, question, document, cite)
    check_complete(document, options)


def stream_answer(reading: Reading, question: str) -> Answer:
    """Write the answer to stdout as it comes; what was written before an interruption stays, its line ended."""
    writer = AnswerWriter()
    held: list[str] = []
    try:
        return reading.ask(question, on_text=writer.write if reading.options.stream else held.append)
    finally:
        writer.write("".join(held))
        writer.finish()


def show_numbers(reading: Reading, answer: Answer, terminal: Terminal) -> None:
    """One line of speed and memory, for people; that an answer was cut is said to everyone."""
    if answer.finish_reason == "length":
        terminal.note(f"the answer was cut at {answer.tokens} tokens (--max-tokens)")
    if not (terminal.verbose or terminal.is_terminal):
        return
    timing, peak = reading.timing, peak_memory_bytes()
    parts = [f"{len(reading.encoded.ids):,} document tokens"]
    if timing["prefill_seconds"]:
        parts += [f"read at {timing['prefill_tokens_per_second']:,.0f} tokens/s", f"in {duration(timing['prefill_seconds'])}"]
    if answer.decode_rate:
        parts.append(f"answered at {answer.decode_rate:.1f} tokens/s")
    if peak:
        planned = f" (planned {amount(reading.plan.planned_peak_bytes, 'bytes')})" if terminal.verbose else ""
        parts.append(f"peak memory {amount(peak, 'bytes')}{planned}")
    store = reading.engine.store
    if terminal.verbose and store.host_bytes:
        parts.append(f"{amount(store.host_bytes, 'bytes')} of KV on the host, {amount(store.bus_bytes, 'bytes')} copied over the bus")
    terminal.note(", ".join(parts))


def answer_record(reading: Reading, question: str, answer: Answer, evidence: dict[str, Any], check: Check | None = None) -> dict[str, Any]:
    """The JSON object of one answer; the keys are stable within a schema_version, "check" is there when it was asked for."""
    timing = {name: round(value, 4) for name, value in reading.timing.items()}
    timing |= {"first_token_seconds": round(answer.wait_seconds, 4), "answer_seconds": round(answer.seconds, 4)}
    timing["decode_tokens_per_second"] = round(answer.decode_rate, 3) if answer.decode_rate else None
    return {
        "schema_version": 1,
        "question": question,
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "answer_tokens": answer.tokens,
        **evidence,
        **run_record(reading),
        "timing": timing | memory_record(reading),
        **({"check": check.record} if check else {}),
    }


def memory_record(reading: Reading) -> dict[str, int | None]:
    """Peak memory as JSON, as it was measured and as it was planned before the first chunk; and where keys and values lie."""
    store = reading.engine.store
    return {
        "peak_memory_bytes": peak_memory_bytes(),
        "planned_peak_bytes": reading.plan.planned_peak_bytes,
        "kv_device_bytes": store.device_bytes,
        "kv_host_bytes": store.host_bytes,
        "kv_bus_bytes": store.bus_bytes,
    }


def session_record(reading: Reading) -> dict[str, Any] | None:
    """What was reused and what was computed, as counted; None when no session was wanted."""
    if reading.session is None:
        return None
    return reading.session.record | {"prefilled_tokens": reading.engine.prefilled_tokens}


def run_record(reading: Reading) -> dict[str, Any]:
    """What a run was made with: document, model, attention, warnings, version."""
    options, model = reading.options, reading.model
    return {
        "document": document_record(reading.document, reading.encoded),
        "model": {"name": reading.files.name, "origin": reading.files.origin, "dtype": model.dtype_name, "device": model.device},
        "attention": reading.engine.attention,
        "session": session_record(reading),
        "sampling": {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed},
        "warnings": list(reading.document.warnings),
        "hip_version": __version__,
    }
