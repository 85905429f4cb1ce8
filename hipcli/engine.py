"""Token ids in, token ids out: chunked prefill of a prefix that stays, answers whose tokens are dropped again.

Knows ids and models; no text, no tokenizer, no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from hipcli.attention import AttentionRuntime, bind, open_backend, preset_name
from hipcli.cache.resident import ResidentStore
from hipcli.dtype_probe import matmul_rate
from hipcli.errors import DoesNotFit
from hipcli.memory import MemoryPlan, give_back_free_memory, plan_memory
from hipcli.model import LoadedModel, positions
from hipcli.sampling import Sampler, Sampling
from hipcli.settings import AttentionSettings

CHUNK_TOKENS = 1024  # a multiple of every preset's block length


class Engine:
    """One sequence on one model. `finish_reason` of the last answer: "stop" or "length"."""

    def __init__(self, model: LoadedModel, settings: AttentionSettings) -> None:
        self.model, self.settings = model, settings
        backend = open_backend(settings, model.rope, model.trained_window, model.device)
        self.store = ResidentStore(model.store_shape)
        self.runtime = AttentionRuntime(backend, self.store)
        self.finish_reason: str | None = None
        self._answering = False

    @property
    def cached_len(self) -> int:
        """Tokens of the prefix that is held."""
        return self.store.length

    @property
    def attention(self) -> dict[str, str | int | None]:
        """How this engine attends, with every default resolved."""
        dense = self.settings.mode == "dense"
        name = None if dense else preset_name(self.settings, self.model.device)
        below = None if dense else self.runtime.backend.dense_below
        return {"mode": self.settings.mode, "preset": name, "dense_below": below, "backend": self.runtime.backend.name}

    def plan(self, tokens: int) -> MemoryPlan:
        """What holding `tokens` tokens in all would need."""
        return plan_memory(self.model, tokens, self.store.allocated_bytes, self._keys_read(tokens), matmul_rate(self.model.dtype))

    def _keys_read(self, tokens: int) -> float:
        """Mean number of keys that a query of a prefill of `tokens` tokens reads."""
        dense = tokens / 2
        if self.settings.mode == "dense":
            return dense
        plan = self.runtime.backend.plan
        return min(dense, plan.sink_tokens + plan.keep_tokens(self.model.layers) + plan.window_tokens)

    def prefill(self, ids: Sequence[int], on_chunk: Callable[[int, int], None] | None = None, room: int = 0) -> None:
        """Append ids to the prefix, in chunks; on_chunk gets (tokens done, tokens in all) after each.

        room: tokens of question and answer to keep memory for. Raises DoesNotFit, before any work, when keys and values
        of all of it exceed the memory there is. An interrupted prefill keeps its whole chunks.
        """
        plan = self.plan(self.cached_len + len(ids) + room)
        if not plan.fits:
            need, have = plan.peak_bytes / 2**30, plan.available_bytes / 2**30
            raise DoesNotFit(
                f"{plan.tokens:,} tokens need {need:.1f} GiB of memory and {have:.1f} GiB are free",
                "use fewer pages, a smaller --max-tokens, a smaller model, or a machine with more memory; nothing was cut off",
            )
        self.store.reserve(plan.tokens)
        for done in self._forward_chunks(ids):
            if on_chunk:
                on_chunk(done, len(ids))

    def _forward_chunks(self, ids: Sequence[int]) -> Iterator[int]:
        """Run ids through the model in chunks that end at multiples of CHUNK_TOKENS; yields tokens done."""
        held = self.cached_len
        # a slice at a time: a long document never exists as one tensor of Python integers
        start = 0
        while start < len(ids):
            stop = min(len(ids), start + CHUNK_TOKENS - (held + start) % CHUNK_TOKENS)
            try:
                self._hidden = self._forward(ids[start:stop], held + start)
            except BaseException:
                # layers that ran hold the chunk and the others do not
                self._cut(held + start)
                raise
            give_back_free_memory()
            start = stop
            yield start

    def _cut(self, tokens: int) -> None:
        """Keep the first `tokens` tokens and nothing that was worked out from later ones."""
        self.store.truncate(tokens)
        self.runtime.reset_states()

    def _forward(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Hidden state of the last of ids, [1, 1, hidden]."""
        return self._hidden_states(ids, start)[:, -1:]

    @torch.inference_mode()
    def _hidden_states(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Run ids at positions from `start` on; hidden state of each, [1, n, hidden]."""
        batch = torch.as_tensor(ids, dtype=torch.int64, device=self.model.device)[None]
        # several engines may share one model: each call attends through its own runtime
        bind(self.model.network, self.runtime)
        where = positions(start, start + batch.shape[1], batch)
        return self.model.network.model(input_ids=batch, position_ids=where, use_cache=False).last_hidden_state

    @torch.inference_mode()
    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[1, 1, hidden] -> [vocab] fp32, of one position only."""
        return self.model.network.lm_head(hidden)[0, 0].float()

    def generate(
        self,
        suffix: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        stop_ids: frozenset[int] = frozenset(),
        on_suffix: Callable[[], None] | None = None,
    ) -> Iterator[int]:
        """Yield the answer to prefix + suffix, id by id, without the stop id.

        When it ends, or is closed, suffix and answer are dropped and the prefix stays. on_suffix is called once the
        suffix has been read.
        """
        if len(suffix) == 0:
            raise ValueError("suffix must hold at least one id")
        if self._answering:
            raise RuntimeError("the last answer is still open: close its generator first")
        prefix, self.finish_reason, self._answering = self.cached_len, None, True
        sampler = Sampler(sampling, self.model.device)
        try:
            for _ in self._forward_chunks(suffix):
                pass
            if on_suffix:
                on_suffix()
            yield from self._decode(self._hidden, max_tokens, sampler, stop_ids)
        finally:
            self.runtime.decode_step, self._answering = None, False
            self._cut(prefix)

    def _decode(self, hidden, max_tokens: int, sampler: Sampler, stop_ids: frozenset[int]) -> Iterator[int]:
        for step in range(max_tokens):
            token = sampler.draw(self._logits(hidden))
            if token in stop_ids:
                self.finish_reason = "stop"
                return
            self.finish_reason = "length" if step + 1 == max_tokens else None
            yield token
            if step + 1 < max_tokens:
                self.runtime.decode_step = step
                hidden = self._forward([token], self.cached_len)

    def close(self) -> None:
        """Give the memory of the prefix back."""
        self.runtime.reset_states()
        self.store.close()
