"""Rich Text Format to pages: the words, without fonts, styles and pictures."""

from __future__ import annotations

import codecs
import re

from hipcli.errors import InputError
from hipcli.readers.content import Content, Format, RawPage, ReadOptions
from hipcli.readers.source import RawSource

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?\d{1,9})? ?"  # a control word with its number
    rb"|\\'([0-9a-fA-F]{2})"  # a byte in the code page
    rb"|\\(.)|([{}])|[\r\n]+|([^\\{}\r\n]+)",
    re.S,
)
_MAGIC = b"{\\rtf"
_DROPPED = frozenset(
    b"fonttbl colortbl stylesheet info pict themedata colorschememapping datastore listtable listoverridetable rsidtbl generator "
    b"xmlnstbl latentstyles filetbl revtbl objdata fldinst bkmkstart bkmkend deleted mmathPr".split()
)
_SYMBOLS = {
    b"par": "\n\n", b"sect": "\n\n", b"page": "\n\n", b"line": "\n", b"row": "\n", b"cell": " | ", b"tab": "\t", b"emdash": "—",
    b"endash": "–", b"bullet": "•", b"lquote": "‘", b"rquote": "’", b"ldblquote": "“", b"rdblquote": "”", b"emspace": " ", b"enspace": " ",
}  # fmt: skip
_ESCAPED = {b"~": "\u00a0", b"_": "\u2011", b"-": "\u00ad", b"\n": "\n\n", b"\r": "\n\n", b"\\": "\\", b"{": "{", b"}": "}"}
_DEEPEST = 10_000


def read_rtf(source: RawSource, options: ReadOptions) -> Content:
    """Running text. Raises InputError for groups nested without end."""
    data = source.read()
    page = re.search(rb"\\ansicpg(\d{1,5})", data[:2000])
    codec = options.encoding or _codec(f"cp{int(page[1])}" if page else "cp1252")
    return Content([RawPage(_words(source.name, data, codec))], encoding=codec)


def _codec(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "cp1252"


def _words(name: str, data: bytes, codec: str) -> str:
    pieces: list[str] = []
    pending = bytearray()  # bytes in the code page; one character may be two of them
    groups: list[tuple[bool, int]] = []
    dropped, fallback, skip = False, 1, 0  # of the group; skip: characters that stand in for a Unicode one
    position = 0
    while match := _TOKEN.match(data, position):
        position = match.end()
        word, number, code, escaped, brace, text = match.groups()
        if pending and code is None:
            pieces.append(pending.decode(codec, "replace"))
            pending.clear()
        if brace == b"{":
            groups.append((dropped, fallback))
            if len(groups) > _DEEPEST:
                raise InputError(f"cannot read {name}: its groups are nested more than {_DEEPEST:,} deep")
        elif brace == b"}":
            dropped, fallback = groups.pop() if groups else (False, 1)
        elif word == b"bin":
            position += max(0, int(number or 0))
        elif word in _DROPPED or escaped == b"*":
            dropped = True
        elif word == b"uc":
            fallback = max(0, int(number or 1))
        elif dropped:
            continue
        elif word == b"u":
            pieces.append(chr(int(number or 0) % 0x10000))
            skip = fallback
        elif code is not None:
            if skip:
                skip -= 1
            else:
                pending += bytes.fromhex(code.decode())
        elif text:
            pieces.append(text[skip:].decode(codec, "replace"))
            skip = max(0, skip - len(text))
        else:
            pieces.append(_SYMBOLS.get(word, "") if word else _ESCAPED.get(escaped, ""))
    pieces.append(pending.decode(codec, "replace"))
    return re.sub(r"[ ]\|[ ](?=\n)", "", "".join(pieces)).strip("\n")


RTF = Format("rtf", "an RTF document", read_rtf, (".rtf",), lambda source, promised: source.head.startswith(_MAGIC), binary=True)
