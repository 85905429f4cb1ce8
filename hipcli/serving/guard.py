"""What stands before every route: where a request comes from, whose it is, what is logged of it, what every answer carries.

Log lines hold routes, statuses and times; no path, no name, no text that a client sent.
"""

from __future__ import annotations

import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hipcli import config
from hipcli.console import Terminal, duration
from hipcli.serving.access import Access
from hipcli.serving.metrics import Metrics
from hipcli.serving.problems import Problem

# without a token: the page, which holds nothing, and whether the server lives, which a supervisor asks
_OPEN_PATHS = ("/", "/healthz")
_OPEN_FOLDER = "/page/"
_REASON = "hip.reason"  # key of a scope
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
_HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, log: Terminal) -> None:
        self._app, self._access, self._metrics, self._log = app, access, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, answer = time.monotonic(), _Answer(send)
        try:
            self._admit(scope)
            await self._app(scope, receive, answer)
        except Problem as problem:
            await refusal(scope, problem)(scope, receive, answer)
        except Exception as fault:
            # its answer is sent already
            self._tell(fault, scope)
        self._note(scope, answer.status, time.monotonic() - began)

    def _admit(self, scope: Scope) -> None:
        """Find out whose request it is. Raises Problem."""
        headers, path = Headers(scope=scope), scope["path"]
        self._access.check_origin(headers, is_page=path == "/" and scope["method"] == "GET")
        if path not in _OPEN_PATHS and not path.startswith(_OPEN_FOLDER):
            scope.setdefault("state", {})["owner"] = self._access.owner(headers.get("authorization"))

    def _tell(self, fault: Exception, scope: Scope) -> None:
        """Log a fault without its words, which may quote a document."""
        self._log.error(f"unexpected {type(fault).__name__} in {_route(scope)}; HIP_DEBUG=1 shows the traceback")
        if config.debug():
            import traceback

            traceback.print_exception(fault)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route, reason = _route(scope), scope.get(_REASON)
        self._metrics.requests.labels(route, status).inc()
        if reason:
            self._metrics.refused.labels(reason).inc()
        client = (scope.get("client") or ("unknown",))[0]
        line = " ".join(filter(None, (client, route, str(status), reason, duration(seconds))))
        # what goes well is told to those who want to hear it
        (self._log.note if reason else self._log.detail)(line)


def refusal(scope: Scope, problem: Problem) -> Response:
    """The answer that tells of a problem, whose reason is noted in the scope for the log."""
    scope[_REASON] = problem.code or str(problem.status)
    return JSONResponse(problem.record, problem.status, headers=problem.headers)


def _route(scope: Scope) -> str:
    """The method and the route's pattern, which no client can choose."""
    route = getattr(scope.get("route"), "path", None)
    known = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "OTHER"
    return f"{known} {route or ('/' if scope['path'] == '/' else 'unknown route')}"


class _Answer:
    """Passes an answer on with the headers that all have, and keeps its status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)
