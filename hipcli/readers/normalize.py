"""Raw text from any reader in, text that every later step can hold out, with a map back to the raw text.

What leaves here has no NUL, no control characters but tab and newline, no lone surrogates, no ligatures of Latin
letters, no soft hyphens, and words that were cut at a line end joined again. Compatibility forms stay as they are:
folding them would change mathematics and East Asian widths. Knows nothing of files, pages or tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hipcli.readers.offsets import OffsetMap, edit

NORMALIZER_VERSION = 1
LONGEST_RUN = 10_000  # of one white-space character

_LIGATURES = {"\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl", "\ufb05": "st", "\ufb06": "st"}
_LINE_ENDS = frozenset("\r\x0b\x0c\x85\u2028\u2029")

# one leading character class each: the expression engine skips clean text fast only then.
# \x02 is kept for the next step: pdfium writes it, or U+FFFE, for a hyphen at a line end
_ASCII_FAULTS = re.compile(r"[\x00\x01\x03-\x08\x0b-\x1f\x7f](?:(?<=\r)\n)?")
_FAULTS = re.compile(
    r"[\x00\x01\x03-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufb00-\ufb06\ud800-\udfff]"
    r"(?:(?<=\r)\n|(?<=[\ud800-\udbff])[\udc00-\udfff])?"
)
_START_MARKS = "\ufeff\u200b\u200c\u200d"
_SOFT_MARKS = "\x02\ufffe\u00ad"
_BREAKS = re.compile(r"[\x02\ufffe\u00ad]+(?:[ \t]*\n[ \t]*)?|(?<=[^\W\d_])-\n[ \t]*(?=[^\W\d_])")
_WORD_BEFORE = re.compile(r"[^\W\d_]+\Z")
_WORD_AFTER = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_WHITE_SPACE = " \t\n\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_RUNS = re.compile(r"(\s)\1*")
_ODD = re.compile(r"([\ue000-\uf8ff\U000f0000-\U0010fffd])|(\ufffd)|([\u202a-\u202e\u2066-\u2069])")
_ODDITIES = ("", "private use", "replacement", "bidi control")  # by the groups of _ODD
_LONGEST_WORD = 60


@dataclass(frozen=True)
class Normalized:
    """text: the clean text. offsets: from it back to the raw text. counts: how often each kind of change or oddity was met."""

    text: str
    offsets: OffsetMap
    counts: Counter[str]


def normalize(text: str) -> Normalized:
    """Clean one text that is a whole document."""
    return normalize_pages([text])[0]


def normalize_pages(texts: Iterable[str]) -> list[Normalized]:
    """Clean the pages of one document; what is on any of them decides over the hyphens at the line ends of all."""
    all_counts: list[Counter[str]] = []
    steps: list[tuple[str, OffsetMap]] = []
    for text in texts:
        all_counts.append(Counter())
        steps.append(edit(text, _fault_changes(text, all_counts[-1])))
    breaks = [_find_breaks(text) for text, _ in steps]
    words = _hyphen_words([text for text, _ in steps], breaks)
    return [_finish(*step, found, words, counts) for step, found, counts in zip(steps, breaks, all_counts)]


def _finish(text: str, offsets: OffsetMap, breaks: list[re.Match[str]], words: frozenset[str], counts: Counter[str]) -> Normalized:
    text, step = edit(text, _break_changes(text, breaks, words, counts))
    offsets = step.over(offsets)
    if _has_long_run(text):
        text, step = edit(text, _run_changes(text, counts))
        offsets = step.over(offsets)
    if not text.isascii():
        counts.update(_ODDITIES[match.lastindex or 0] for match in _ODD.finditer(text))
    return Normalized(text, offsets, counts)


def _find_breaks(text: str) -> list[re.Match[str]]:
    if "-\n" in text or any(mark in text for mark in _SOFT_MARKS):
        return list(_BREAKS.finditer(text))
    return []


def _hyphen_words(texts: list[str], breaks: list[list[re.Match[str]]]) -> frozenset[str]:
    """Which of the words that hyphens at line ends could make occur elsewhere, joined ("example") or hyphenated ("well-known")."""
    wanted: set[str] = set()
    for text, matches in zip(texts, breaks):
        for before, after in (_halves(text, match) for match in matches):
            if before and after:
                wanted.update((before + after, f"{before}-{after}"))
    found: set[str] = set()
    if wanted:
        for text in texts:
            found.update(wanted.intersection(word.lower() for word in _WORDS.findall(text)))
    return frozenset(found)


def _fault_changes(text: str, counts: Counter[str]) -> Iterator[tuple[int, int, str]]:
    marks = len(text) - len(text.lstrip(_START_MARKS))
    if marks:
        counts["byte order mark"] += 1
        yield 0, marks, ""
    pattern = _ASCII_FAULTS if text.isascii() else _FAULTS
    for match in pattern.finditer(text):
        found = match[0]
        if found == "\r\n" or found in _LINE_ENDS:
            kind, replacement = "line end", "\n"
        elif found in _LIGATURES:
            kind, replacement = "ligature", _LIGATURES[found]
        elif "\ud800" <= found[0] <= "\udfff":
            kind, replacement = _surrogates(found)
        else:
            kind, replacement = ("nul" if found == "\0" else "control"), ""
        counts[kind] += 1
        yield match.start(), match.end(), replacement


def _surrogates(found: str) -> tuple[str, str]:
    if len(found) == 2:
        return "surrogate pair", found.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    return "lone surrogate", "\ufffd"


def _break_changes(text: str, breaks: list[re.Match[str]], words: frozenset[str], counts: Counter[str]) -> Iterator[tuple[int, int, str]]:
    for match in breaks:
        found = match[0]
        before, after = _halves(text, match)
        joined, hyphenated = before + after in words, f"{before}-{after}" in words
        if found[0] == "-":
            # a typed hyphen stays unless only the joined word occurs elsewhere
            replacement = "" if joined and not hyphenated else found
        elif "\u00ad" in found:
            # a soft hyphen goes, and the line end behind it too where it cut a word
            replacement = "" if before and after else found.strip(_SOFT_MARKS)
        elif before and after and text[match.end()].islower() and (joined or not hyphenated):
            replacement = ""
        else:
            # the mark stands for a hyphen that was on the page
            replacement = "-" if text[match.start() - 1 : match.start()].isalnum() else found.strip(_SOFT_MARKS)
        if replacement != found:
            counts["hyphen"] += 1
            yield match.start(), match.end(), replacement


def _halves(text: str, match: re.Match[str]) -> tuple[str, str]:
    """The letters on both sides of a break, lower case; '' where there are none."""
    before = _WORD_BEFORE.search(text, max(0, match.start() - _LONGEST_WORD), match.start())
    after = _WORD_AFTER.match(text, match.end(), match.end() + _LONGEST_WORD)
    return before[0].lower() if before else "", after[0].lower() if after else ""


def _has_long_run(text: str) -> bool:
    candidates = " \t\n" if text.isascii() else _WHITE_SPACE
    return any(character * (LONGEST_RUN + 1) in text for character in candidates)


def _run_changes(text: str, counts: Counter[str]) -> Iterator[tuple[int, int, str]]:
    for match in _RUNS.finditer(text):
        if match.end() - match.start() > LONGEST_RUN:
            counts["long run"] += 1
            yield match.start() + LONGEST_RUN, match.end(), ""
