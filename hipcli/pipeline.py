"""From a document to a model that has read it: tokens → model → plan → prefill.

Shared by every command that asks something of a document. Knows nothing of how answers are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hipcli.console import Terminal, amount, duration
from hipcli.document import Document
from hipcli.errors import ModelError
from hipcli.loading import attention_settings, find_model, open_engine, run_device
from hipcli.options import RunOptions
from hipcli.reuse import check_choices, ending, make_session, restore

if TYPE_CHECKING:
    from pathlib import Path

    from hipcli.engine import Engine
    from hipcli.memory import MemoryPlan
    from hipcli.models import ModelFiles
    from hipcli.sessions import SessionKeeper
    from hipcli.tokens import EncodedDocument, PromptParts, Tokenizer

    Room = Callable[[PromptParts, EncodedDocument], int]

# what memory is kept free for at first where questions keep coming, and again whenever they have filled it
MORE_TOKENS = 4096


@dataclass(frozen=True)
class Answer:
    """What the model said. seconds: from question to last token; wait_seconds: to the first one."""

    text: str
    finish_reason: str
    tokens: int
    seconds: float
    wait_seconds: float

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first, None when there was no second one."""
        spent = self.seconds - self.wait_seconds
        return (self.tokens - 1) / spent if self.tokens > 1 and spent > 0 else None


@dataclass
class Reading:
    """A document held in a model's memory, ready for questions."""

    options: RunOptions
    document: Document
    tokenizer: Tokenizer
    encoded: EncodedDocument
    prompt: PromptParts
    files: ModelFiles
    engine: Engine
    model: Any
    plan: MemoryPlan
    session: SessionKeeper | None = None
    timing: dict[str, float] = field(default_factory=dict)
    # of prefix, question and answer: what memory was made for
    room_tokens: int = 0

    def __post_init__(self) -> None:
        self.room_tokens = self.room_tokens or self.plan.tokens

    def ask(self, question: str, on_text: Callable[[str], None] | None = None) -> Answer:
        """Ask about the document; on_text as for `answer`."""
        return self.answer(as_question(question), on_text=on_text)

    def answer(
        self,
        question: str,
        *,
        max_tokens: int | None = None,
        on_text: Callable[[str], None] | None = None,
        enough: Callable[[str], bool] | None = None,
        on_read: Callable[[int], None] | None = None,
        suffix: Sequence[int] | None = None,
        keep: bool = False,
    ) -> Answer:
        """Ask one question.

        suffix: ids in place of the question. keep: question and answer become part of what is held.

        on_text: gets complete characters as they come, the same text as the answer's.
        enough: asked with the text so far after each token; True ends the answer.
        on_read: called while the question is read, with the number of its tokens done; what it raises ends the answer.
        """
        from hipcli.sampling import Sampling

        options, stream, pieces = self.options, self.tokenizer.stream(), []
        sampling = Sampling(temperature=options.temperature, top_p=options.top_p, seed=options.seed)

        def hand_on(text: str) -> None:
            pieces.append(text)
            if on_text is not None and text:
                on_text(text)

        began, first, count = time.monotonic(), None, 0
        suffix, limit = suffix or self.prompt.suffix_ids(question), max_tokens or options.max_tokens
        stops = self.tokenizer.stop_ids
        ids = self.engine.generate(suffix, max_tokens=limit, sampling=sampling, stop_ids=stops, on_read=on_read, keep=keep)
        # closed before the engine is, whatever stops the answer
        with closing(ids):
            for token in ids:
                first = first or time.monotonic()
                count += 1
                hand_on(stream.push(token))
                if enough is not None and enough("".join(pieces)):
                    break
        hand_on(stream.finish())
        ended = time.monotonic()
        return Answer("".join(pieces).strip(), self.engine.finish_reason or "stop", count, ended - began, (first or ended) - began)

    def make_room(self, suffix_tokens: int, max_tokens: int) -> None:
        """Memory for one more question and its answer, and for others to come where there was none. Raises DoesNotFit."""
        need = self.engine.cached_len + suffix_tokens + max_tokens
        if need > self.room_tokens:
            self.engine.make_room(need + MORE_TOKENS)
            self.room_tokens = need + MORE_TOKENS


def as_question(text: str) -> str:
    """A question as the model is given it. Small models answer more of them right when it is marked as one (docs/results)."""
    return f"Question: {text}"


def room_for(questions: Sequence[str]) -> Room:
    """Room for the longest of these questions."""
    return lambda prompt, encoded: max(len(prompt.suffix_ids(as_question(question))) for question in questions)


def encode(document: Document, files: ModelFiles, terminal: Terminal) -> tuple[Tokenizer, EncodedDocument]:
    """Load the model's tokenizer and turn the document into tokens."""
    tokenizer = open_tokenizer(files, terminal)
    return tokenizer, tokenized(document, tokenizer, terminal)


