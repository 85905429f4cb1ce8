"""The protocol of /v1/responses: a request's fields, a response's, and the events of one that is streamed.

Knows nothing of models or HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hipcli.serving.answering import Answered
from hipcli.serving.asking import Ask, Fields, common, talk
from hipcli.serving.events import named_event
from hipcli.serving.limits import Limits
from hipcli.serving.problems import Problem, invalid, unsupported

# fields that would change the response if they were followed, with the values that ask for nothing
_NOT_DONE: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "top_logprobs": (0,),
    "text": ({"format": {"type": "text"}}, {}),
}
_REPEATED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature", "top_p", "user")


def parse(body: Any, limits: Limits) -> Ask:
    """What a request asks. Raises Problem."""
    fields = Fields(body)
    fields.refuse(_NOT_DONE)
    given = fields.get("input", (str, list))
    if given is None:
        raise invalid("input is missing", "input", "missing_required_parameter")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else [_message(item) for item in given]
    chosen = common(fields, limits, ("max_output_tokens",)) | talk(messages, "input")
    ask = Ask(**chosen, echo={name: body[name] for name in _REPEATED if body.get(name) is not None})
    instructions = fields.get("instructions", str, "")
    return replace(ask, system="\n\n".join(filter(None, (instructions, ask.system))))


def _message(item: Any) -> Any:
    """An item of the input that is a message."""
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    if kind != "message":
        raise unsupported(f"an item of the type {kind!r}", "input")
    return item


class Response:
    """One answer in this protocol. model: as it is called in the answer."""

    def __init__(self, ask: Ask, model: str) -> None:
        self._ask, self._model, self._number = ask, model, -1
        self._id, self._item, self._created = f"resp_{secrets.token_hex(20)}", f"msg_{secrets.token_hex(20)}", int(time.time())

    def whole(self, answered: Answered) -> dict[str, Any]:
        """The response in one object."""
        cut = answered.finish_reason == "length"
        done = {"output": [self._message(answered)], "usage": _usage(answered), "hip": answered.extension}
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {}
        return self._response("incomplete" if cut else "completed") | details | done

    def begin(self) -> Iterator[bytes]:
        """What comes before any text."""
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._response("in_progress"))
        item = {"id": self._item, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place(), part=_part("", []))

    def text(self, piece: str) -> Iterator[bytes]:
        """A piece of the answer."""
        yield self._event("response.output_text.delta", **self._place(), delta=piece, logprobs=[])

    def end(self, answered: Answered) -> Iterator[bytes]:
        """What comes after the last piece."""
        annotations = _annotations(answered)
        for index, annotation in enumerate(annotations):
            place = self._place() | {"annotation_index": index}
            yield self._event("response.output_text.annotation.added", **place, annotation=annotation)
        yield self._event("response.output_text.done", **self._place(), text=answered.text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=_part(answered.text, annotations))
        yield self._event("response.output_item.done", output_index=0, item=self._message(answered))
        whole = self.whole(answered)
        yield self._event(f"response.{whole['status']}", response=whole)

    def fail(self, problem: Problem) -> Iterator[bytes]:
        """What ends a response that cannot be finished."""
        error = {"code": problem.code or "server_error", "message": problem.message}
        yield self._event("error", **error, param=problem.param)
        yield self._event("response.failed", response=self._response("failed") | {"error": error})

    def _event(self, name: str, **fields: Any) -> bytes:
        self._number += 1
        return named_event(name, {"type": name, "sequence_number": self._number, **fields})

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self, answered: Answered) -> dict[str, Any]:
        status = "incomplete" if answered.finish_reason == "length" else "completed"
        content = [_part(answered.text, _annotations(answered))]
        return {"id": self._item, "type": "message", "status": status, "role": "assistant", "content": content}

    def _response(self, status: str) -> dict[str, Any]:
        """Every field that the protocol has; what is not done here has the value that says so."""
        fixed = {
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": self._ask.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": self._ask.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": None,
        }
        head = {"id": self._id, "object": "response", "created_at": self._created, "status": status, "model": self._model}
        return head | fixed | self._ask.echo


def _part(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _annotations(answered: Answered) -> list[dict[str, Any]]:
    """The cited document in the protocol's own terms, which have no pages: those are in the extension."""
    if not answered.extension["citations"]:
        return []
    place = {"file_id": answered.extension["document"], "filename": answered.extension["name"]}
    return [{"type": "file_citation", **place, "index": len(answered.text)}]


def _usage(answered: Answered) -> dict[str, Any]:
    return {
        "input_tokens": answered.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answered.cached_tokens},
        "output_tokens": answered.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answered.prompt_tokens + answered.answer_tokens,
    }
