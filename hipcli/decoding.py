"""The decode loop: one token after another, through the model as it is or through CUDA graphs of whole steps.

Knows ids and models; no text. A step's graph holds the model, the attention and the choice of the likeliest token; what
changes from step to step (token, position) lives in tensors that the graph reads and writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

from hipcli.attention import AttentionRuntime, DeviceStep, bind
from hipcli.devices import nothing_beside
from hipcli.model import LoadedModel, positions
from hipcli.sampling import Sampler
from hipcli.scan_ahead import ScanAhead


@torch.inference_mode()
def last_logits(model: LoadedModel, hidden: torch.Tensor) -> torch.Tensor:
    """[1, 1, hidden] -> [vocab] fp32, of one position only."""
    return model.network.lm_head(hidden)[0, 0].float()


class Decoder(ABC):
    """Runs decode steps of one model over one store.

    runs_ahead: a step is handed over before the id it starts from is read here, so that the device never waits for the
    host; the step after the last id is then for nothing.
    """

    runs_ahead = False
    _first_sparse: int | None = None

    def __init__(self, model: LoadedModel, runtime: AttentionRuntime) -> None:
        self.model, self.runtime = model, runtime

    def prepare(self, tokens: int) -> None:
        """Make ready what the first step would wait for. tokens: that the store will hold at most. Raises MemoryError."""

    def ids(self, hidden: torch.Tensor, max_tokens: int, sampler: Sampler) -> Iterator[int]:
        """Up to max_tokens ids, the first from `hidden` [1, 1, hidden]."""
        token = self.begin(sampler.draw(last_logits(self.model, hidden)))
        for step in range(max_tokens):
            self.fetch(token)
            more = step + 1 < max_tokens
            if more and self.runs_ahead:
                token = self.step(step, sampler)
            yield self.fetched()
            if more and not self.runs_ahead:
                token = self.step(step, sampler)

    def close(self) -> None:
        """Give back what `prepare` made."""

    @property
    def dense_stop(self) -> int:
        """First position whose step is sparse, 0 when all are or when the held tokens are beyond it."""
        backend = self.runtime.backend
        stop = max(backend.dense_below, backend.plan.window_tokens)
        return stop if self.runtime.store.length < stop else 0

    def sparse_step(self, step: int) -> int | None:
        """Sparse steps before decode step `step`, None while steps are dense.

        Refreshes are counted from the first sparse step, which runs every stage, wherever the answer has got to.
        """
        if step == 0:
            self._first_sparse = None
        if self.dense_stop:
            return None
        if self._first_sparse is None:
            self._first_sparse = step
        return step - self._first_sparse

    @abstractmethod
    def begin(self, token: torch.Tensor) -> torch.Tensor:
        """Take the first id, [] int64, as the next step's input."""

    @abstractmethod
    def step(self, step: int, sampler: Sampler) -> torch.Tensor:
        """Run decode step number `step` on the last id; returns the next one, [] int64 on the device."""

    @abstractmethod
    def fetch(self, token: torch.Tensor) -> None:
        """Ask for an id to be copied to the host."""

    @abstractmethod
    def fetched(self) -> int:
        """The id last asked for, once it is here."""


class EagerDecoder(Decoder):
    """Calls the model for every step: on a CPU, and with backends that no graph can hold."""

    def begin(self, token):
        self._token = token
        return token

    @torch.inference_mode()
    def step(self, step, sampler):
        self.runtime.decode_step = self.sparse_step(step) or 0
        bind(self.model.network, self.runtime)
        ids, at = self._token.view(1, 1), self.runtime.store.length
        hidden = self.model.network.model(input_ids=ids, position_ids=positions(at, at + 1, ids), use_cache=False).last_hidden_state
        return self.begin(sampler.draw(last_logits(self.model, hidden)))

    def fetch(self, token):
        self._asked = token

    def fetched(self):
        return int(self._asked)


