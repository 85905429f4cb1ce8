"""Which files of a folder .gitignore files leave out, by git's rules. Reads patterns; runs nothing, git least of all.

Git itself is not asked: a folder's own .git/config can name programs that git runs. Matching takes time in proportion to
pattern times path, whatever the pattern, which regular expressions do not promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MAX_BYTES = 1 << 17
_ANY_DIRECTORIES = None


@dataclass(frozen=True)
class Rule:
    """One line. segments: of the path below the rule's own folder, None for any number of directories; each a list of tokens."""

    segments: tuple[tuple[str, ...] | None, ...]
    negated: bool
    directories_only: bool

    def matches(self, parts: Sequence[str], is_directory: bool) -> bool:
        """parts: the path below the rule's folder, split at slashes."""
        return (is_directory or not self.directories_only) and _match_path(self.segments, parts)


class IgnoreRules:
    """The rules that hold in one folder: its own, after those of the folders above it."""

    def __init__(self, above: IgnoreRules | None = None, rules: Sequence[Rule] = (), depth: int = 0) -> None:
        self._layers: tuple[tuple[int, Sequence[Rule]], ...] = (*(above._layers if above else ()), *(((depth, rules),) if rules else ()))

    def ignores(self, parts: Sequence[str], is_directory: bool) -> bool:
        """Whether a path is left out. parts: from the topmost folder that has rules; the last rule that matches decides."""
        for depth, rules in reversed(self._layers):
            for rule in reversed(rules):
                if rule.matches(parts[depth:], is_directory):
                    return not rule.negated
        return False


def rules_of(folder: Path) -> list[Rule]:
    """The rules of a folder's .gitignore, and of .git/info/exclude before them; a file that cannot be read has none."""
    rules: list[Rule] = []
    for path in (folder / ".git" / "info" / "exclude", folder / ".gitignore"):
        try:
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _MAX_BYTES:
                rules += parse(path.read_text("utf-8", "surrogateescape"))
        except OSError:
            continue
    return rules


def parse(text: str) -> list[Rule]:
    """The rules of a .gitignore file."""
    return [rule for line in text.removeprefix("\ufeff").split("\n") if (rule := _rule(line.removesuffix("\r")))]


def _rule(line: str) -> Rule | None:
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    line = line[1:] if negated else line
    directories_only = line.endswith("/")
    line = line.rstrip("/") if directories_only else line
    if not line:
        return None
    anchored = "/" in line
    segments: list[tuple[str, ...] | None] = [] if anchored else [_ANY_DIRECTORIES]
    for part in line.removeprefix("/").split("/"):
        segments.append(_ANY_DIRECTORIES if part == "**" else tuple(_tokens(part)))
    return Rule(tuple(segments), negated, directories_only)


def _tokens(pattern: str) -> list[str]:
    """ "*", "?", "[...]" with its brackets, and literal characters behind a backslash each."""
    tokens: list[str] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\" and position + 1 < len(pattern):
            tokens.append("\\" + pattern[position + 1])
            position += 2
        elif character == "[" and (end := _class_end(pattern, position)) is not None:
            tokens.append(pattern[position : end + 1])
            position = end + 1
        elif character == "[":
            return ["["]  # never closed: matches nothing
        else:
            if character != "*" or tokens[-1:] != ["*"]:
                tokens.append(character if character in "*?" else "\\" + character)
            position += 1
    return tokens


def _class_end(pattern: str, start: int) -> int | None:
    first = start + 2 if pattern[start + 1 : start + 2] in ("!", "^") else start + 1
    end = pattern.find("]", first + 1)
    return end if end > 0 else None


def _match_path(segments: Sequence[tuple[str, ...] | None], parts: Sequence[str]) -> bool:
    """Whether the segments match all parts; a last "any directories" stands for at least one part."""
    if segments and segments[-1] is _ANY_DIRECTORIES:
        return any(_match_all(segments[:-1], parts[:count]) for count in range(len(parts)))
    return _match_all(segments, parts)


def _match_all(segments: Sequence[tuple[str, ...] | None], parts: Sequence[str]) -> bool:
    return _glob(segments, parts, _ANY_DIRECTORIES, _match_name)


def _match_name(tokens: tuple[str, ...], name: str) -> bool:
    return _glob(tokens, name, "*", _match_character)


def _glob(pattern: Sequence, items: Sequence, star, matches) -> bool:
    """Match with wildcards: on a failure only the last star takes one more, which is enough and never exponential."""
    at = position = 0
    last_star, resume = -1, 0
    while position < len(items):
        if at < len(pattern) and pattern[at] == star:
            last_star, resume = at, position
            at += 1
        elif at < len(pattern) and matches(pattern[at], items[position]):
            at += 1
            position += 1
        elif last_star >= 0:
            resume += 1
            at, position = last_star + 1, resume
        else:
            return False
    return all(token == star for token in pattern[at:])


def _match_character(token: str, character: str) -> bool:
    if token[0] == "\\":
        return token[1] == character
    if token in ("?", "["):
        return token == "?"
    body = token[1:-1]
    negated = body[:1] in ("!", "^")
    body = body[1:] if negated else body
    found, position = False, 0
    while position < len(body):
        if position + 2 < len(body) and body[position + 1] == "-":
            found |= body[position] <= character <= body[position + 2]
            position += 3
        else:
            found |= body[position] == character
            position += 1
    return found != negated
