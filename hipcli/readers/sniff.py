"""What a file really is, judged by its first bytes and never by its name. Knows no readers."""

from __future__ import annotations

import re

HEAD_BYTES = 4096  # how much of a file the functions here want to see

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file (a Word document .doc, .xls or .ppt)"),
    (b"AT&TFORM", "a DjVu document"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"GGUF", "a GGUF model"),
    (b"\x7fELF", "a program (ELF)"),
    (b"MZ", "a program (Windows)"),
    (b"ID3", "an MP3 sound file"),
    (b"RIFF", "a RIFF file (sound, video or WebP)"),
)
# the names of a zip's first members tell the formats that are zip files inside
_ZIP_MEMBERS = (
    (b"application/epub+zip", "an EPUB book"),
    (b"opendocument.text", "an OpenDocument text (.odt)"),
    (b"word/", "a Word document (.docx)"),
    (b"xl/", "an Excel workbook (.xlsx)"),
    (b"ppt/", "a PowerPoint presentation (.pptx)"),
)
KINDS_OF_PACKED_FORMATS = frozenset({"an EPUB book", "a Word document (.docx)"})  # those that readers read
_PRINTABLE_MAGIC = frozenset({b"MZ", b"ID3", b"RIFF", b"BZh", b"GGUF"})  # a text may start so too
_HTML = re.compile(rb"<(?:!doctype\s+html|html)\b", re.I)
_HTML_PART = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|script|meta|div|p)\b", re.I)


def is_pdf(head: bytes, anywhere: bool = False) -> bool:
    """Whether `head` starts as a PDF does; with `anywhere`, junk may come first, within the 1024 bytes that viewers allow."""
    if anywhere:
        return b"%PDF-" in head[:1024]
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:5] == b"%PDF-"


def is_html(head: bytes, weakly: bool = False) -> bool:
    """Whether `head` starts as an HTML file does; weakly: or as a part of one, such as a paragraph."""
    rest = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    while rest.startswith((b"<!--", b"<?xml")):
        end = b"-->" if rest.startswith(b"<!--") else b">"
        rest = rest.partition(end)[2].lstrip()
    return bool((_HTML_PART if weakly else _HTML).match(rest))


def binary_kind(head: bytes) -> str | None:
    """The name of the format that `head` belongs to, with its article, if it cannot be read as text by its magic; else None."""
    if head.startswith(b"PK\x03\x04"):
        return next((name for member, name in _ZIP_MEMBERS if member in head), "a ZIP archive")
    if is_pdf(head):
        return "a PDF"
    for magic, name in _MAGIC:
        if head.startswith(magic) and (magic not in _PRINTABLE_MAGIC or b"\0" in head):
            return name
    if head[4:8] == b"ftyp":
        return "an MP4 video or HEIC image"
    return None


def looks_binary(head: bytes, suffix: str) -> str | None:
    """What a file is, with its article, if its beginning shows that no reader of texts wants it; None for PDF too."""
    found = binary_kind(head)
    if found == "a PDF":
        return None
    if found:
        return found
    if b"\0" not in head or head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    # UTF-16 without a mark has a zero byte in most pairs, on one side of them
    zeros = head[0::2].count(b"\0"), head[1::2].count(b"\0")
    utf16 = max(zeros) * 5 > len(head) and min(zeros) * 20 <= max(zeros)
    few = sum(zeros) * 1000 <= len(head)
    return None if utf16 or few or suffix == ".pdf" else "an unknown kind"


def kind(head: bytes) -> str:
    """What `head` is, for a sentence such as "x.pdf is HTML, not a PDF"."""
    binary = binary_kind(head)
    if binary:
        return binary
    if is_html(head, weakly=True):
        return "HTML"
    if head.startswith(b"{\\rtf"):
        return "RTF"
    start = head.lstrip()[:1]
    if start in (b"{", b"[") and b'"' in head:
        return "JSON"
    if b"\0" in head:
        return "an unknown binary file"
    return "plain text"
