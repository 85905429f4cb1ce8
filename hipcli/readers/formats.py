"""Every format that can be read, and which one a source is in: by its content first, by its name second.

A new format is a module with a `Format`, named here. Knows nothing of what readers do.
"""

from __future__ import annotations

from hipcli.errors import InputError, UsageError
from hipcli.readers.container import require_whole
from hipcli.readers.content import Format
from hipcli.readers.docx import DOCX
from hipcli.readers.epub import EPUB
from hipcli.readers.html import HTML
from hipcli.readers.jsonl import JSONL
from hipcli.readers.latex import LATEX
from hipcli.readers.mail import EML, MBOX
from hipcli.readers.markdown import MARKDOWN
from hipcli.readers.pdf import PDF
from hipcli.readers.rst import RST
from hipcli.readers.rtf import RTF
from hipcli.readers.sniff import kind
from hipcli.readers.source import RawSource
from hipcli.readers.subtitles import SRT, VTT
from hipcli.readers.text import TEXT

FORMATS = (PDF, EPUB, DOCX, HTML, MARKDOWN, RST, LATEX, SRT, VTT, JSONL, EML, MBOX, RTF, TEXT)
FORMAT_NAMES = tuple(format.name for format in FORMATS)
_READABLE_AS_TEXT = ("plain text", "HTML", "JSON", "RTF")


def require_format(name: str | None) -> None:
    """Refuse the name of a format that does not exist; raises UsageError."""
    if name is not None and name not in FORMAT_NAMES:
        raise UsageError(f"unknown type {name!r}", f"One of: {', '.join(FORMAT_NAMES)}.")


def format_named(name: str) -> Format:
    """The format of a name of FORMAT_NAMES."""
    return next(format for format in FORMATS if format.name == name)


def choose_format(source: RawSource, type: str | None = None) -> Format:
    """The format to read `source` in: `type` if given, else what the content proves, what the name says, what the content suggests.

    Raises InputError when the content is not what the name or the type promises.
    """
    if type is not None:
        return _promised(source, format_named(type))
    suffix = source.suffix
    named = next((format for format in FORMATS if suffix in format.suffixes and format is not TEXT), None)
    for format in FORMATS:
        if format.binary and format.matches(source, format is named):
            return format
    if named is not None:
        return _promised(source, named)
    return next((format for format in FORMATS if format.matches and format.matches(source, False)), TEXT)


def _promised(source: RawSource, format: Format) -> Format:
    if not format.binary or format.matches(source, True):
        return format
    require_whole(source)
    found = kind(source.head)
    hint = "Read it as it is with --type text." if found in _READABLE_AS_TEXT else None
    raise InputError(f"cannot read {source.name}: this is {found}, not {format.noun}", hint)
