"""The model's own chat template, split where the user's text goes.

A message of known letters is rendered and looked for: what stands before it opens the prompt, what stands
after it closes the turn and opens the answer. So a template may trim or move what it likes, the document
itself never passes through it. Knows nothing of ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.errors import ModelError

USER_MARK = "HipUserTextGoesHere"
ANSWER_MARK = "HipAnswerTextGoesHere"
NEXT_MARK = "HipNextTextGoesHere"
SYSTEM_MARK = "HipSystemTextGoesHere"
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

Message = dict[str, str]
Render = Callable[[list[Message], bool], str]


@dataclass(frozen=True)
class ChatTemplate:
    """Text around the user's text.

    prefix: everything before it, control tokens included.
    question_lead: stands between document and question.
    tail: everything after the question up to the start of the answer.
    answer_end: what follows an answer; its first control token ends a turn. Empty if unknown.
    turn: everything between an answer and the user's next text; None where the template has no second turn.
    format: "chat" for the model's own template, "plain" where it has none that works.
    """

    prefix: str
    question_lead: str
    tail: str
    answer_end: str
    turn: str | None
    format: str


def read_template(model_dir: Path, config: dict[str, Any], system: str | None = None) -> ChatTemplate:
    """Splits a model's chat template at the user's text.

    Args:
        model_dir: directory with tokenizer_config.json, and chat_template.jinja or .json where there is one.
        config: the parsed tokenizer_config.json.
        system: system message; None leaves the template's own, if it has one.

    Raises:
        ModelError: a template file cannot be read.
    """
    render = _renderer(_template_source(model_dir, config), config)
    user = {"role": "user", "content": USER_MARK}
    for messages in _openings(system, user) if render else ():
        halves = _split(render, messages, USER_MARK, True)
        if halves:
            answered = [*messages, {"role": "assistant", "content": ANSWER_MARK}]
            end = _split(render, answered, ANSWER_MARK, False)
            more = _split(render, [*answered, {"role": "user", "content": NEXT_MARK}], ANSWER_MARK, True)
            return ChatTemplate(halves[0], "\n\n", halves[1], end[1] if end else "", _turn(more), "chat")
    return ChatTemplate(f"{system}\n\n" if system else "", "\n\nQuestion: ", "\nAnswer:", "", "\n\nQuestion: ", "plain")


def _turn(halves: tuple[str, str] | None) -> str | None:
    """What stands between the marks of an answer and of the next question."""
    return halves[1].split(NEXT_MARK)[0] if halves and halves[1].count(NEXT_MARK) == 1 else None


def special_token(config: dict[str, Any], name: str) -> str | None:
    """A special token's text; tokenizer_config.json writes it bare or as an object."""
    value = config.get(name)
    return value.get("content") if isinstance(value, dict) else value


def _openings(system: str | None, user: Message) -> list[list[Message]]:
    """Messages to try in turn: some templates refuse a system message, the user's turn then carries it."""
    if system is None:
        return [[user]]
    return [
        [{"role": "system", "content": system}, user],
        [{"role": "user", "content": f"{system}\n\n{user['content']}"}],
    ]


def _split(render: Render, messages: list[Message], mark: str, opens_answer: bool) -> tuple[str, str] | None:
    """Rendered text before and after mark, or None where the template fails or does not hold it exactly once."""
    try:
        text = render(messages, opens_answer)
    # a template is a program of the model's; whatever it raises, it is of no use here
    except Exception:
        return None
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if text.count(mark) != 1 or system.strip() not in text:
        return None
    before, after = text.split(mark)
    return before, after


def _renderer(source: str | None, config: dict[str, Any]) -> Render | None:
    """Renders messages as `transformers` does; thinking is switched off where the template can."""
    if not source:
        return None
    # transformers takes a second to import, and only prompts need it
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = {name: token for name in SPECIAL_NAMES if (token := special_token(config, name))}
    # rendering needs the special tokens' names, no vocabulary
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=source, **names)

    def render(messages: list[Message], opens_answer: bool) -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opens_answer, enable_thinking=False)

    return render


def _template_source(model_dir: Path, config: dict[str, Any]) -> str | None:
    """The template's text: its own file wins over the configuration, "default" over other named ones."""
    try:
        if (path := model_dir / "chat_template.jinja").is_file():
            return path.read_text(encoding="utf-8")
        if (path := model_dir / "chat_template.json").is_file():
            return json.loads(path.read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ModelError(f"cannot read {path}: {fault}", hint="fetch the model again, or remove that file to use a plain prompt") from fault
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        return named.get("default")
    return source
