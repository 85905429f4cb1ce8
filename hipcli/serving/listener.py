"""uvicorn with deadlines of its own and the command line's signals: slow clients are let go, the first signal stops in order.

Knows connections; nothing of what they carry.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from hipcli.errors import UsageError
from hipcli.serving.limits import Limits

_LEAVING_S = 5  # for answers that were called off to end


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port that is taken is told before a model is loaded. Raises UsageError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise UsageError(f"cannot listen on {host}:{port}: {reason.lower()}", "--port 0 takes one that is free") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where the page is."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def protocol_of(limits: Limits) -> type[H11Protocol]:
    """HTTP/1.1 that closes a connection whose request does not arrive, or whose client does not read."""

    class PatientProtocol(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._head = self.loop.call_later(limits.header_seconds, self._give_up)

        def handle_events(self) -> None:
            super().handle_events()
            waiting = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            if self.conn.their_state is not h11.IDLE:
                self._head = _cancelled(self._head)
            elif waiting and self._head is None:
                # the next request on this connection has begun to arrive
                self._head = self.loop.call_later(limits.header_seconds, self._give_up)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self._stalled or self.loop.call_later(limits.stalled_seconds, self._give_up)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stalled = _cancelled(self._stalled)

        def connection_lost(self, fault: Exception | None) -> None:
            self._head, self._stalled = _cancelled(self._head), _cancelled(self._stalled)
            super().connection_lost(fault)

        def _give_up(self) -> None:
            self.transport.abort()

    return PatientProtocol


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal stops in order and counts as received afterwards; the second ends the process at once."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        # a shell's background job ignores SIGINT on purpose
        heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
        for number in heard:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in heard.items():
                signal.signal(number, handler)
        if self._captured_signals:
            signal.raise_signal(self._captured_signals[0])

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        self._captured_signals.append(number)
        self.should_exit = True
        signal.signal(number, signal.SIG_DFL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # here, and not in the signal's handler, which may interrupt whoever holds a lock
        self._on_stop()
        await super().shutdown(sockets)


def listen(app: ASGIApp, listener: socket.socket, limits: Limits, on_stop: Callable[[], None]) -> None:
    """Serve until a signal comes, which is then raised as the command line would have met it.

    on_stop: called when it comes, before clients are waited for.
    """
    settings = uvicorn.Config(
        app,
        http=protocol_of(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        # who asks is the connection's other end, whatever a header says
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=math.ceil(limits.header_seconds),
        timeout_graceful_shutdown=_LEAVING_S,
    )
    _Server(settings, on_stop).run(sockets=[listener])
