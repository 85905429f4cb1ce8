"""Texts that end an answer, found in what comes piece by piece. Knows nothing of where the pieces come from."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Lets a text through up to the first of these stops, which is left out. hit: whether one was met."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held, self.hit = stops, "", False

    def push(self, text: str) -> str:
        """What surely stands before any stop."""
        if self.hit:
            return ""
        text = self._held + text
        found = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            self.hit, self._held = True, ""
            return text[:found]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and is the beginning of no stop after all."""
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How much of the text's end is the beginning of a stop."""
        return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
