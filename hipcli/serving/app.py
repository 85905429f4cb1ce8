"""The application: routes to what answers them, and faults to OpenAI's errors. Knows nothing of sockets or models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hipcli import __version__
from hipcli.errors import HipError
from hipcli.serving import completions, responses
from hipcli.serving.access import Access
from hipcli.serving.bodies import read_json
from hipcli.serving.events import EventStream, unless_gone
from hipcli.serving.file_routes import file_routes
from hipcli.serving.guard import Guard, refusal
from hipcli.serving.metrics import CONTENT_TYPE
from hipcli.serving.problems import Problem, problem_of
from hipcli.serving.service import Service

_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def make_app(service: Service, access: Access, on_start: Callable[[], None]) -> ASGIApp:
    """The application of a service. on_start: called in the event loop before the first request."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        on_start()
        yield

    routes = _Routes(service)
    table = [
        Route("/", routes.page, methods=["GET"]),
        Route("/page/{name}", routes.page, methods=["GET"]),
        Route("/healthz", routes.health, methods=["GET"]),
        Route("/metrics", routes.metrics, methods=["GET"]),
        Route("/v1/chat/completions", routes.asked(completions.parse, completions.Completion), methods=["POST"]),
        Route("/v1/responses", routes.asked(responses.parse, responses.Response), methods=["POST"]),
        *file_routes(service),
    ]
    faults = dict.fromkeys((Problem, HipError, HTTPException, ClientDisconnect, Exception), _refused)
    return Guard(Starlette(routes=table, exception_handlers=faults, lifespan=lifespan), access, service.metrics, service.log)


class _Routes:
    def __init__(self, service: Service) -> None:
        self._service = service
        files = (resources.files("hipcli.serving") / "page").iterdir()
        # read once: no name that a client sends is ever looked for on the disk
        self._page = {file.name: file.read_bytes() for file in files if file.name.rpartition(".")[2] in _KINDS}

    async def page(self, request: Request) -> Response:
        """The page and what it is made of."""
        name = request.path_params.get("name", "index.html")
        if name not in self._page:
            raise HTTPException(404)
        return Response(self._page[name], media_type=_KINDS[name.rpartition(".")[2]], headers={"Cache-Control": "no-cache"})

    async def health(self, request: Request) -> JSONResponse:
        """Whether questions are taken."""
        worker = self._service.worker
        well = worker.is_alive() and not worker.stopping
        status = "ok" if well else "stopping"
        record = {"status": status, "model": self._service.model, "waiting": len(worker.queue), "version": __version__}
        return JSONResponse(record, 200 if well else 503)

    async def metrics(self, request: Request) -> Response:
        """All figures, for Prometheus."""
        return Response(self._service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def asked(self, parse: Callable, protocol: Callable) -> Callable[[Request], Awaitable[Any]]:
        """A route that answers questions in a protocol. parse: of its requests; protocol: makes its answers."""
        service = self._service

        async def answer(request: Request) -> Any:
            ask, owner = parse(await read_json(request, service.limits), service.limits), request.state.owner
            entry = await service.document_for(ask, owner)
            client = request.client.host if request.client else ""
            job, writer = service.job_for(ask, entry, owner, client), protocol(ask, ask.model or service.model)
            if ask.stream:
                return EventStream(service.stream(job, writer), lambda: service.end(job))
            return JSONResponse(writer.whole(await unless_gone(request.receive, service.answer(job))))

        return answer


async def _refused(request: Request, fault: Exception) -> Response:
    if isinstance(fault, ClientDisconnect):
        # nobody reads it; the log does
        fault = Problem(499, "the client has gone", code="gone")
    elif isinstance(fault, HTTPException):
        what = {404: "there is nothing here", 405: "this method does nothing here"}.get(fault.status_code, "the request is wrong")
        fault = Problem(fault.status_code, what, code="unknown_url", headers=dict(fault.headers or {}))
    return refusal(request.scope, problem_of(fault))
