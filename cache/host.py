"""K and V partly or wholly in host memory beside a GPU: for contexts whose keys and values exceed the device.

Prefill streams what lies on the host past the device (cache/lane.py); decode reads the host's buffers in place.
"""

from __future__ import annotations

import torch

from hipcli.cache.base import KVStore, StoreShape
from hipcli.cache.lane import Lane


class HostStore(KVStore):
    """Keys of `key_layers` layers and values of `value_layers` on the device of `shape`, the others on the host.

    view() and append() go through staging buffers and expect layers in turn, 0 to the last; any other order works, slower.
    """

    def __init__(self, shape: StoreShape, key_layers: int = 0, value_layers: int = 0) -> None:
        super().__init__(shape)
        self.device_parts = key_layers, value_layers
        self._on_gpu = shape.device != "cpu"
        self._inward, self._outward = (torch.cuda.Stream(), torch.cuda.Stream()) if self._on_gpu else (None, None)
        self._keys, self._values = (Lane(shape, resident, self._inward, self._outward) for resident in self.device_parts)

    @property
    def _lanes(self) -> tuple[Lane, Lane]:
        return self._keys, self._values

    def far(self, layer: int) -> tuple[bool, bool]:
        return not self._keys.resident[layer], not self._values.resident[layer]

    def scan_room(self, layer: int) -> torch.Tensor | None:
        stage = self._keys.scan_stage(layer)
        return None if stage is None else stage.room

    def stage_scan(self, layer: int, tokens: int) -> None:
        stage = self._keys.scan_stage(layer)
        # what came since is copied when it is waited for, not step by step
        if stage.layer != layer:
            self._keys.load(layer, tokens, stage)

    def await_scan(self, layer: int, tokens: int) -> None:
        self._keys.await_stage(self._keys.load(layer, tokens, self._keys.scan_stage(layer)))

    def reserve(self, tokens: int) -> None:
        """As in KVStore. Takes one layer's old buffers beside its new ones, never two of every layer."""
        if tokens <= self._capacity:
            return
        self._settle()
        for layer in range(self.shape.layers):
            keys = self._keys.new_buffer(layer, tokens)
            try:
                values = self._values.new_buffer(layer, tokens)
            except MemoryError:
                # room for both or for neither: what is locked stays so until it is closed
                self._keys.discard(keys)
                raise
            for lane, fresh in zip(self._lanes, (keys, values)):
                lane.adopt(layer, fresh, self._lengths[layer])
        self._capacity = tokens

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        start, stop = self._span_of_new(layer, keys, values)
        for lane, new in zip(self._lanes, (keys, values)):
            lane.put(layer, start, new)
        self._lengths[layer] = stop
        for lane in self._lanes:
            # the layer before this one has been handed over: its buffer is free, and fills while this layer computes
            lane.prefetch(layer, self._lengths)

    def view(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._capacity:
            self.reserve(1)
        held = self._lengths[layer]
        keys, values = (lane.enter(layer, held) for lane in self._lanes)
        return keys[:, :held], values[:, :held]

    def buffers(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._capacity:
            self.reserve(1)
        # a graph that is being captured must not wait; what it will read was sent before
        if not (self._on_gpu and torch.cuda.is_current_stream_capturing()):
            self._settle()
        return self._keys.buffer(layer), self._values.buffer(layer)

    def _settle(self) -> None:
        """Wait until what was sent to the host is there."""
        if self._on_gpu:
            torch.cuda.current_stream().wait_stream(self._outward)
            self._outward.synchronize()

    def truncate(self, tokens: int) -> None:
        super().truncate(tokens)
        for lane in self._lanes:
            lane.truncate(tokens)

    @property
    def device_bytes(self) -> int:
        return sum(lane.device_bytes for lane in self._lanes)

    @property
    def bus_bytes(self) -> int:
        return sum(lane.bytes_in + lane.bytes_out for lane in self._lanes)

    def copy_out(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._on_gpu:
            self._outward.synchronize()
        keys, values = (lane.buffer(layer)[:, start:stop].to("cpu").contiguous() for lane in self._lanes)
        return keys, values

    def check_integrity(self) -> None:
        if len(set(self._lengths)) != 1:
            raise RuntimeError(f"layers hold different numbers of tokens: {sorted(set(self._lengths))}")
        if self.length > self._capacity:
            raise RuntimeError(f"{self.length} tokens held in room for {self._capacity}")
        for lane in self._lanes:
            lane.check_integrity(self._lengths)

    def close(self) -> None:
        self._settle()
        if self._on_gpu:
            self._inward.synchronize()
        for lane in self._lanes:
            lane.close()
        self._capacity = 0
        self._lengths = [0] * self.shape.layers
