"""Whether the words of a page have run together, as they do in PDFs that set words side by side without spaces. Knows texts only."""

from __future__ import annotations

import re

# of scripts that put spaces between words
_LETTERS = re.compile(r"[A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u052f]+")
_LONG = 20  # letters that few words have, German compounds among them
_FEWEST = 5
_SHARE = 1 / 3


def is_glued(text: str) -> bool:
    """Whether at least five words, and a third of all letters, are in words of 20 letters or more."""
    lengths = [match.end() - match.start() for match in _LETTERS.finditer(text)]
    long = [length for length in lengths if length >= _LONG]
    return len(long) >= _FEWEST and sum(long) >= _SHARE * sum(lengths)
