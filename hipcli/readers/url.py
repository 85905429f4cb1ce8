"""An http(s) address to a source in memory: fetched once, capped in size, time and redirects. Knows no formats.

Which hosts may be asked is the user's business, who named the address; a document's own links are never followed.
"""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import PurePath
from urllib.parse import urlsplit, urlunsplit

from hipcli import __version__
from hipcli.errors import DoesNotFit, InputError
from hipcli.readers.source import RawSource, from_bytes, memory_limit, show

MAX_BYTES = 1 << 29
MAX_SECONDS = 300.0
_MAX_REDIRECTS = 5
_SILENCE_SECONDS = 30.0

_PROMISES = frozenset({".pdf", ".epub", ".docx"})  # an address that ends so and brings HTML brings an error page
# what a server calls a file, as the suffix that a file of that kind has
_SUFFIXES = {
    "application/pdf": ".pdf",
    "application/epub+zip": ".epub",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "text/html": ".html",
    "application/xhtml+xml": ".xhtml",
    "text/markdown": ".md",
    "text/x-rst": ".rst",
    "text/x-tex": ".tex",
    "application/x-tex": ".tex",
    "text/vtt": ".vtt",
    "application/x-subrip": ".srt",
    "application/jsonl": ".jsonl",
    "application/x-ndjson": ".jsonl",
    "message/rfc822": ".eml",
    "application/mbox": ".mbox",
    "application/rtf": ".rtf",
    "text/rtf": ".rtf",
}


def is_url(spec: str) -> bool:
    """Whether a source is an address and not a path."""
    return bool(re.match(r"https?://", spec, re.I))


def fetch(spec: str, offline: bool = False) -> RawSource:
    """What lies at an address. Raises InputError if it is out of reach or hip is offline, DoesNotFit if it is too large."""
    name = _name(spec)
    if offline:
        raise InputError(f"cannot fetch {name}: hip is offline (--offline or HIP_OFFLINE)", "Download it, and name the file.")
    import httpx

    limits = httpx.Timeout(_SILENCE_SECONDS, connect=15.0)
    try:
        client = httpx.Client(
            follow_redirects=True, max_redirects=_MAX_REDIRECTS, timeout=limits, headers={"User-Agent": f"hip/{__version__}"}
        )
        with client, client.stream("GET", spec) as response:
            if response.status_code >= 400:
                raise InputError(f"cannot fetch {name}: the server says {response.status_code} {show(response.reason_phrase)}".rstrip())
            data = _body(response, name)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            final, charset = _name(str(response.url)), response.charset_encoding
    except httpx.TooManyRedirects:
        raise InputError(f"cannot fetch {name}: it redirects more than {_MAX_REDIRECTS} times") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, ValueError, OSError) as fault:
        reason = show(str(fault)[:200]) or type(fault).__name__
        raise InputError(f"cannot fetch {name}: {reason}", "Check the address and the network, or download it and name the file.") from None
    suffix = PurePath(urlsplit(final).path).suffix.lower()
    if suffix not in _PROMISES:
        suffix = _SUFFIXES.get(kind) or suffix
    return dataclasses.replace(from_bytes(name, data), hint=suffix, charset=charset)


def _body(response, name: str) -> bytes:
    limit = min(MAX_BYTES, memory_limit())
    deadline = time.monotonic() + MAX_SECONDS
    data = bytearray()
    for block in response.iter_bytes():
        data += block
        if len(data) > limit:
            raise DoesNotFit(f"{name} is larger than {limit >> 20:,} MiB, the most that is fetched", "Download it, and name the file.")
        if time.monotonic() > deadline:
            raise InputError(f"cannot fetch {name}: it takes longer than {MAX_SECONDS:g} s", "Download it, and name the file.")
    return bytes(data)


def _name(address: str) -> str:
    """The address without what may be secret: user, password and query."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return show(address)
    return show(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))
