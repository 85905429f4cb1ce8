"""/v1/files and /v1/models: documents brought, listed, looked into and removed. Knows nothing of questions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hipcli import __version__
from hipcli.serving.bodies import Form, write_file, write_upload
from hipcli.serving.documents import Entry
from hipcli.serving.problems import Problem, invalid
from hipcli.serving.service import Service


def file_routes(service: Service) -> list[Route]:
    """The routes, each with a function of (request, owner)."""
    routes = _FileRoutes(service)
    return [
        Route("/v1/files", routes.upload, methods=["POST"]),
        Route("/v1/files", routes.list, methods=["GET"]),
        Route("/v1/files/{file_id}", routes.show, methods=["GET"]),
        Route("/v1/files/{file_id}", routes.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/pages", routes.pages, methods=["GET"]),
        Route("/v1/files/{file_id}/pages/{index:int}", routes.page, methods=["GET"]),
        Route("/v1/models", routes.models, methods=["GET"]),
        Route("/v1/models/{model:path}", routes.model, methods=["GET"]),
    ]


class _FileRoutes:
    def __init__(self, service: Service) -> None:
        self._service, self._documents = service, service.documents

    async def upload(self, request: Request) -> JSONResponse:
        """A document in a form, or as the body itself."""
        service, owner = self._service, request.state.owner
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            async with Form(request, service.limits) as file:
                entry = await service.upload(owner, file.filename, partial(write_file, file))
        else:
            name = request.query_params.get("filename")
            if not name:
                raise invalid("say what the document is called: POST /v1/files?filename=book.pdf", "filename", "missing_required_parameter")
            entry = await service.upload(owner, name, lambda path: write_upload(request, path, service.limits))
        return JSONResponse(self._file(entry))

    async def list(self, request: Request) -> JSONResponse:
        """All documents that the owner can see."""
        files = [self._file(entry) for entry in self._documents.visible(request.state.owner)]
        ends = {"first_id": files[0]["id"], "last_id": files[-1]["id"]} if files else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": files, **ends, "has_more": False})

    def _entry(self, request: Request) -> Entry:
        return self._documents.require(request.state.owner, request.path_params["file_id"])

    async def show(self, request: Request) -> JSONResponse:
        """One document."""
        return JSONResponse(self._file(self._entry(request)))

    async def delete(self, request: Request) -> JSONResponse:
        """Remove an upload and what is kept of it."""
        entry = self._entry(request)
        await self._service.remove(entry)
        return JSONResponse({"id": entry.id, "object": "file", "deleted": True})

    async def pages(self, request: Request) -> JSONResponse:
        """What a document's pages are called."""
        document = await asyncio.to_thread(self._documents.text, self._entry(request))
        pages = [_page(document, index) for index in range(len(document.pages))]
        return JSONResponse({"object": "list", "data": pages, "has_more": False})

    async def page(self, request: Request) -> JSONResponse:
        """One page with its text."""
        document, index = await asyncio.to_thread(self._documents.text, self._entry(request)), request.path_params["index"]
        if index >= len(document.pages):
            raise Problem(404, "the document has no such page", code="page_not_found")
        return JSONResponse(_page(document, index) | {"text": document.pages[index].text})

    async def models(self, request: Request) -> JSONResponse:
        """The model, and each document as a model that knows it."""
        service = self._service
        documents = [self._model(entry) for entry in self._documents.visible(request.state.owner)]
        return JSONResponse({"object": "list", "data": [_base(service.model), *documents]})

    async def model(self, request: Request) -> JSONResponse:
        """One of them."""
        wanted = request.path_params["model"]
        if wanted == self._service.model:
            return JSONResponse(_base(wanted))
        return JSONResponse(self._model(self._documents.require(request.state.owner, wanted)))

    def _file(self, entry: Entry) -> dict[str, Any]:
        head = {"id": entry.id, "object": "file", "bytes": entry.size_bytes, "created_at": entry.created, "filename": entry.name}
        return head | {"purpose": "user_data", "status": "processed", "hip": self._about(entry) | {"warnings": list(entry.warnings)}}

    def _model(self, entry: Entry) -> dict[str, Any]:
        head = {"id": entry.id, "object": "model", "created": entry.created, "owned_by": "hip" if entry.is_given else "user"}
        return head | {"hip": {"kind": "document"} | self._about(entry)}

    def _about(self, entry: Entry) -> dict[str, Any]:
        about = {"name": entry.name, "pages": entry.pages, "chars": entry.chars, "given": entry.is_given}
        return about | {"state": self._service.state(entry), "session": self._documents.session_of(entry)}


def _base(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hip", "hip": {"kind": "model", "version": __version__}}


def _page(document: Any, index: int) -> dict[str, Any]:
    page = document.pages[index]
    place = {"source": document.sources[page.source].name, "page": page.number, "label": page.label, "title": page.title}
    return {"index": index, **place, "place": f"p. {page.number}{page.place}", "chars": len(page.text)}
