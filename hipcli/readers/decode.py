"""Bytes to text: which encoding, and how sure. Knows nothing of files, pages or formats.

In order: a byte order mark; strict UTF-8 over the whole; UTF-16 by where its zero bytes fall; UTF-8 with a few bad
bytes; detection; Windows-1252. Every step that guesses says so in a warning.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from hipcli.errors import InputError, UsageError

_MARKS = (  # the longer first: a UTF-32 mark starts with a UTF-16 one
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FEW_BAD = 0.001  # share of bad bytes up to which a text still counts as UTF-8
_FEW_NULS = 0.001
_SURE_ENOUGH = 0.15
_SAMPLE_BYTES = 200_000


@dataclass(frozen=True)
class Decoded:
    """text, the encoding that was used, and one sentence for each guess or loss (without the file's name)."""

    text: str
    encoding: str
    warnings: tuple[str, ...] = ()


def check_encoding(name: str) -> str:
    """The Python name of a text encoding. Raises UsageError for an unknown one."""
    try:
        codec = codecs.lookup(name)
        "".encode(codec.name)  # refuses codecs that are not from text to bytes
    except (LookupError, ValueError, UnicodeError):
        raise UsageError(f"unknown encoding {name!r}", "Names such as utf-8, cp1252, gb18030, shift_jis or koi8-r work.") from None
    return codec.name


def decode(data: bytes, encoding: str | None = None, declared: str | None = None) -> Decoded:
    """Decode `data`.

    encoding: forces one; bytes that do not fit it become U+FFFD, with a warning. declared: what a server or the file says of itself,
    believed where the bytes are not UTF-8 and fit. Raises UsageError if it is unknown, InputError for
    bytes that are no text at all.
    """
    if encoding is not None:
        return _replacing(data, check_encoding(encoding))
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _replacing(data[len(mark) :], name)
    nuls = data.count(b"\0")
    if nuls:
        utf16 = _utf16_by_zeros(data, nuls)
        if utf16:
            return Decoded(data.decode(utf16), utf16, (f"no byte order mark; read as {utf16} because of where its zero bytes fall",))
        if nuls > len(data) * _FEW_NULS:
            raise InputError("it is a binary file, not text")
    try:
        return Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError as fault:
        return _as_declared(data, declared) or _guess(data, fault.start)


def _as_declared(data: bytes, name: str | None) -> Decoded | None:
    """Nothing for a name that is unknown, wrong, or means a format of more than one byte that a file of bytes cannot be in."""
    try:
        codec = codecs.lookup(name or "").name
        return None if codec.startswith(("utf-16", "utf-32", "utf-7")) else Decoded(data.decode(codec), codec)
    except (LookupError, ValueError, UnicodeError):
        return None


def _utf16_by_zeros(data: bytes, nuls: int) -> str | None:
    """Text in a Latin script has its zero bytes on one side of each pair: nearly always there, nearly never on the other."""
    if len(data) % 2 or nuls < len(data) * 0.15:
        return None
    high_first = data[0::2].count(b"\0")
    for name, strong, weak in (("utf-16-be", high_first, nuls - high_first), ("utf-16-le", nuls - high_first, high_first)):
        if weak * 20 <= strong:
            try:
                data.decode(name)
            except UnicodeDecodeError:
                return None
            return name
    return None


def _guess(data: bytes, first_bad: int) -> Decoded:
    decoded = _replacing(data, "utf-8")
    bad = decoded.text.count("\ufffd") - data.count("\ufffd".encode())
    if bad <= len(data) * _FEW_BAD:
        return decoded
    import chardet

    start = max(0, first_bad - 1000)  # what comes before is ASCII or valid UTF-8 and tells nothing
    found = chardet.detect(data[start : start + _SAMPLE_BYTES])
    name, confidence = found["encoding"], found["confidence"] or 0.0
    if name and confidence >= _SURE_ENOUGH:
        try:
            text = data.decode(name)
        except (LookupError, UnicodeError):
            pass
        else:
            guess = f"not UTF-8 (first bad byte at {first_bad}); read as {name}, a guess: --encoding sets the right one"
            return Decoded(text, codecs.lookup(name).name, (guess,))
    guess = f"not UTF-8 (first bad byte at {first_bad}); read as cp1252, a guess: --encoding sets the right one"
    return Decoded(data.decode("cp1252", "replace"), "cp1252", (guess,))


def _replacing(data: bytes, name: str) -> Decoded:
    """Strictly if it works, else with U+FFFD and a warning that says where."""
    try:
        return Decoded(data.decode(name), name)
    except UnicodeDecodeError as fault:
        lost = f"bytes that are not {name} (the first at {fault.start}) were replaced by U+FFFD"
        return Decoded(data.decode(name, "replace"), name, (lost,))
    except UnicodeError as fault:  # idna, punycode and their like
        raise InputError(f"it cannot be decoded as {name} ({fault})") from None
