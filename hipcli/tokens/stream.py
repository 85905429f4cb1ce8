"""Ids in, text out, as they come: only complete characters, and never a control token.

Knows nothing of models or terminals.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

# no character has more bytes than this, so a longer wait is for nothing
MAX_CHARACTER_BYTES = 4


class StreamDecoder:
    """Text of a byte-level tokenizer's ids.

    table: bytes of each id.
    hidden: ids that are never shown.
    """

    def __init__(self, table: Sequence[bytes], hidden: frozenset[int]) -> None:
        self._table = table
        self._hidden = hidden
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this id completes; may be empty."""
        if token_id in self._hidden or not 0 <= token_id < len(self._table):
            return ""
        return self._utf8.decode(self._table[token_id])

    def finish(self) -> str:
        """What is left: U+FFFD where the ids ended inside a character, else nothing."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class WindowDecoder(StreamDecoder):
    """Text of any other tokenizer's ids: what a decoded window of ids gains with each new id.

    decode: ids → text.
    hidden: ids that are never shown.
    """

    def __init__(self, decode: Callable[[list[int]], str], hidden: frozenset[int]) -> None:
        super().__init__((), hidden)
        self._decode = decode
        # a decoder treats a space at the front as its own, so shown ids stay in the window before new ones
        self._shown: list[int] = []
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        """The characters that this id completes; may be empty."""
        if token_id in self._hidden:
            return ""
        self._waiting.append(token_id)
        text = self._gain()
        if text.endswith("\ufffd") and len(self._waiting) < MAX_CHARACTER_BYTES:
            return ""
        if text:
            self._shown, self._waiting = self._waiting, []
        return text

    def finish(self) -> str:
        """What is left: U+FFFD where the ids ended inside a character, else nothing."""
        text = self._gain()
        self._shown, self._waiting = [], []
        return text

    def _gain(self) -> str:
        return self._decode(self._shown + self._waiting)[len(self._decode(self._shown)) :]
