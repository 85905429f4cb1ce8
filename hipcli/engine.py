"""Token ids in, token ids out: chunked prefill of a prefix that stays, answers whose tokens are dropped again, or kept.

Knows ids and models; no text, no tokenizer, no terminal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from hipcli.attention import AttentionRuntime, Watch, bind, open_backend, preset_name
from hipcli.decoding import make_decoder
from hipcli.devices import empty_cache, settle
from hipcli.errors import DoesNotFit
from hipcli.kv_codes import store_format
from hipcli.memory import MemoryPlan, give_back_free_memory, ran_out_of_memory
from hipcli.model import LoadedModel, positions
from hipcli.placement import WAYS_OUT, does_not_fit, first_parts, open_store, placed, plan_run
from hipcli.sampling import Sampler, Sampling
from hipcli.settings import AttentionSettings, KvSettings

CHUNK_TOKENS = 1024  # a multiple of every preset's block length, as all chunk lengths are
GPU_CHUNK_TOKENS = (32768, 16384, 8192, 4096, 2048, CHUNK_TOKENS)  # longer ones keep a GPU busier and need more memory
LEAST_CHUNK_TOKENS = 64


class Engine:
    """One sequence on one model.

    finish_reason: of the last answer, "stop" or "length". chunk_tokens: length of a prefill's chunks, a multiple of 64;
    `prefill` chooses it from the memory that is free unless it was given. on_notice: gets what a user should know.
    prefilled_tokens: run through the model by prefills so far. kv: where keys and values lie and in how many bits. watch: is shown
    the queries and keys of every layer while a question is read
    (attention.AttentionRuntime), never of the prefix.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: AttentionSettings,
        *,
        chunk_tokens: int | None = None,
        kv: KvSettings = KvSettings(),
        on_notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        if chunk_tokens is not None and (chunk_tokens < LEAST_CHUNK_TOKENS or chunk_tokens % LEAST_CHUNK_TOKENS):
            raise ValueError(f"chunk_tokens must be a positive multiple of {LEAST_CHUNK_TOKENS}, got {chunk_tokens}")
        self.model, self.settings, self._on_notice = model, settings, on_notice
        dtype, codings = store_format(model, settings, kv)
        backend = open_backend(settings, model.rope, model.trained_window, model.device, codings)
        self.store, self._kv = open_store(replace(model.store_shape, dtype=dtype), first_parts(model, kv.place)), kv
        self.runtime = AttentionRuntime(backend, self.store)
        self.decoder = make_decoder(model, self.runtime)
        # torch's own operations hold a whole chunk's scores: only the kernels and dense attention gain by longer ones
        long = model.device != "cpu" and self.runtime.backend.name in ("triton", "dense")
        self._chunk_lengths = (chunk_tokens,) if chunk_tokens else GPU_CHUNK_TOKENS if long else (CHUNK_TOKENS,)
        # until a plan knows better: what runs at nearly full speed on every GPU
        self.chunk_tokens = 8192 if len(self._chunk_lengths) > 1 else self._chunk_lengths[0]
        self.finish_reason: str | None = None
        self.prefilled_tokens = 0
        self.watch: Watch | None = None
        self._answering = False
        # ids of a kept answer that the store does not hold yet; they go before the next suffix
        self._unread: list[int] = []

    @property
    def cached_len(self) -> int:
        """Tokens of the prefix that is held."""
        return self.store.length

    @property
    def kv_dtype(self) -> str:
        """The format in which keys and values are kept."""
        return str(self.store.shape.dtype).removeprefix("torch.")

    @property
    def attention(self) -> dict[str, str | int | None]:
        """How this engine attends, with every default resolved."""
        dense = self.settings.mode == "dense"
        name = None if dense else preset_name(self.settings, self.model.device)
        below = None if dense else self.runtime.backend.dense_below
        return {"mode": self.settings.mode, "preset": name, "dense_below": below, "backend": self.runtime.backend.name}

    def plan(self, tokens: int) -> MemoryPlan:
        """What holding `tokens` tokens in all would need, the chunk length that fits, and where keys and values go."""
        return plan_run(self.model, self.settings, self.runtime, self._kv, tokens, self._chunk_lengths)

    def prefill(self, ids: Sequence[int], on_chunk: Callable[[int, int], None] | None = None, room: int = 0) -> None:
        """Append ids to the prefix, in chunks; on_chunk gets (tokens done, tokens in all) after each.

        room: tokens of question and answer to keep memory for. Raises DoesNotFit, before any work, when keys and values
        of all of it exceed the memory there is. An interrupted prefill keeps its whole chunks. When memory ends on the
        way all the same, it goes on with shorter chunks.
        """
        self.make_room(self.cached_len + len(ids) + room)
        before = self.prefilled_tokens
        for done in self._forward_chunks(ids):
            self.prefilled_tokens = before + done
            if on_chunk:
                on_chunk(done, len(ids))

    def make_room(self, tokens: int) -> None:
        """Memory for `tokens` tokens in all, and the chunk length that fits beside them. Raises DoesNotFit."""
        plan = self.plan(tokens)
        if not plan.fits:
            raise does_not_fit(plan)
        self.chunk_tokens = plan.chunk_tokens
        if plan.device_parts != self.store.device_parts:
            self.decoder.close()
            self.store = self.runtime.store = placed(self.store, plan)
        try:
            self.store.reserve(plan.tokens)
        except MemoryError as error:
            if plan.fits and "locked" in str(error):
                raise DoesNotFit(str(error), WAYS_OUT) from error
            raise does_not_fit(plan) from error

    def continue_chunks(self, length: int) -> None:
        """Cut later tokens as a prefix was cut that comes from elsewhere, so that the result is the same bit for bit."""
        self._chunk_lengths = tuple(known for known in self._chunk_lengths if known <= length) or (length,)
        self.chunk_tokens = min(self.chunk_tokens, length)

    def warm_up(self, tokens: int) -> None:
        """Compile and capture what decoding needs. tokens: of prefix, question and answer together."""
        try:
            self.decoder.prepare(tokens)
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            self.decoder.close()
            raise does_not_fit(self.plan(tokens)) from error

    def _forward_chunks(self, ids: Sequence[int]) -> Iterator[int]:
        """Run ids through the model in chunks that end at multiples of chunk_tokens; yields tokens done."""
        held = self.cached_len
        # a slice at a time: a long document never exists as one tensor of Python integers
        start = 0
        while start < len(ids):
            stop = min(len(ids), start + self.chunk_tokens - (held + start) % self.chunk_tokens)
            hidden = self._try_chunk(ids[start:stop], held + start)
            if hidden is None:
                self._shorten_chunks(stop - start)
                continue
            self._hidden = hidden
            if self.model.device == "cpu":
                give_back_free_memory()
            else:
                # a chunk counts as done when the GPU is done with it, not when it was handed over
                settle(self.model.device)
            start = stop
            yield start

    def _try_chunk(self, ids: Sequence[int], start: int) -> torch.Tensor | None:
        """`_forward`, or None when memory ran out; whatever stops it, the store ends before the chunk."""
        try:
            return self._forward(ids, start)
        except BaseException as fault:
            # layers that ran hold the chunk and the others do not
            self._cut(start)
            if not ran_out_of_memory(fault):
                raise
        # only now that the fault is gone do the tensors of the calls it came through go
        return None

    def _shorten_chunks(self, failed_tokens: int) -> None:
        """Halve chunk_tokens until it is less than the length of a chunk that found no memory, and say so."""
        what = "memory ran out" if self.model.device == "cpu" else "the GPU ran out of memory"
        if failed_tokens <= LEAST_CHUNK_TOKENS:
            raise DoesNotFit(f"{what} after {self.cached_len:,} tokens, even with a chunk of {failed_tokens}", WAYS_OUT)
        while self.chunk_tokens >= failed_tokens:
            self.chunk_tokens = max(LEAST_CHUNK_TOKENS, self.chunk_tokens // 2 // LEAST_CHUNK_TOKENS * LEAST_CHUNK_TOKENS)
        # what failed once would fail again for the next document
        self._chunk_lengths = tuple(length for length in self._chunk_lengths if length <= self.chunk_tokens) or (self.chunk_tokens,)
        # a call that kept the fault would keep its tensors too
        gc.collect()
        empty_cache(self.model.device)
        self._on_notice(f"{what} at a chunk of {failed_tokens:,} tokens: going on with {self.chunk_tokens:,}")

    def _cut(self, tokens: int) -> None:
        """Keep the first `tokens` tokens and nothing that was worked out from later ones."""
        self.store.truncate(tokens)
        self.runtime.reset_states()

    def _forward(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Hidden state of the last of ids, [1, 1, hidden]; a copy, so that those of the whole chunk can go."""
        return self._hidden_states(ids, start)[:, -1:].clone()

    @torch.inference_mode()
    def _hidden_states(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Run ids at positions from `start` on; hidden state of each, [1, n, hidden]."""
        batch = torch.as_tensor(ids, dtype=torch.int64, device=self.model.device)[None]
        # several engines may share one model: each call attends through its own runtime
        bind(self.model.network, self.runtime)
        where = positions(start, start + batch.shape[1], batch)
        return self.model.network.model(input_ids=batch, position_ids=where, use_cache=False).last_hidden_state

    def generate(
        self,
        suffix: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        stop_ids: frozenset[int] = frozenset(),
        on_read: Callable[[int], None] | None = None,
        keep: bool = False,
    ) -> Iterator[int]:
        """Yield the answer to prefix + suffix, id by id, without the stop id.

        When it ends, or is closed, suffix and answer are dropped and the prefix stays. keep: they become part of the
        prefix instead, as far as they were yielded. on_read gets the number of suffix ids read, after each chunk of them.
        """
        if len(suffix) == 0:
            raise ValueError("suffix must hold at least one id")
        if self._answering:
            raise RuntimeError("the last answer is still open: close its generator first")
        prefix, self.finish_reason, self._answering = self.cached_len, None, True
        sampler = Sampler(sampling, self.model.device)
        suffix, answer, read = [*self._unread, *suffix], [], False
        try:
            self.warm_up(prefix + len(suffix) + max_tokens)
            self._read_suffix(suffix, on_read)
            read = True
            for token in self._decode(self._hidden, max_tokens, sampler, stop_ids):
                answer.append(token)
                yield token
        finally:
            self.runtime.decode_step, self._answering = None, False
            if keep and read:
                # the last id was not run through the model, or one after it was
                held = min(self.cached_len, prefix + len(suffix) + len(answer))
                self._cut(held)
                self._unread = answer[held - prefix - len(suffix) :]
            else:
                self._cut(prefix)

    def rewind(self, tokens: int) -> None:
        """Keep the first `tokens` tokens of the prefix. Raises ValueError when it holds fewer."""
        self._cut(tokens)
        self._unread = []

    def _read_suffix(self, suffix: Sequence[int], on_read: Callable[[int], None] | None = None) -> None:
        with self._as_question():
            for done in self._forward_chunks(suffix):
                if on_read:
                    on_read(done)

    @contextmanager
    def _as_question(self) -> Iterator[None]:
        """Let what the model runs meanwhile read the prefix as a question does."""
        self.runtime.question, self.runtime.watch = True, self.watch
        try:
            yield
        finally:
            self.runtime.question, self.runtime.watch = False, None

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """Let `watch` be shown questions meanwhile, beside what is shown them already."""
        before = self.watch

        def both(layer: int, q: torch.Tensor, keys: torch.Tensor) -> None:
            if before is not None:
                before(layer, q, keys)
            watch(layer, q, keys)

        self.watch = both
        try:
            yield
        finally:
            self.watch = before

    def peek(self, suffix: Sequence[int]) -> torch.Tensor:
        """Hidden state of each of suffix behind the prefix, [n, hidden]; the prefix stays as it was."""
        held = self.cached_len
        try:
            with self._as_question():
                return self._hidden_states(suffix, held)[0]
        finally:
            self._cut(held)

    def _decode(self, hidden, max_tokens: int, sampler: Sampler, stop_ids: frozenset[int]) -> Iterator[int]:
        for count, token in enumerate(self.decoder.ids(hidden, max_tokens, sampler), 1):
            if token in stop_ids:
                self.finish_reason = "stop"
                return
            self.finish_reason = "length" if count == max_tokens else None
            yield token

    def close(self) -> None:
        """Give the memory of the prefix back."""
        self.decoder.close()
        self.runtime.reset_states()
        self.store.close()
