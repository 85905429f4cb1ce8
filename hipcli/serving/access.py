"""Who may ask: tokens, and what a browser says of where a request comes from. Knows no documents.

A page on some other site can make a browser send requests here, and a name that it controls can be made to point here
(DNS rebinding). Both show in headers that a page cannot change: Host, Origin and Sec-Fetch-Site.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from hipcli.errors import UsageError
from hipcli.serving.problems import Problem

LOCAL = "local"  # whose documents are when there are no tokens
_LEAST_CHARS = 16
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def read_tokens(path: str) -> list[str]:
    """The tokens of a file, one a line; empty lines and those that begin with # do not count. Raises UsageError."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, ValueError) as fault:
        reason = (fault.strerror or "").lower() if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the token file {path}: {reason}") from None
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise UsageError(f"the token file {path} holds no token", "one a line, made by: openssl rand -hex 24")
    return tokens


def open_access(host: str, allow_hosts: Sequence[str], token_file: str | None, token: str | None, warn: Callable[[str], None]) -> Access:
    """Who may ask a server that listens on `host`. token: one more than the file's. warn: gets what the user should know.

    Raises UsageError, also for an address that others can reach when there is no token.
    """
    tokens = read_tokens(token_file) if token_file else []
    if token_file and os.stat(token_file).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        warn(f"other users of this machine can read {token_file}: chmod 600 {token_file}")
    tokens += [token] if token else []
    local = is_loopback(host)
    if not local and not tokens:
        what = f"--host {host} can be reached from other machines, so a token is needed"
        raise UsageError(what, "--token-file FILE with one made by: openssl rand -hex 24")
    return Access(tokens, (*_LOCAL_NAMES, host, *allow_hosts) if local or allow_hosts else None)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone. Raises UsageError for a name nobody knows."""
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        raise UsageError(f"--host {host} is not an address of this machine") from None
    return all(ipaddress.ip_address(address.split("%")[0]).is_loopback for address in found)


class Access:
    """Tokens of a server, and the names it goes by. tokens: none means that everyone who can connect is one owner.

    hosts: names that a Host header may give; None for any, where only tokens protect. Raises UsageError.
    """

    def __init__(self, tokens: Sequence[str] = (), hosts: Sequence[str] | None = None) -> None:
        for token in tokens:
            if len(token) < _LEAST_CHARS or not token.isascii() or not token.isprintable() or " " in token:
                raise UsageError(f"a token must be at least {_LEAST_CHARS} visible ASCII characters without spaces", "openssl rand -hex 24")
        self._owners = {_digest(token): _digest(token).hex()[:16] for token in tokens}
        self._hosts = None if hosts is None else {host.lower().strip("[]") for host in hosts}

    @property
    def owners(self) -> int:
        """How many there can be."""
        return len(self._owners) or 1

    def owner(self, authorization: str | None) -> str:
        """Who sends this Authorization header, as a name that does not give the token away. Raises Problem."""
        if not self._owners:
            return LOCAL
        scheme, _, token = (authorization or "").partition(" ")
        given, found = _digest(token.strip()), None
        for known, owner in self._owners.items():
            # every one is compared, so that the time taken tells nothing
            if hmac.compare_digest(known, given):
                found = owner
        if found is None or scheme.lower() != "bearer":
            what = "the token is wrong" if authorization else "this server wants a token: Authorization: Bearer …"
            raise Problem(401, what, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return found

    def check_origin(self, headers: Mapping[str, str], is_page: bool) -> None:
        """Refuse what a page of another site sends. is_page: a visit to the page itself, which a link may lead to. Raises Problem."""
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            raise Problem(403, "the Host header names another server (--allow-host NAME allows it)", code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Problem(403, "pages of other sites may not use this server", code="wrong_origin")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_page:
            raise Problem(403, "pages of other sites may not use this server", code="wrong_origin")


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    host = host.lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
