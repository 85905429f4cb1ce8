"""Brings keys from the host to the device before a decode step scans them: full refreshes come at steps known beforehand.

A full refresh reads every key of a layer but those of the window, which have been there for long: they are copied while
the steps before it run. Knows stores and schedules; no ids, no text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hipcli.attention import AttentionRuntime


class ScanAhead:
    """Of one store whose staging buffers stay where they are: made anew when they move.

    The first step of an answer, in which all layers refresh, reads the host in place.
    """

    def __init__(self, runtime: AttentionRuntime, layers: int) -> None:
        self._store, self._plan, self._layers = runtime.store, runtime.backend.plan, layers
        self._cycle = self._plan.stages[0].refresh
        far = [layer for layer in range(layers) if self._store.far(layer)[0]]
        # (step of the cycle, layer), in the order in which they come
        self._due = [
            (step, layer) for step in range(1, self._cycle + 1) for layer in far if self._plan.refresh_stage(step, layer, layers) == 0
        ]

    def rooms(self, pattern: Sequence[int | None]) -> list[torch.Tensor | None]:
        """Per layer where a step of this pattern finds the keys that it scans whole, None for the store's own buffers."""
        found: list[torch.Tensor | None] = [None] * self._layers
        for layer in self._staged(pattern):
            found[layer] = self._store.scan_room(layer)
        return found

    def _staged(self, pattern: Sequence[int | None]) -> list[int]:
        """Layers of a pattern whose keys are brought: the first for each staging buffer; none where all layers refresh."""
        if not pattern or all(stage == 0 for stage in pattern):
            return []
        full = [layer for layer, stage in enumerate(pattern) if stage == 0 and self._store.far(layer)[0]]
        rooms = [self._store.scan_room(layer).data_ptr() for layer in full]
        return [layer for at, layer in enumerate(full) if rooms[at] not in rooms[:at]]

    def before(self, pattern: Sequence[int | None]) -> None:
        """To be called before a step is handed over: it waits for the keys that it scans."""
        if self._due:
            for layer in self._staged(pattern):
                self._store.await_scan(layer, max(0, self._store.length - self._plan.window_tokens + 1))

    def after(self, step: int) -> None:
        """To be called once a step, counted from the answer's first sparse one, was handed over: the next keys set out."""
        if not self._due:
            return
        at = step % self._cycle
        coming = [layer for due, layer in self._due if due > at] + [layer for due, layer in self._due if due <= at]
        taken: list[int] = []
        for layer in coming[:2]:
            room = self._store.scan_room(layer).data_ptr()
            if room not in taken:
                self._store.stage_scan(layer, self._store.length)
            taken.append(room)
