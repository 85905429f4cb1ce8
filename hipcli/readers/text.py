"""Plain text to pages: decode, and end a page at each form feed."""

from __future__ import annotations

from hipcli.errors import InputError
from hipcli.readers.container import member_names, require_whole
from hipcli.readers.content import OWN_PAGE_CHARS, Content, Format, RawPage, ReadOptions, check_pages
from hipcli.readers.decode import Decoded, decode
from hipcli.readers.sniff import KINDS_OF_PACKED_FORMATS, binary_kind
from hipcli.readers.source import RawSource

# without these a book or a document is damaged
_MAIN_PARTS = {"META-INF/container.xml": "an EPUB book", "word/document.xml": "a Word document (.docx)"}


def read_text(source: RawSource, options: ReadOptions) -> Content:
    """A page for each stretch between form feeds. Raises InputError for binary files."""
    decoded = decode_source(source, options)
    return Content(text_pages(decoded.text), list(decoded.warnings), decoded.encoding)


def decode_source(source: RawSource, options: ReadOptions, cost: int = 1) -> Decoded:
    """The characters of a source that should be text. Raises InputError for binary files and for bytes that are no text.

    cost: as for RawSource.read.
    """
    kind = binary_kind(source.head)
    whole = next((kind for part, kind in _MAIN_PARTS.items() if part in member_names(source)), None)
    if kind == "a PDF" or whole:
        kind = whole or kind
        raise InputError(f"cannot read {source.name} as text: it is {kind}", "Leave out --type.")
    if kind:
        require_whole(source)
        if kind in KINDS_OF_PACKED_FORMATS:
            raise InputError(f"cannot read {source.name}: it is {kind} in which parts are missing", "Download or copy it again.")
        raise InputError(f"cannot read {source.name}: it is {kind}, which is not supported", "Convert it to PDF or text first.")
    try:
        return decode(source.read(cost), options.encoding, source.charset)
    except InputError as fault:
        raise InputError(f"cannot read {source.name}: {fault.message}", fault.hint) from None


def text_pages(text: str) -> list[RawPage]:
    """The stretches between form feeds; running text where there is none."""
    check_pages(text.count("\f"))
    parts = text.split("\f")
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if len(parts) == 1:
        return [RawPage(parts[0])]
    return [RawPage(part, longest=OWN_PAGE_CHARS) for part in parts]


TEXT = Format("text", "plain text", read_text, (".txt", ".text", ".log"))
