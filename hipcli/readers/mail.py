"""E-mail to pages: a message, or every message of a mailbox, with its headers, its text, and the names of what is attached."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from email.header import decode_header
from email.message import Message

from hipcli.readers.content import Content, Format, RawPage, ReadOptions, check_pages
from hipcli.readers.decode import decode
from hipcli.readers.html import HtmlReader
from hipcli.readers.sniff import binary_kind
from hipcli.readers.source import RawSource, memory_limit
from hipcli.readers.text import decode_source

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_FROM_LINE = re.compile(rb"From [^\r\n]{1,200}\d\d:\d\d[^\r\n]*\r?\n[!-9;-~]{1,80}:")
_FIELD = re.compile(rb"(?:from|to|date|subject|received|message-id|return-path|delivered-to|mime-version|x-[a-z-]{1,40}):", re.I)
_BETWEEN = re.compile(rb"^From (?=[^\r\n]{1,200}\d\d:\d\d[^\r\n]*\r?\n[!-9;-~]{1,80}:)[^\n]*\n", re.M)
_LONGEST_HEADER = 2_000
_COST = 50  # bytes of memory for each byte of a message: the parser keeps its lines apart


class _ShortHeaders(email.policy.Compat32):
    """The old policy, since the new one takes quadratic time over hostile headers, and with long ones cut, over which both do."""

    def header_source_parse(self, sourcelines):
        name, value = super().header_source_parse(sourcelines)
        return name, value[:_LONGEST_HEADER]


def read_mail(source: RawSource, options: ReadOptions) -> Content:
    """A page for each message, titled by its subject."""
    if binary_kind(source.head):
        decode_source(source, options)  # says what it is
    data = source.read()
    pages: list[RawPage] = []
    attached = 0
    for number, raw in enumerate(_messages(data), 1):
        try:
            page, names = _page(raw, options.encoding)
        except Exception as fault:  # the parser of the standard library stumbles over hostile messages; one costs its page only
            page, names = RawPage(error=f"the message is damaged ({type(fault).__name__}: {str(fault)[:100]})"), []
        pages.append(page)
        check_pages(number)
        attached += len(names)
        if options.on_page:
            options.on_page(number, None)
    remarks = [f"{attached:,} attachments were not read; the text names them"] if attached else []
    return Content(pages, remarks)


def _messages(data: bytes) -> Iterator[bytes]:
    """The messages of a mailbox, or the one message that it is."""
    if not _FROM_LINE.match(data):
        yield data
        return
    start = None
    for match in _BETWEEN.finditer(data):
        if start is not None:
            yield _unquoted(data[start : match.start()])
        start = match.end()
    yield _unquoted(data[start:])


def _unquoted(message: bytes) -> bytes:
    """Lines that begin with "From " were marked in the mailbox."""
    return re.sub(rb"^>(>*From )", rb"\1", message, flags=re.M)


def _page(raw: bytes, encoding: str | None) -> tuple[RawPage, list[str]]:
    if len(raw) * _COST > memory_limit():
        raise MemoryError("it is too large for the memory that is free")
    message = email.message_from_bytes(raw, policy=_ShortHeaders())
    plain, html, names = _parts(message, encoding)
    headers = [f"{name}: {value}" for name in _HEADERS if (value := _header(message, name))]
    body = plain if plain.strip() else html
    attached = [f"[attached: {name}]" for name in names]
    text = "\n\n".join(part for part in ("\n".join(headers), body.strip("\r\n"), "\n".join(attached)) if part)
    return RawPage(text, title=_header(message, "Subject") or None), names


def _parts(message: Message, encoding: str | None) -> tuple[str, str, list[str]]:
    """Plain text, HTML as text, and the names of attachments."""
    plain: list[str] = []
    html: list[str] = []
    names: list[str] = []
    for part in message.walk():
        if part.is_multipart():
            continue
        kind = part.get_content_type()
        name = part.get_filename()
        if kind in ("text/plain", "text/html") and "attachment" not in str(part.get("Content-Disposition", "")).lower():
            text = _text(part, encoding)
            if kind == "text/plain":
                plain.append(text)
            else:
                reader = HtmlReader(keep_navigation=True)
                reader.feed(text)
                html.append("".join(page.text for page in reader.pages()))
        else:
            names.append(" ".join(_decoded(name or kind).split()))
    return "\n\n".join(plain), "\n\n".join(html), names


def _text(part: Message, encoding: str | None) -> str:
    data = part.get_payload(decode=True) or b""
    charset = encoding or part.get_content_charset()
    try:
        if charset:
            return data.decode(charset)
    except (LookupError, UnicodeError, ValueError):
        pass  # an unknown or a wrong character set
    return decode(data).text


def _header(message: Message, name: str) -> str:
    return " ".join(_decoded(str(message.get(name, ""))).split())


def _decoded(value: str) -> str:
    """A header with its =?...?= words decoded."""
    try:
        words = [(word, charset) for word, charset in decode_header(value)]
        return "".join(word if isinstance(word, str) else word.decode(charset or "latin-1", "replace") for word, charset in words)
    except (LookupError, ValueError, email.errors.MessageError):
        return value


def _is_mail(source: RawSource, promised: bool) -> bool:
    """Whether the first lines are the fields of a message: two known ones among them and nothing else."""
    known = 0
    for line in source.head.split(b"\n")[:40]:
        if not line.strip():
            break
        if _FIELD.match(line):
            known += 1
        elif not re.match(rb"[!-9;-~]{1,80}:|[ \t]", line):
            return False
    return known >= 3


EML = Format("eml", "an e-mail", read_mail, (".eml",), _is_mail)
MBOX = Format("mbox", "a mailbox", read_mail, (".mbox", ".mbx"), lambda source, promised: bool(_FROM_LINE.match(source.head)))
