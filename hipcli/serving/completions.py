"""The protocol of /v1/chat/completions: a request's fields, an answer's, and the chunks of one that is streamed.

Knows nothing of models or HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

from hipcli.serving.answering import Answered
from hipcli.serving.asking import Ask, Fields, common, stops, talk
from hipcli.serving.events import data_event
from hipcli.serving.limits import Limits
from hipcli.serving.problems import Problem

# fields that would change the answer if they were followed, with the values that ask for nothing
_NOT_DONE: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "web_search_options": (),
}


def parse(body: Any, limits: Limits) -> Ask:
    """What a request asks. Raises Problem."""
    fields = Fields(body)
    fields.refuse(_NOT_DONE)
    options = Fields(fields.get("stream_options", dict, {}))
    chosen = common(fields, limits, ("max_completion_tokens", "max_tokens")) | talk(body.get("messages"), "messages")
    return Ask(**chosen, stop=stops(fields), echo={"usage": options.get("include_usage", bool, False)})


class Completion:
    """One answer in this protocol. model: as it is called in the answer."""

    def __init__(self, ask: Ask, model: str) -> None:
        self._with_usage = ask.echo["usage"]
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, answered: Answered) -> dict[str, Any]:
        """The answer in one object."""
        message = {"role": "assistant", "content": answered.text, "refusal": None, "annotations": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answered.finish_reason}
        usage = {"usage": _usage(answered), "hip": answered.extension}
        return {"object": "chat.completion", **self._head, "choices": [choice], **usage}

    def begin(self) -> Iterator[bytes]:
        """What comes before any text."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def text(self, piece: str) -> Iterator[bytes]:
        """A piece of the answer."""
        yield self._chunk({"content": piece})

    def end(self, answered: Answered) -> Iterator[bytes]:
        """What comes after the last piece; the chunk that says why the answer ended brings the citations."""
        yield self._chunk({}, answered.finish_reason, hip=answered.extension)
        if self._with_usage:
            yield data_event({"object": "chat.completion.chunk", **self._head, "choices": [], "usage": _usage(answered)})
        yield b"data: [DONE]\n\n"

    def fail(self, problem: Problem) -> Iterator[bytes]:
        """What ends an answer that cannot be finished."""
        yield data_event(problem.record)

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._with_usage else {}
        return data_event({"object": "chat.completion.chunk", **self._head, "choices": [choice], **usage, **more})


def _usage(answered: Answered) -> dict[str, Any]:
    return {
        "prompt_tokens": answered.prompt_tokens,
        "completion_tokens": answered.answer_tokens,
        "total_tokens": answered.prompt_tokens + answered.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": answered.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
