"""HTML and XHTML to a stream of start tags, end tags and texts, in time linear in its length whatever it holds.

Forgives what browsers forgive: unclosed tags and comments, unquoted attributes, unknown entities. Builds no tree, so that
no nesting is too deep for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple

_ATTRIBUTES = r"[^>\"']*(?:(?:\"[^\"]*\"|'[^']*')[^>\"']*)*"
_TAG = re.compile(rf"<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*)(?P<attributes>{_ATTRIBUTES})>")
# once a quote was left open, attributes are no longer looked into: every later try would run to the end of the text
_SIMPLE_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*)(?P<attributes>[^>]*)>")
_ATTRIBUTE = re.compile(r"([^\s\"'<>/=]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+)))?")
_RAW = frozenset({"script", "style", "iframe", "noembed", "noframes", "xmp"})
_RAW_TEXT = frozenset({"title", "textarea"})  # hold no tags, but their entities count
_LONGEST_ATTRIBUTES = 100_000


class Token(NamedTuple):
    """kind: "start", "end" or "text". value: lower-case name of the tag (without a prefix), or the text. raw: within script, style and such."""

    kind: str
    value: str
    attributes: dict[str, str] = {}
    raw: bool = False


def tokens(text: str, xhtml: bool = False) -> Iterator[Token]:
    """All tags and texts in order. xhtml: <script/> and <title/> are complete, as in XML."""
    markup = _Markup(text)
    position, pattern = 0, _TAG
    while position < len(text):
        opening = text.find("<", position)
        if opening < 0 or not markup.has_end(opening):
            yield Token("text", unescape(text[position:]))
            return
        if opening > position:
            yield Token("text", unescape(text[position:opening]))
        match = pattern.match(text, opening)
        if match is None and pattern is _TAG and text[opening + 1 : opening + 2].isalpha():
            pattern = _SIMPLE_TAG
            match = pattern.match(text, opening)
        if match is None:
            token, position = markup.other(opening)
            if token:
                yield token
            continue
        position = match.end()
        name = match["name"].lower().rpartition(":")[2]
        if match["close"]:
            yield Token("end", name)
            continue
        yield Token("start", name, _attributes(match["attributes"]))
        if xhtml and match["attributes"].endswith("/"):
            yield Token("end", name)
        elif name in _RAW or name in _RAW_TEXT:
            body, position = markup.raw_text(position, name)
            yield Token("text", unescape(body) if name in _RAW_TEXT else body, raw=True)


class _Markup:
    """A text in which nothing is looked for again that was not found once, or was found further on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next_end = -1
        self._missing: set[str] = set()

    def has_end(self, opening: int) -> bool:
        """Whether a ">" follows."""
        if self._next_end < opening:
            self._next_end = self._text.find(">", opening)
        return self._next_end >= 0

    def other(self, opening: int) -> tuple[Token | None, int]:
        """Comments, declarations, CDATA, and a "<" that is none of them; with where to go on."""
        text = self._text
        behind = self._next_end + 1
        if text.startswith("<!--", opening):
            if text.startswith(("<!-->", "<!--->"), opening):
                return None, behind
            end = self._find("-->", opening + 4)
            # an unclosed comment hides its own tag only: what follows may be the text
            return None, behind if end is None else end + 3
        if text.startswith("<![CDATA[", opening):
            end = self._find("]]>", opening)
            end = len(text) if end is None else end
            return Token("text", text[opening + 9 : end]), end + 3
        if text[opening + 1 : opening + 2] in ("!", "?", "/"):
            return None, behind
        return Token("text", "<"), opening + 1

    def raw_text(self, start: int, name: str) -> tuple[str, int]:
        """What stands before the end tag of an element that holds no tags, and where that end tag begins."""
        end = self._find_end_tag(name, start)
        if end is None:
            # never closed: a title ends at the next tag, a script hides the rest
            end = self._text.find("<", start) if name in _RAW_TEXT else len(self._text)
            end = len(self._text) if end < 0 else end
        return self._text[start:end], end

    def _find(self, what: str, start: int) -> int | None:
        if what in self._missing:
            return None
        found = self._text.find(what, start)
        if found < 0:
            self._missing.add(what)
            return None
        return found

    def _find_end_tag(self, name: str, start: int) -> int | None:
        if name in self._missing:
            return None
        found = re.compile(rf"</{name}(?=[\s/>])", re.I).search(self._text, start)
        if not found:
            self._missing.add(name)
            return None
        return found.start()


def _attributes(text: str) -> dict[str, str]:
    if "=" not in text or len(text) > _LONGEST_ATTRIBUTES:
        return {}
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text):
        found.setdefault(match[1].lower(), unescape(match[2] or match[3] or match[4] or ""))
    return found
