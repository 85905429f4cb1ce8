"""White space around a text that comes in pieces. Knows nothing of where the text goes."""

from __future__ import annotations


class Trimmer:
    """Strips a text that comes in pieces: white space that may turn out to be its end is held back."""

    def __init__(self) -> None:
        self._held, self.started = "", False

    def push(self, text: str) -> str:
        """What is surely part of the stripped text; `started` once anything was."""
        text = self._held + text
        if not self.started:
            text = text.lstrip()
        body = text.rstrip()
        self._held = text[len(body) :]
        self.started = self.started or bool(body)
        return body
