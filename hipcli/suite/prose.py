"""The real text that haystacks are cut from: files the user names, or the samples of the source folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hipcli.errors import UsageError

SAMPLES = ("handbook.md", "lighthouse.md")
_MARKS = re.compile(r"^(#+ |\||<!--|\\)")
_PARAGRAPH = re.compile(r"\n\n+")


@dataclass(frozen=True)
class Prose:
    """Text whose parts are all different. digest: of the text, to tell rows of one text from those of another."""

    text: str
    digest: str

    def turned(self, draw: Random) -> str:
        """The text from a random paragraph to its end, followed by what came before: every part of it once."""
        starts = [0, *(match.end() for match in _PARAGRAPH.finditer(self.text))]
        start = draw.choice(starts)
        return f"{self.text[start:].rstrip()}\n\n{self.text[:start].rstrip()}" if start else self.text


def load_prose(paths: Sequence[str]) -> Prose:
    """The text of files, or of the samples where none is named. Raises UsageError, InputError."""
    from hipcli.readers import read_document

    sources = list(dict.fromkeys(paths)) or sample_paths()
    if not sources:
        raise UsageError("the tasks hide facts in real prose, and there are no samples here", "give a long text: --text book.txt")
    document = read_document(sources)
    text = "\n\n".join(kept for page in document.pages if (kept := _without_marks(page.text)))
    return Prose(text, digest_of(text))


def digest_of(text: str) -> str:
    """What tells a text from others."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def sample_paths() -> list[str]:
    """The samples' prose, beside the program's source or in the current folder; empty where neither has it."""
    for folder in (Path(__file__).resolve().parents[2] / "samples", Path("samples")):
        paths = [folder / name for name in SAMPLES]
        if all(path.is_file() for path in paths):
            return [str(path) for path in paths]
    return []


def _without_marks(text: str) -> str:
    """Paragraphs only: Markdown's headings, tables and comments say nothing in the middle of a haystack."""
    kept = [line for line in text.splitlines() if not _MARKS.match(line)]
    return _PARAGRAPH.sub("\n\n", "\n".join(kept)).strip()
