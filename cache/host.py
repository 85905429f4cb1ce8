"""K and V in host memory, streamed to the device layer by layer: for contexts whose keys and values exceed the device.

While a chunk is prefilled, two staging buffers on the device take turns: one layer computes on the first while the next
layer's prefix is copied into the second. What is new goes to the staging buffer and to the host. Decode reads the host's
buffers in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hipcli.cache.base import KVStore, StoreShape
from hipcli.cache.pinned import PinnedSegment

STAGES = 2


@dataclass
class Stage:
    """Room for one layer on the device.

    held: how many of its first tokens are those of `layer`, None when nobody's. ready: the last copy into it.
    """

    keys: torch.Tensor
    values: torch.Tensor
    layer: int | None = None
    held: int = 0
    ready: torch.cuda.Event | None = None


class HostStore(KVStore):
    """One [KV, capacity, D] pair of page-locked buffers a layer on the host, two on the device of `shape`.

    view() and append() go through the staging buffers and expect layers in turn, 0 to the last; any other order works, slower.
    """

    in_place = True  # buffers() are the host's, which a kernel can read from where it is

    def __init__(self, shape: StoreShape) -> None:
        super().__init__(shape)
        self._segments: list[tuple[PinnedSegment, PinnedSegment]] = []
        self._stages: list[Stage] = []
        self._on_gpu = shape.device != "cpu"
        # one stream a direction: both can run at once, and each keeps its own order
        self._inward, self._outward = (torch.cuda.Stream(), torch.cuda.Stream()) if self._on_gpu else (None, None)

    def reserve(self, tokens: int) -> None:
        """As in KVStore. Takes one layer's old buffers beside its new ones, never two of every layer."""
        if tokens <= self._capacity:
            return
        self._settle()
        self._stages = []
        for layer in range(self.shape.layers):
            fresh = self._new_pair(tokens)
            if layer < len(self._segments):
                held = self._lengths[layer]
                for new, old in zip(fresh, self._segments[layer]):
                    new.tensor[:, :held] = old.tensor[:, :held]
                    old.close()
                self._segments[layer] = fresh
            else:
                self._segments.append(fresh)
        self._capacity = tokens

    def _new_pair(self, tokens: int) -> tuple[PinnedSegment, PinnedSegment]:
        """Room for one layer's keys and values, or for neither: what is locked stays so until it is closed."""
        sizes = self.shape.kv_heads, tokens, self.shape.head_dim
        keys = PinnedSegment(sizes, self.shape.dtype, lock=self._on_gpu)
        try:
            return keys, PinnedSegment(sizes, self.shape.dtype, lock=self._on_gpu)
        except MemoryError:
            keys.close()
            raise

    def _stage_of(self, layer: int) -> Stage:
        """The staging buffer that holds this layer, or the one that was used longest ago."""
        if not self._stages:
            sizes = self.shape.kv_heads, self._capacity, self.shape.head_dim
            like = {"dtype": self.shape.dtype, "device": self.shape.device}
            try:
                self._stages = [Stage(torch.empty(sizes, **like), torch.empty(sizes, **like)) for _ in range(STAGES)]
            except RuntimeError as error:
                raise MemoryError(f"no memory on the device for {STAGES} layers of {self._capacity} tokens") from error
        return next((stage for stage in self._stages if stage.layer == layer), self._stages[0])

    def _load(self, layer: int) -> Stage:
        """Copy what the staging buffer lacks of a layer's tokens; on the copy stream, which the caller waits for."""
        stage = self._stage_of(layer)
        if stage.layer != layer:
            stage.layer, stage.held = layer, 0
        start, stop = stage.held, self._lengths[layer]
        if start < stop:
            if self._on_gpu:
                # whoever computed on this buffer has been handed over already; what the host is to send must have arrived
                self._inward.wait_stream(torch.cuda.current_stream())
                self._inward.wait_stream(self._outward)
            with self._stream(self._inward):
                for segment, room in zip(self._segments[layer], (stage.keys, stage.values)):
                    # head by head: each copy is contiguous on both sides
                    for h in range(self.shape.kv_heads):
                        room[h, start:stop].copy_(segment.tensor[h, start:stop], non_blocking=True)
            if self._on_gpu:
                stage.ready = self._inward.record_event()
            stage.held = stop
        return stage

    def _enter(self, layer: int) -> Stage:
        """The staging buffer of a layer, loaded and last in line to be used again."""
        stage = self._load(layer)
        self._stages.sort(key=lambda other: other is stage)
        if stage.ready is not None:
            # not for the whole copy stream: it may be at the next layer's already
            torch.cuda.current_stream().wait_event(stage.ready)
        return stage

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        start, stop = self._span_of_new(layer, keys, values)
        stage = self._enter(layer)
        stage.keys[:, start:stop], stage.values[:, start:stop] = keys, values
        stage.held = stop
        self._send(layer, stage, start, stop)
        self._lengths[layer] = stop
        # the layer before this one has been handed over: its buffer is free, and fills while this layer computes
        self._load((layer + 1) % self.shape.layers)

    def _send(self, layer: int, stage: Stage, start: int, stop: int) -> None:
        if self._on_gpu:
            self._outward.wait_stream(torch.cuda.current_stream())
        with self._stream(self._outward):
            for segment, room in zip(self._segments[layer], (stage.keys, stage.values)):
                for h in range(self.shape.kv_heads):
                    segment.tensor[h, start:stop].copy_(room[h, start:stop], non_blocking=True)

    def _stream(self, stream):
        return torch.cuda.stream(stream)  # of None: stays on the current one

    def view(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._capacity:
            self.reserve(1)
        held, stage = self._lengths[layer], self._enter(layer)
        return stage.keys[:, :held], stage.values[:, :held]

    def buffers(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._capacity:
            self.reserve(1)
        # a graph that is being captured must not wait; what it will read was sent before
        if not (self._on_gpu and torch.cuda.is_current_stream_capturing()):
            self._settle()
        keys, values = self._segments[layer]
        return keys.tensor, values.tensor

    def _settle(self) -> None:
        """Wait until what was sent to the host is there."""
        if self._on_gpu:
            torch.cuda.current_stream().wait_stream(self._outward)
            self._outward.synchronize()

    def truncate(self, tokens: int) -> None:
        super().truncate(tokens)
        for stage in self._stages:
            stage.held = min(stage.held, tokens)

    @property
    def device_bytes(self) -> int:
        return STAGES * self.allocated_bytes // self.shape.layers if self._stages else 0

    def copy_out(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._on_gpu:
            self._outward.synchronize()
        keys, values = self._segments[layer]
        return keys.tensor[:, start:stop].contiguous(), values.tensor[:, start:stop].contiguous()

    def check_integrity(self) -> None:
        if len(set(self._lengths)) != 1:
            raise RuntimeError(f"layers hold different numbers of tokens: {sorted(set(self._lengths))}")
        if self.length > self._capacity:
            raise RuntimeError(f"{self.length} tokens held in room for {self._capacity}")
        for stage in self._stages:
            if stage.layer is not None and stage.held > self._lengths[stage.layer]:
                raise RuntimeError(f"a staging buffer holds {stage.held} tokens of layer {stage.layer}, which has fewer")

    def close(self) -> None:
        self._settle()
        if self._on_gpu:
            self._inward.synchronize()
        for pair in self._segments:
            for segment in pair:
                segment.close()
        self._segments, self._stages, self._capacity = [], [], 0
        self._lengths = [0] * self.shape.layers
