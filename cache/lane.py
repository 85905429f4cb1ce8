"""Keys, or values, of every layer: some layers on the device, the others on the host, streamed layer by layer.

While a chunk is prefilled, two staging buffers on the device take turns: one layer computes on the first while the prefix
of the next layer that lies on the host is copied into the second. What is new goes to the staging buffer and to the host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from hipcli.cache.base import StoreShape
from hipcli.cache.pinned import PinnedSegment

STAGES = 2


def spread(layers: int, resident: int) -> tuple[bool, ...]:
    """Which layers lie on the device when `resident` of them do: evenly among the others, whose copies then hide behind them."""
    return tuple((layer + 1) * resident // layers > layer * resident // layers for layer in range(layers))


@dataclass
class Stage:
    """Room for one layer on the device.

    number: which of the STAGES it is. held: how many of its first tokens are those of `layer`, None when nobody's. ready: the last copy into it.
    """

    number: int
    room: torch.Tensor
    layer: int | None = None
    held: int = 0
    ready: torch.cuda.Event | None = None


class Lane:
    """One [KV, capacity, D] buffer a layer: a tensor on the device of `shape`, or page-locked memory on the host.

    bytes_in, bytes_out: copied to the device and to the host so far. Streams: one a direction, so that both can run at
    once and each keeps its own order; None on a CPU.
    """

    def __init__(self, shape: StoreShape, resident: int, inward, outward) -> None:
        self.shape, self.resident = shape, spread(shape.layers, resident)
        self.bytes_in = self.bytes_out = 0
        self._buffers: list[torch.Tensor | PinnedSegment] = []
        self._stages: list[Stage] = []
        self._on_gpu = shape.device != "cpu"
        self._inward, self._outward = inward, outward
        self._capacity = 0

    def adopt(self, layer: int, fresh: torch.Tensor | PinnedSegment, held: int) -> None:
        """Let a layer have this buffer, with the `held` tokens of the one it had."""
        self._stages = []
        if layer < len(self._buffers):
            old = self._buffers[layer]
            self._tensor(fresh)[:, :held] = self._tensor(old)[:, :held]
            self.discard(old)
            self._buffers[layer] = fresh
        else:
            self._buffers.append(fresh)
        self._capacity = max(self._capacity, self._tensor(fresh).shape[1])

    def new_buffer(self, layer: int, tokens: int) -> torch.Tensor | PinnedSegment:
        """Room for `tokens` tokens of a layer, where it belongs. Raises MemoryError."""
        sizes = self.shape.kv_heads, tokens, self.shape.head_dim
        if self.resident[layer]:
            return self._on_device(sizes)
        return PinnedSegment(sizes, self.shape.dtype, lock=self._on_gpu)

    def _on_device(self, sizes: tuple[int, int, int]) -> torch.Tensor:
        try:
            return torch.empty(sizes, dtype=self.shape.dtype, device=self.shape.device)
        except RuntimeError as error:
            raise MemoryError(f"no memory for {sizes[1]} tokens of a layer on the device") from error

    @staticmethod
    def _tensor(buffer: torch.Tensor | PinnedSegment) -> torch.Tensor:
        return buffer if isinstance(buffer, torch.Tensor) else buffer.tensor

    @staticmethod
    def discard(buffer: torch.Tensor | PinnedSegment) -> None:
        if isinstance(buffer, PinnedSegment):
            buffer.close()

    def buffer(self, layer: int) -> torch.Tensor:
        """The room of one layer where it lies, [KV, capacity, D]."""
        return self._tensor(self._buffers[layer])

    def enter(self, layer: int, held: int) -> torch.Tensor:
        """The room of one layer on the device, [KV, capacity, D], its first `held` tokens there or on their way."""
        if self.resident[layer]:
            return self.buffer(layer)
        stage = self.load(layer, held)
        self._stages.sort(key=lambda other: other is stage)
        self.await_stage(stage)
        return stage.room

    def await_stage(self, stage: Stage) -> None:
        """Let what the device computes next wait for the last copy into a staging buffer."""
        if stage.ready is not None:
            # not for the whole copy stream: it may be at the next layer's already
            torch.cuda.current_stream().wait_event(stage.ready)

    def scan_stage(self, layer: int) -> Stage | None:
        """The staging buffer in which a decode step scans a layer: they take turns. None for a layer on the device."""
        if self.resident[layer]:
            return None
        number = self.resident[:layer].count(False) % STAGES
        return next(stage for stage in self._made_stages() if stage.number == number)

    def put(self, layer: int, start: int, new: torch.Tensor) -> None:
        """Store new tokens [KV, n, D] behind the `start` that are held."""
        room, stop = self.enter(layer, start), start + new.shape[1]
        room[:, start:stop] = new
        if self.resident[layer]:
            return
        self._stages[-1].held = stop
        if self._on_gpu:
            self._outward.wait_stream(torch.cuda.current_stream())
        self.bytes_out += self._copy(self.buffer(layer), room, start, stop, self._outward)

    def prefetch(self, layer: int, lengths: list[int]) -> None:
        """Begin to copy the first layer after `layer` that lies on the host; the staging buffer used longest ago is free for it."""
        others = [(layer + ahead) % self.shape.layers for ahead in range(1, self.shape.layers)]
        ahead = next((other for other in others if not self.resident[other]), None)
        if ahead is not None and not (self._stages and self._stages[-1].layer == ahead):
            self.load(ahead, lengths[ahead])

    def load(self, layer: int, stop: int, stage: Stage | None = None) -> Stage:
        """Copy what a staging buffer lacks of a layer's first `stop` tokens; on the copy stream, which the caller waits for.

        stage: None for the one that holds the layer, or else was used longest ago.
        """
        stage = stage or next((made for made in self._made_stages() if made.layer == layer), self._stages[0])
        if stage.layer != layer:
            stage.layer, stage.held = layer, 0
        if stage.held < stop:
            if self._on_gpu:
                # whoever computed on this buffer has been handed over already; what the host is to send must have arrived
                self._inward.wait_stream(torch.cuda.current_stream())
                self._inward.wait_stream(self._outward)
            self.bytes_in += self._copy(stage.room, self.buffer(layer), stage.held, stop, self._inward)
            if self._on_gpu:
                stage.ready = self._inward.record_event()
            stage.held = stop
        return stage

    def _made_stages(self) -> list[Stage]:
        """The staging buffers, the one used longest ago first."""
        if not self._stages:
            sizes = self.shape.kv_heads, self._capacity, self.shape.head_dim
            self._stages = [Stage(number, self._on_device(sizes)) for number in range(STAGES)]
        return self._stages

    def _copy(self, to: torch.Tensor, source: torch.Tensor, start: int, stop: int, stream) -> int:
        """Copy tokens [start, stop) on a stream; returns the bytes."""
        with self._on(stream):
            # head by head: each copy is contiguous on both sides
            for h in range(self.shape.kv_heads):
                to[h, start:stop].copy_(source[h, start:stop], non_blocking=True)
        return to[:, start:stop].numel() * to.element_size()

    def _on(self, stream) -> AbstractContextManager:
        return torch.cuda.stream(stream)  # of None: stays on the current one

    def truncate(self, tokens: int) -> None:
        for stage in self._stages:
            stage.held = min(stage.held, tokens)

    @property
    def device_bytes(self) -> int:
        """Bytes set aside on the device."""
        buffers = sum(self.resident[layer] for layer in range(len(self._buffers))) + len(self._stages)
        return buffers * self._capacity * self.shape.kv_heads * self.shape.head_dim * self.shape.dtype.itemsize

    def check_integrity(self, lengths: list[int]) -> None:
        for stage in self._stages:
            if stage.layer is not None and stage.held > lengths[stage.layer]:
                raise RuntimeError(f"a staging buffer holds {stage.held} tokens of layer {stage.layer}, which has fewer")

    def close(self) -> None:
        for buffer in self._buffers:
            self.discard(buffer)
        self._buffers, self._stages, self._capacity = [], [], 0