class GraphDecoder(Decoder):
    """Replays CUDA graphs of a whole step, one for each pattern of layers that refresh their lists in it."""

    runs_ahead = True

    def __init__(self, model: LoadedModel, runtime: AttentionRuntime) -> None:
        super().__init__(model, runtime)
        like = dict(dtype=torch.int64, device=model.device)
        self.token, self.where = torch.zeros(1, 1, **like), torch.zeros(1, 1, **like)
        self.position = torch.zeros(1, dtype=torch.int32, device=model.device)
        self.states = [runtime.backend.new_state() for _ in range(model.layers)]
        self._host = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._arrived = torch.cuda.Event()
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._buffers: list[tuple[int, int]] = []
        self._ahead = ScanAhead(runtime, model.layers)

    def prepare(self, tokens: int) -> None:
        """Compile the kernels and capture every pattern; again when the store's buffers have moved."""
        store = self.runtime.store
        store.reserve(max(tokens, store.length + 1))
        buffers = [(part.data_ptr(), part.shape[1]) for layer in range(self.model.layers) for part in store.buffers(layer)]
        if buffers == self._buffers:
            return
        self._graphs, self._pool = {}, torch.cuda.graph_pool_handle()
        self._ahead = ScanAhead(self.runtime, self.model.layers)
        # a capture cannot make torch give back what it holds unused
        torch.cuda.empty_cache()
        # the first of them fills the lists that the others reuse
        for pattern in self.patterns():
            self._graphs[pattern] = self._captured(pattern)
        self._buffers = buffers

    def close(self) -> None:
        self._graphs, self._buffers = {}, []

    def patterns(self) -> list[tuple]:
        """Every pattern a step can have: per layer the first stage to refresh; () is a dense step."""
        plan, layers = self.runtime.backend.plan, self.model.layers
        steps = range(plan.stages[0].refresh + 1)
        found = dict.fromkeys(tuple(plan.refresh_stage(step, layer, layers) for layer in range(layers)) for step in steps)
        return [(), *found] if self.dense_stop else list(found)

    @torch.inference_mode()
    def _captured(self, pattern: tuple) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """A graph of a step and the logits it leaves. Writes to the slot behind the held tokens, which is free."""
        token = self.token.clone()
        bind(self.model.network, self.runtime)
        stages, scanned = pattern or (None,) * self.model.layers, self._ahead.rooms(pattern)
        self.runtime.device_step = DeviceStep(self.position, stages, self.states, not pattern, scanned)
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._stand_at(self.runtime.store.length)
                # compiles what is not compiled yet, which a capture must not
                self._forward()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with nothing_beside(), torch.cuda.graph(graph, pool=self._pool):
                logits = self._forward()
        finally:
            self.runtime.device_step = None
        self._stand_at(self.runtime.store.length)
        self.token.copy_(token)
        return graph, logits

    def _forward(self) -> torch.Tensor:
        """One step from the static inputs to logits [vocab] fp32; leaves the likeliest id as the next input."""
        hidden = self.model.network.model(input_ids=self.token, position_ids=self.where, use_cache=False).last_hidden_state
        logits = last_logits(self.model, hidden)
        self.token.copy_(logits.argmax())
        self.position.add_(1)
        self.where.add_(1)
        return logits

    def _stand_at(self, position: int) -> None:
        self.position.fill_(position)
        self.where.fill_(position)

    @torch.inference_mode()
    def begin(self, token):
        self._stand_at(self.runtime.store.length)
        self.token.copy_(token)
        return self.token

    @torch.inference_mode()
    def step(self, step, sampler):
        plan, layers, since = self.runtime.backend.plan, self.model.layers, self.sparse_step(step)
        pattern = () if since is None else tuple(plan.refresh_stage(since, layer, layers) for layer in range(layers))
        if pattern not in self._graphs:
            # dense, after graphs were captured for a longer prefix
            self._graphs[pattern] = self._captured(pattern)
        graph, logits = self._graphs[pattern]
        self._ahead.before(pattern)
        graph.replay()
        self.runtime.store.claim(1)
        if since is not None:
            self._ahead.after(since)
        if sampler.sampling.temperature > 0:
            self.token.copy_(sampler.draw(logits))
        return self.token

    def fetch(self, token):
        self._host.copy_(token.view(1), non_blocking=True)
        self._arrived.record()

    def fetched(self):
        self._arrived.synchronize()
        return int(self._host)


def make_decoder(model: LoadedModel, runtime: AttentionRuntime) -> Decoder:
    """The fastest way to decode that this backend allows on this device."""
    graphs = runtime.backend.in_graphs and model.device.startswith("cuda")
    return (GraphDecoder if graphs else EagerDecoder)(model, runtime)
