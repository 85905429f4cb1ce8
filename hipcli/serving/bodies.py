"""The bodies of requests: read up to a size and a time, as JSON, as a form, or as they are. Knows nothing of what is in them."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from hipcli.serving.limits import Limits
from hipcli.serving.problems import Problem, invalid
from hipcli.serving.service import too_large

_FORM_BYTES = 100_000  # of a form, beside its file


async def chunks(request: Request, most: int, seconds: float) -> AsyncIterator[bytes]:
    """The body as it comes. Raises Problem for one that is larger, or takes longer, than it may."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise too_large(most)
    size, deadline, stream = 0, time.monotonic() + seconds, request.stream()
    while True:
        try:
            # a body that drips is not waited for longer than one that stands still
            chunk = await asyncio.wait_for(anext(stream), max(0.0, deadline - time.monotonic()))
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise Problem(408, f"the request took longer than {seconds:g} s to arrive", headers={"Connection": "close"}) from None
        size += len(chunk)
        if size > most:
            raise too_large(most)
        yield chunk


async def read_json(request: Request, limits: Limits) -> Any:
    """The body as JSON. Raises Problem."""
    body = b"".join([chunk async for chunk in chunks(request, limits.inline_bytes, limits.upload_seconds)])
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        # where it is wrong would quote it
        raise invalid("the request's body is not JSON", code="invalid_json") from None


async def write_upload(request: Request, path: Path, limits: Limits) -> None:
    """Put a body that is a document into a file. Raises Problem."""
    with open(path, "xb") as out:
        async for chunk in chunks(request, limits.upload_bytes, limits.upload_seconds):
            out.write(chunk)


class Form:
    """A form with one file, as browsers and OpenAI's clients send it; closed after use."""

    def __init__(self, request: Request, limits: Limits) -> None:
        self._request, self._limits = request, limits

    async def __aenter__(self) -> UploadFile:
        """The file. Raises Problem."""
        limits = self._limits
        stream = chunks(self._request, limits.upload_bytes + _FORM_BYTES, limits.upload_seconds)
        parser = MultiPartParser(self._request.headers, stream, max_files=1, max_fields=16, max_part_size=_FORM_BYTES)
        try:
            self._form = await parser.parse()
        except (MultiPartException, KeyError, ValueError):
            raise invalid("the form cannot be read: it must hold one file, in the field 'file'", code="invalid_form") from None
        file = self._form.get("file")
        if not isinstance(file, UploadFile):
            await self._form.close()
            raise invalid("the form holds no file in the field 'file'", "file", "missing_required_parameter")
        return file

    async def __aexit__(self, *fault: object) -> None:
        await self._form.close()


async def write_file(file: UploadFile, path: Path) -> None:
    """Put a form's file into a file of ours."""

    def copy() -> None:
        with open(path, "xb") as out:
            shutil.copyfileobj(file.file, out)

    await asyncio.to_thread(copy)
