"""What a request asks, whichever protocol it came by: turns of talk, the document, how the answer is sampled.

Checks types and refuses by name what is not done here. Knows nothing of models or HTTP.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hipcli.serving.limits import Limits
from hipcli.serving.problems import Problem, invalid, unsupported

_TEXT_PARTS = ("text", "input_text", "output_text")
_FILE_PARTS = ("file", "input_file")
_MOST_STOPS = 4


@dataclass(frozen=True)
class InlineFile:
    """A document that came within a request."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Ask:
    """One request. system: text of system and developer messages. earlier: (question, answer) pairs. None: the server's own choice.

    document: an id or name; file: a document within the request. model: as the client named it. map: whether shares of
    attention by page are wanted. user: who asks, among those with one token.
    """

    model: str
    question: str
    system: str = ""
    earlier: tuple[tuple[str, str], ...] = ()
    document: str | None = None
    file: InlineFile | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    map: bool = False
    user: str = ""
    # a record of the request's own fields that the protocol repeats in its answer
    echo: dict[str, Any] = field(default_factory=dict)


class Fields:
    """The fields of a request's JSON object, each checked as it is read."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise invalid("the request must be a JSON object")
        self.body = body

    def get(self, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """A field of one of these kinds; null counts as missing."""
        value = self.body.get(name)
        if value is None:
            return default
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        # a boolean is an integer for Python, and not for a client
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise invalid(f"{name} must be of type {' or '.join(kind.__name__ for kind in wanted)}", name, "invalid_type")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A finite number within bounds."""
        value = self.get(name, (int, float))
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise invalid(f"{name} must be between {low:g} and {high:g}", name)
        return value

    def refuse(self, what: dict[str, tuple[Any, ...]]) -> None:
        """Refuse fields that ask for what is not done; those with a value that asks for nothing pass."""
        for name, harmless in what.items():
            value = self.body.get(name)
            if value is not None and value not in harmless:
                raise unsupported(name, name)


def common(fields: Fields, limits: Limits, limit_names: Sequence[str]) -> dict[str, Any]:
    """Fields that both protocols have. limit_names: of the longest answer, the first that is given counts."""
    given = [(name, value) for name in limit_names if (value := fields.get(name, int)) is not None]
    for name, value in given:
        if not 1 <= value <= limits.answer_tokens:
            raise invalid(f"{name} must be between 1 and {limits.answer_tokens:,}", name)
    extension = Fields(fields.get("hip", dict, {}))
    seed = fields.get("seed", int)
    if seed is not None and not 0 <= seed < 2**63:
        raise invalid("seed must be 0 or more, below 2^63", "seed")
    top_p = fields.number("top_p", 0, 1)
    return {
        "model": fields.get("model", str, ""),
        "document": extension.get("document", str),
        "map": extension.get("map", bool, False),
        "max_tokens": given[0][1] if given else None,
        "temperature": fields.number("temperature", 0, 2),
        # 0 is sent by clients that mean the likeliest token
        "top_p": 1e-6 if top_p == 0 else top_p,
        "seed": seed,
        "stream": fields.get("stream", bool, False),
        "user": fields.get("safety_identifier", str) or fields.get("user", str, ""),
    }


def stops(fields: Fields) -> tuple[str, ...]:
    """Texts that end an answer."""
    value = fields.get("stop", (str, list), [])
    found = [value] if isinstance(value, str) else value
    if len(found) > _MOST_STOPS or not all(isinstance(text, str) and text for text in found):
        raise invalid(f"stop must be a text or at most {_MOST_STOPS} texts, none of them empty", "stop")
    return tuple(found)


def talk(messages: Any, param: str) -> dict[str, Any]:
    """The turns of a list of messages: system, earlier, question, and the file or its id that came with them."""
    if not isinstance(messages, list) or not messages:
        raise invalid(f"{param} must be a list of messages, with one at least", param)
    system, turns, files = [], [], []
    for number, message in enumerate(messages):
        where = f"{param}[{number}]"
        if not isinstance(message, dict):
            raise invalid(f"{where} must be an object", where, "invalid_type")
        role, text = message.get("role"), _text_of(message.get("content"), where, files)
        if role in ("system", "developer"):
            system.append(text)
        elif role not in ("user", "assistant"):
            raise unsupported(f"a message with the role {role!r}" if isinstance(role, str) else "a message without a role", where)
        elif turns and turns[-1][0] == role:
            turns[-1] = (role, f"{turns[-1][1]}\n\n{text}")
        else:
            turns.append((role, text))
    if not turns or turns[0][0] != "user" or turns[-1][0] != "user":
        raise invalid("the talk must begin and end with a message of the user", param)
    if not turns[-1][1].strip():
        raise invalid("the question is empty", param)
    pairs = tuple((turns[at][1], turns[at + 1][1]) for at in range(0, len(turns) - 1, 2))
    return {"system": "\n\n".join(system), "earlier": pairs, "question": turns[-1][1], **_one_file(files, param)}


def _text_of(content: Any, where: str, files: list[dict[str, Any]]) -> str:
    """The text of a message; its files go to `files`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where}.content must be a text or a list of parts", where, "invalid_type")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in _FILE_PARTS:
            # the two protocols nest it differently
            files.append(part.get("file") if kind == "file" else part)
        else:
            raise unsupported(f"content of the type {kind!r}" if isinstance(kind, str) else "content without a type", where)
    return "\n\n".join(texts)


def _one_file(files: list[Any], param: str) -> dict[str, Any]:
    if not files:
        return {}
    if len(files) > 1 and any(file != files[0] for file in files):
        raise unsupported("more than one file in a request", param)
    file = Fields(files[0])
    if key := file.get("file_id", str):
        return {"document": key}
    data = file.get("file_data", str)
    if data is None:
        raise unsupported("a file without file_id or file_data", param)
    try:
        # "data:application/pdf;base64,JVBERi…", or the base64 alone
        raw = base64.b64decode(data.rpartition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        raise invalid("file_data must be base64, as in data:application/pdf;base64,…", param) from None
    if not raw:
        raise Problem(400, "the file is empty (0 bytes)", code="invalid_document", param=param)
    return {"file": InlineFile(file.get("filename", str, "document"), raw)}
