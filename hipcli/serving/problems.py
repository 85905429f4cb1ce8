"""What is wrong with a request, in the shape of OpenAI's errors. Knows neither HTTP servers nor models."""

from __future__ import annotations

import math
from typing import Any

from hipcli.errors import DoesNotFit, HipError, InputError, UsageError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Problem(Exception):
    """A request that is refused or failed. param: the field that is wrong; code: a word for programs."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers or {}

    @property
    def record(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> Problem:
    """A request that makes no sense."""
    return Problem(400, message, code=code, param=param)


def unsupported(what: str, param: str) -> Problem:
    """A request for something that is not done here; doing something else instead would be a lie."""
    return Problem(400, f"{what} is not supported", code="unsupported_parameter", param=param)


def too_busy(seconds: float) -> Problem:
    """A backlog that is full. seconds: after which it will probably have room."""
    after = str(max(1, min(120, math.ceil(seconds))))
    return Problem(429, f"too many questions are waiting; try again in {after} s", code="backlog_full", headers={"Retry-After": after})


def problem_of(fault: BaseException) -> Problem:
    """The Problem that any exception amounts to; what is not known to be harmless is not told."""
    if isinstance(fault, Problem):
        return fault
    if isinstance(fault, HipError):
        message = fault.message + (f" ({fault.hint})" if fault.hint else "")
        if isinstance(fault, DoesNotFit):
            return Problem(400, message, code="context_length_exceeded")
        if isinstance(fault, InputError):
            return Problem(400, message, code="invalid_document")
        return Problem(400, message, code="invalid_value") if isinstance(fault, UsageError) else Problem(500, message)
    if isinstance(fault, MemoryError):
        return Problem(503, "there is not enough memory for this now", code="out_of_memory")
    return Problem(500, "something unexpected went wrong; the server's log names it", code="internal_error")
