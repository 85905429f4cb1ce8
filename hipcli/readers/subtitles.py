"""Subtitles (SRT, WebVTT) to pages: a page for each few minutes of speech, labelled with the time at which it begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from hipcli.readers.content import PAGE_CHARS, Content, Format, RawPage, ReadOptions
from hipcli.readers.source import RawSource
from hipcli.readers.text import decode_source

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,]\d{0,6})?"
_TIMES = re.compile(rf"[ \t]{{0,80}}{_TIME}[ \t]*-{{1,2}}>[ \t]*(?:\d{{1,4}}:)?\d{{1,2}}:\d{{1,2}}\S*")
_SRT = re.compile(rf"(?:\d{{1,9}}[ \t]*\r?\n)?{_TIMES.pattern}".encode())
_VTT = re.compile(rb"(?:\xef\xbb\xbf)?WEBVTT(?:[ \t\r\n]|$)")
_TAGS = re.compile(r"</?(?:[biuscv]|font|lang|ruby|rt|\d[\d:.]*)(?:[ .][^<>\n]{0,200})?>|\{\\[^{}\n]{0,100}\}", re.I)
_VOICE = re.compile(r"<v(?:\.[^ >]*)?[ \t]+([^>\n]{1,100})>")
_ASIDE = ("NOTE", "STYLE", "REGION", "WEBVTT")  # blocks of WebVTT that are not shown


def read_subtitles(source: RawSource, options: ReadOptions) -> Content:
    """The lines that are shown, in order; malformed cues keep their text."""
    decoded = decode_source(source, options)
    text = decoded.text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    pages: list[RawPage] = []
    label, lines, length = None, [], 0
    for time, words in _cues(text, _VTT.match(source.head) is not None):
        if lines and length >= PAGE_CHARS // 2 and time:
            pages.append(RawPage("".join(lines), label))
            label, lines, length = None, [], 0
        label = label or time
        lines.append(words + "\n")
        length += len(words)
    pages.append(RawPage("".join(lines), label))
    return Content(pages, list(decoded.warnings), decoded.encoding)


def _cues(text: str, vtt: bool) -> Iterator[tuple[str | None, str]]:
    """Time as h:mm:ss and words of each cue; a block without a time has None."""
    time, words = None, []
    blank, aside = True, False
    lines = text.split("\n")
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        match = _TIMES.match(line)
        if match:
            if words:
                yield time, _shown(words)
            hours, minutes, seconds = match[1] or 0, match[2], match[3]
            time, words, aside = f"{int(hours)}:{int(minutes):02}:{int(seconds):02}", [], False
        elif blank and vtt and line.split(" ")[0].strip() in _ASIDE:
            aside = True
        elif not line.strip():
            aside = False
        elif not aside and not (blank and _TIMES.match(following)):  # that would be a cue's number or name
            words.append(line)
        blank = not line.strip()
    if words:
        yield time, _shown(words)


def _shown(lines: list[str]) -> str:
    words = _VOICE.sub(r"\1: ", "\n".join(lines))
    return unescape(_TAGS.sub("", words))


SRT = Format(
    "srt", "SRT subtitles", read_subtitles, (".srt",), lambda source, promised: bool(_SRT.match(source.head.lstrip(b"\xef\xbb\xbf \r\n")))
)
VTT = Format("vtt", "WebVTT subtitles", read_subtitles, (".vtt",), lambda source, promised: bool(_VTT.match(source.head)))