def open_tokenizer(files: ModelFiles, terminal: Terminal) -> Tokenizer:
    """The model's tokenizer; raises ModelError."""
    from hipcli.tokens import load_tokenizer

    tokenizer = load_tokenizer(files.path)
    if tokenizer.prompt_format != "chat":
        terminal.warn(f"{files.name} has no chat template that works: it is asked in plain text")
    return tokenizer


def tokenized(document: Document, tokenizer: Tokenizer, terminal: Terminal) -> EncodedDocument:
    """A document's tokens."""
    with terminal.phase("tokenizing", document.chars, "characters") as phase:
        return tokenizer.encode_document(document, on_chars=phase.to)


@contextmanager
def open_reading(document: Document, options: RunOptions, terminal: Terminal, room: Room) -> Iterator[Reading]:
    """Everything up to the end of the prefill.

    room: tokens that the plan keeps free for a question.
    Raises ModelError, DoesNotFit, UsageError.
    """
    check_early(options)
    clock = time.monotonic()
    files = find_model(options, terminal)
    tokenizer, encoded = encode(document, files, terminal)
    timing = {"tokenize_seconds": time.monotonic() - clock}
    clock = time.monotonic()
    with open_engine(files, options, terminal) as (_, engine):
        timing["load_seconds"] = time.monotonic() - clock
        with hold(engine, document, options, files, tokenizer, encoded, terminal, room) as reading:
            reading.timing |= timing
            yield reading


def check_early(options: RunOptions) -> None:
    """Refuse a name or a device that does not exist before it costs a download; asking torch for one takes a second."""
    attention_settings(options)
    check_choices(options)
    if options.device == "cuda" or options.backend == "triton":
        run_device(options)


@contextmanager
def hold(
    engine: Engine,
    document: Document,
    options: RunOptions,
    files: ModelFiles,
    tokenizer: Tokenizer,
    encoded: EncodedDocument,
    terminal: Terminal,
    room: Room,
    cache_dir: Path | None = None,
) -> Iterator[Reading]:
    """Let an empty engine read a document, and wait in the end for what is kept of it.

    room: as for open_reading. cache_dir: where sessions are kept, None for this user's. Raises ModelError, DoesNotFit.
    """
    prompt, model = tokenizer.prompt(options.system), engine.model
    ids = [*prompt.prefix_ids, *encoded.ids.tolist()]
    if max(ids) >= model.vocab:
        raise ModelError(f"the tokenizer of {files.name} has more tokens than its weights", "fetch or copy the model's files again")
    spare = room(prompt, encoded) + options.max_tokens
    plan = engine.plan(len(ids) + spare)
    terminal.detail(f"{files.name} ({model.dtype_name} on {model.device}): {len(ids):,} tokens, {plan_line(plan)}")
    session = None if options.no_session else make_session(document, options, files, prompt, engine, ids, terminal, cache_dir)
    with ending(session, terminal):
        timing = _prefill(engine, ids, spare, session, terminal)
        if model.device != "cpu":
            timing |= _warm_up(engine, plan.tokens, terminal)
        yield Reading(options, document, tokenizer, encoded, prompt, files, engine, model, plan, session, timing)


def plan_line(plan: MemoryPlan) -> str:
    """A plan in words."""
    where = ""
    if plan.on_host:
        keys, values = plan.device_parts
        where = f" ({amount(plan.host_bytes or 0, 'bytes')} on the host, of {amount(plan.host_available_bytes, 'bytes')} there; "
        where += f"on the GPU keys of {keys} layers and values of {values})"
    return (
        f"KV {amount(plan.kv_bytes, 'bytes')}{where}, peak {amount(plan.peak_bytes, 'bytes')} of {amount(plan.available_bytes, 'bytes')}, "
        f"chunks of {plan.chunk_tokens:,}, about {duration(plan.seconds)}"
    )


def _prefill(engine: Engine, ids: list[int], room: int, session: SessionKeeper | None, terminal: Terminal) -> dict[str, float]:
    """Fill the engine with ids: from a session what it holds, by computing what it does not."""
    reused = restore(engine, session, len(ids) + room, terminal) if session else 0
    began, rest = time.monotonic(), ids[reused:]
    if rest:
        with terminal.phase("prefill", len(rest), "tokens", long=True) as phase:

            def on_chunk(done: int, total: int) -> None:
                # a phase may end the work, and then what was read so far is kept
                if session:
                    session.stored(engine.cached_len)
                phase.to(done)

            engine.prefill(rest, on_chunk=on_chunk, room=room)
    if session:
        session.read_whole()
    seconds = time.monotonic() - began
    rate = len(rest) / max(seconds, 1e-9) if rest else 0.0
    spent = {"prefill_seconds": seconds if rest else 0.0, "prefill_tokens_per_second": rate}
    return spent | ({"restore_seconds": session.load_seconds} if session else {})


def _warm_up(engine: Engine, tokens: int, terminal: Terminal) -> dict[str, float]:
    """What decoding compiles and captures, as a phase of its own, so that the first answer is as fast as the others."""
    began = time.monotonic()
    with terminal.phase("preparing the GPU"):
        engine.warm_up(tokens)
    return {"warm_up_seconds": time.monotonic() - began}
