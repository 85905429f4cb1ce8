"""Traces the questions of one reading and gathers what their answers rest on; the options --cite, --map and --map-file.

The only file that joins trace, gaze and evidence. Knows nothing of how answers are made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hipcli.console import Terminal
from hipcli.document import Document
from hipcli.errors import UsageError
from hipcli.evidence import DIGITS, Evidence, gather
from hipcli.gaze import Gaze
from hipcli.gaze_map import require_map_file, show_map, write_map
from hipcli.pipeline import Answer, Reading, as_question

if TYPE_CHECKING:
    from hipcli.trace import Trace

CITE = ("auto", "off", "json")


@dataclass(frozen=True)
class CiteOptions:
    """cite: "auto" names the pages, "json" does it as a JSON line on stderr, "off" traces and names nothing. Raises UsageError, DiskError."""

    cite: str = "auto"
    map: bool = False
    map_file: str | None = None

    def __post_init__(self) -> None:
        if self.cite not in CITE:
            raise UsageError(f"--cite must be one of {', '.join(CITE)}, got {self.cite}")
        if self.cite == "off" and (self.map or self.map_file):
            raise UsageError("--map shows what --cite off leaves untraced", "leave one of them out")
        require_map_file(self.map_file)


class Citer:
    """Of one reading. seconds: spent on tracing the last question."""

    def __init__(self, reading: Reading, options: CiteOptions) -> None:
        self.reading, self.options, self.seconds = reading, options, 0.0

    def cited(self, question: str, answer: Callable[[str], Answer]) -> tuple[Answer, Evidence | None]:
        """Run `answer` on `question`, and gather what it rests on; None with --cite off."""
        if self.options.cite == "off":
            return answer(question), None
        trace = self._trace(question)
        with self.reading.engine.watching(trace):
            said = answer(question)
        began = time.monotonic()
        gaze = self._gaze(trace)
        self.seconds = time.monotonic() - began + trace.seconds
        return said, gather(said.text, question, self.reading.document, gaze, self._chars_of)

    def _trace(self, question: str) -> Trace:
        from hipcli.trace import Trace

        reading = self.reading
        ids, bare = (reading.prompt.encode_question(as_question(text)) for text in (question, ""))
        # "Question:", which is read before what is asked; a tokenizer may join its end with that
        lead = next((at for at, (own, other) in enumerate(zip(ids, bare)) if own != other), min(len(ids), len(bare)))
        return Trace(reading.engine.runtime, reading.engine.cached_len, max(1, min(lead, len(ids) - 1)), len(ids))

    def _gaze(self, trace: Trace) -> Gaze:
        from hipcli.kernels.mass import MASS_TOKENS

        encoded, first = self.reading.encoded, len(self.reading.prompt.prefix_ids)
        return Gaze.of(trace.mass().numpy(), trace.idle().numpy(), encoded.page_starts, first, len(encoded.ids), MASS_TOKENS)

    def _chars_of(self, page: int, start: int, stop: int) -> tuple[int, int]:
        """Characters of a page's text for tokens [start, stop) of the document, close enough to find the sentence by."""
        encoded, decode = self.reading.encoded, self.reading.tokenizer.decode
        first, text = int(encoded.page_starts[page]), self.reading.document.pages[page].text
        before = len(decode(encoded.ids[first : max(first, start)].tolist()))
        length = len(decode(encoded.ids[max(first, start) : stop].tolist()))
        begin = min(before, max(0, len(text) - 1))
        return begin, max(begin + 1, min(len(text), before + length))


def show_evidence(evidence: Evidence | None, document: Document, options: CiteOptions, terminal: Terminal) -> None:
    """The pages on which an answer stands, and the map, as they were asked for."""
    if evidence is None:
        return
    if options.cite == "json":
        # ASCII only: a terminal's spelling of control characters would break it. Asked for, so shown even with --quiet
        terminal.error(json.dumps(evidence_record(evidence, options)))
    else:
        show_sources(evidence, document, terminal)
    if options.map:
        show_map(evidence, document, terminal)


def show_sources(evidence: Evidence, document: Document, terminal: Terminal) -> None:
    """Pages and quotes; that the document does not seem to hold the answer comes first."""
    if not evidence.citations:
        terminal.note("Sources: the document does not seem to say this: no page holds words of question or answer")
        return
    lead = "Sources" if evidence.is_supported else "The document does not seem to say this. The nearest passages"
    terminal.note(f"\n{lead}" if terminal.is_terminal else lead)
    for citation in evidence.citations:
        name = f"{citation.source}, " if len(document.sources) > 1 else ""
        terminal.note(f"  {name}{citation.place}: “{citation.quote}”")


def draw_evidence(evidence: Evidence | None, question: str, document: Document, options: CiteOptions) -> None:
    """Write the map's file where one was asked for; raises DiskError."""
    if options.map_file and evidence is not None:
        write_map(options.map_file, evidence, document, question)


def evidence_record(evidence: Evidence | None, options: CiteOptions) -> dict[str, Any]:
    """What an answer rests on as JSON: citations always, the rest where something was traced."""
    if evidence is None:
        return {"citations": []}
    names = ("source", "page", "label", "title", "quote", "start", "end")
    record: dict[str, Any] = {"citations": [{name: getattr(citation, name) for name in names} for citation in evidence.citations]}
    record |= {"supported": evidence.is_supported, "support": round(evidence.support, DIGITS)}
    if options.map and evidence.gaze is not None:
        record["map"] = [round(float(share), DIGITS) for share in evidence.gaze.shares()]
    return record
