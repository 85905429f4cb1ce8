"""Pruning and sparse attention on a GPU: the Triton kernels behind the interface of backends.Backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hipcli.kernels import triton_attend, triton_bank, triton_candidates, triton_decode, triton_encode
from hipcli.kernels.backend import Backend, chunk_keys
from hipcli.kernels.blocks import Blocks, dense_stop, split_blocks
from hipcli.kernels.rope import rotate
from hipcli.kernels.torch_attend import dense_prefill
from hipcli.kernels.triton_prune import Selection, empty_selection, first_candidates, first_most, prune

SCRATCH_BYTES = 256 << 20  # scores and leaves of a stage at a time, which sets the blocks in a group


@dataclass
class DecodeState:
    """What one layer keeps between decode steps: its lists on the device, and what the host knows of them.

    next_position: of the token the lists are good for, None when they are not. window_start: of the last full refresh.
    bank: what the lists name, where keys or values lie on the host. candidates: what the later stages scan, where keys do.
    """

    selection: Selection | None = None
    next_position: int | None = None
    window_start: int = 0
    mass: torch.Tensor | None = None
    bank: triton_bank.Bank | None = None
    candidates: list[torch.Tensor] | None = None


class TritonBackend(Backend):
    """Kernels for NVIDIA GPUs. `mass` of a layer's state, when set, receives the attention of each decode step."""

    name = "triton"
    in_graphs = reads_codes = True

    def to_store(self, layer, keys, values, start):
        coding = self.coding(layer)
        return (keys, values) if coding is None else triton_encode.encode(keys, values, coding)

    def new_state(self) -> DecodeState:
        return DecodeState()

    def keys_from_store(self, layer, keys, start, dtype):
        coding = self.coding(layer)
        return keys if coding is None else coding.decode_keys(keys, dtype)

    def prefill(self, layer, q, k, v, state):
        start, total = k.shape[1] - q.shape[1], k.shape[1]
        edge = dense_stop(start, total, self.plan.block_len, self.dense_below, self.plan.window_tokens)
        parts = []
        if edge > start:
            phases = self.rope.table(edge)
            # few keys: rotating them again for each chunk costs less than keeping a copy in every layer
            near_k, near_v, coding = self.keys_from_store(layer, k[:, :edge], 0, q.dtype), v[:, :edge], self.coding(layer)
            near_v = near_v if coding is None else coding.decode_values(near_v, q.dtype)
            parts.append(dense_prefill(rotate(q[:, : edge - start], phases[start:]), rotate(near_k, phases), near_v))
        for run in split_blocks(edge, total, self.plan.block_len):
            for group in self._groups(run, k.shape[0], q.shape[0] // k.shape[0]):
                rows = q[:, group.first - start : group.stop - start]
                parts.append(self._sparse(layer, rows, k[:, : group.stop], v[:, : group.stop], group))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _groups(self, run: Blocks, kv: int, group: int) -> list[Blocks]:
        """Cut a run of equal blocks into groups whose scores stay within SCRATCH_BYTES."""
        pairs = kv * group if self.plan.descent == "head" else kv
        per_block = 8 * pairs * max(1, run.stop // self.plan.stages[0].chunk_len)
        size = max(1, SCRATCH_BYTES // per_block)
        return [Blocks(run.first + at * run.rows, run.rows, min(size, run.count - at)) for at in range(0, run.count, size)]

    def _sparse(self, layer: int, q, k, v, group: Blocks) -> torch.Tensor:
        firsts, selection = self._select(layer, q, k, group)
        return triton_attend.attend(q, k, v, firsts, selection, self.plan, layer, self.rope, self.coding(layer))

    def _select(self, layer: int, q, k, group: Blocks) -> tuple[torch.Tensor, Selection]:
        """First positions of a group of blocks, [NB] int32, and what pruning left them."""
        firsts = torch.arange(group.count, dtype=torch.int32, device=q.device) * group.rows + group.first
        selection = empty_selection(k.shape[0], group.count, group.stop, self.plan, layer, q.device)
        torch.sub(firsts, self.plan.window_tokens - 1, out=selection.stops)
        prune(q, k, firsts, selection, self.plan, layer, self.rope, coding=self.coding(layer))
        return firsts, selection

    def kept_keys(self, layer, q, k, first):
        _, selection = self._select(layer, q, k, Blocks(first, q.shape[1], 1))
        starts, length = selection.inputs[-1].starts[:, 0], self.plan.stages[-1].chunk_len
        return chunk_keys(starts, length, first - self.plan.window_tokens + 1)

    def decode(self, layer, q, k, v, state, from_stage):
        position = k.shape[1] - 1
        dense = position < max(self.dense_below, self.plan.window_tokens)
        if dense:
            state.next_position = None
        elif state.next_position != position or position - state.window_start >= self._near():
            from_stage = 0
        if from_stage == 0 and not dense:
            state.window_start = position - self.plan.window_tokens + 1
        where = torch.tensor([position], dtype=torch.int32, device=q.device)
        newest = slice(position, None)
        o = self._decode_stored(layer, q, k[:, newest], v[:, newest], k, v, state, from_stage, where, dense)
        if not dense:
            state.next_position = position + 1
        return o

    def _near(self) -> int:
        """Most tokens from a window's start to the newest: it grows until the next full refresh."""
        return self.plan.window_tokens + self.plan.stages[0].refresh

    def decode_at(self, layer, q, new_k, new_v, keys, values, state, from_stage, position, dense=False, far=(False, False), scanned=None):
        new_k, new_v = self.to_store(layer, new_k, new_v, 0)
        return self._decode_stored(layer, q, new_k, new_v, keys, values, state, from_stage, position, dense, far, scanned)

    def _decode_stored(
        self, layer, q, new_k, new_v, keys, values, state, from_stage, position, dense: bool, far=(False, False), scanned=None
    ) -> torch.Tensor:
        """As decode_at; new_k, new_v: [KV, 1, D] as the store has them."""
        capacity, plan = keys.shape[1], self.plan.decode
        if dense:
            near = min(capacity, max(self.dense_below, self.plan.window_tokens))
            return self._attend_span(layer, q, new_k, new_v, keys, values, position, None, near, state)
        self.prepare(layer, keys, state, q.device)
        if from_stage is not None:
            if from_stage == 0:
                torch.sub(position, plan.window_tokens - 1, out=state.selection.stops)
            if far[0] and state.candidates is None and all(stage.rounds == 0 for stage in plan.stages[1:]):
                state.candidates = triton_candidates.new_banks(state.selection.inputs[1:], plan, keys, q.device)
            source = keys if scanned is None else scanned
            prune(q, source, position, state.selection, plan, layer, self.rope, from_stage, self.coding(layer), state.candidates)
        near = min(capacity, self._near())
        if any(far):
            return self._attend_bank(layer, q, new_k, new_v, keys, values, state, from_stage, position, near)
        return self._attend_span(layer, q, new_k, new_v, keys, values, position, state.selection, near, state)

    def _attend_span(self, layer, q, new_k, new_v, keys, values, position, selection, near: int, state) -> torch.Tensor:
        plan, coding = self.plan.decode, self.coding(layer)
        return triton_decode.decode_attend(
            q, new_k, new_v, keys, values, position, selection, near, plan, layer, self.rope, state.mass, coding
        )

    def _attend_bank(self, layer, q, new_k, new_v, keys, values, state, from_stage, position, near: int) -> torch.Tensor:
        plan, selection = self.plan.decode, state.selection
        if state.bank is None or state.bank.near < near:
            state.bank = triton_bank.new_bank(selection.inputs[-1], near, plan, keys, q.device)
        bank = state.bank
        if from_stage is not None:
            candidates = state.candidates[-1] if state.candidates else None
            triton_bank.fill(bank, keys, values, position, selection, plan, from_stage == 0, candidates)
        triton_bank.enter(bank, new_k, new_v, keys, values, position)
        return self._attend_span(layer, q, new_k, new_v, bank.keys, bank.values, bank.position, bank.selection, near, state)

    def prepare(self, layer: int, keys: torch.Tensor, state: DecodeState, device: torch.device) -> None:
        """Make room for a layer's lists; outside of a graph, because they outlive it."""
        (kv, capacity, _), plan = keys.shape, self.plan.decode
        if state.selection is None:
            state.selection = empty_selection(kv, 1, capacity, plan, layer, device)
        elif state.selection.inputs[0].most < first_most(capacity, plan):
            # more chunks may enter; the lists that are kept stay
            state.selection.inputs[0] = first_candidates(kv, 1, capacity, plan, device)
