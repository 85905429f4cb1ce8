"""From a task to ids: the haystack within the context asked for, each question with its answer. Knows tokenizers, no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from hipcli.pipeline import as_question
from hipcli.suite.fit import CannotBuild, TextTooShort, finish
from hipcli.suite.prose import Prose
from hipcli.suite.tasks import Example, Question, Source, Task

if TYPE_CHECKING:
    from hipcli.tokens import PromptParts, Tokenizer

SPARE_TOKENS = 16  # an answer may be half as long again as the one expected, and so much more


@dataclass(frozen=True)
class Asked:
    """A question as ids.

    ids: question, end of turn and the start of the answer. answer_ids: of the expected answer after them. spans: where in
    answer_ids each scored part stands. max_tokens: decoded at most.
    """

    question: Question
    ids: list[int]
    answer_ids: list[int]
    spans: tuple[tuple[int, int], ...]
    max_tokens: int

    @property
    def room(self) -> int:
        """Tokens that question and answer take at most."""
        return len(self.ids) + max(self.max_tokens, len(self.answer_ids))


@dataclass(frozen=True)
class Cell:
    """One haystack as a model is given it, with its questions. tokens: of the prompt with the longest question and answer."""

    ids: list[int]
    asked: tuple[Asked, ...]
    tokens: int


def continuation(tokenizer: Tokenizer, before: str, text: str) -> list[int]:
    """Ids of text as it follows `before`."""
    whole, head = tokenizer.encode(before + text), tokenizer.encode(before) if before else []
    # a tokenizer that merges across the border: the model would then write the text's own ids
    return whole[len(head) :] if whole[: len(head)] == head else tokenizer.encode(text)


def as_asked(question: Question, tokenizer: Tokenizer, prompt: PromptParts) -> Asked:
    """The ids of a question and of its expected answer."""
    ids = [*prompt.suffix_ids(as_question(question.text)), *(tokenizer.encode(question.lead) if question.lead else [])]
    so_far, answer, spans = question.lead + question.opening, [], []
    if question.opening:
        answer += continuation(tokenizer, question.lead, question.opening)
    for number, part in enumerate(question.parts):
        if number:
            answer += continuation(tokenizer, so_far, question.separator)
            so_far += question.separator
        text = f" {part}" if so_far else part
        piece = continuation(tokenizer, so_far, text)
        spans.append((len(answer), len(answer) + len(piece)))
        answer, so_far = answer + piece, so_far + text
    return Asked(question, ids, answer, tuple(spans), len(answer) * 3 // 2 + SPARE_TOKENS)


def build_cell(task: Task, context: int, sample: int, seed: int, pack: int, prose: Prose | None, tokenizer: Tokenizer) -> Cell:
    """The haystack of a task, the same for the same arguments, within 1 % below `context` tokens with all that stands around it.

    Raises CannotBuild where the task does not fit the context, TextTooShort where the prose ends before it.
    """
    if task.examples:
        return _example_cell(task.examples[sample], context, tokenizer)
    draw, prompt = Random(f"{seed} {task.name} {context} {sample}"), tokenizer.prompt()
    text = prose.turned(draw) if prose and task.needs_prose else ""
    draft = task.build(Source(draw, context, pack, text, lambda piece: len(tokenizer.encode(piece))))
    asked = tuple(as_asked(question, tokenizer, prompt) for question in draft.questions)
    around = len(prompt.prefix_ids) + longest(asked)
    if around >= context:
        raise CannotBuild(f"question and answer of {task.name} take {around:,} tokens")
    try:
        haystack = finish(draft, lambda piece: len(tokenizer.encode(piece)), context - around)
    except TextTooShort:
        if not task.needs_prose:
            raise
        held = len(tokenizer.encode(text))
        raise TextTooShort(f"the text has only {held:,} tokens, give a longer one by --text") from None
    ids = [*prompt.prefix_ids, *tokenizer.encode(haystack.text)]
    return Cell(ids, asked, len(ids) + longest(asked))


def longest(asked: Sequence[Asked]) -> int:
    return max(question.room for question in asked)


def _example_cell(example: Example, context: int, tokenizer: Tokenizer) -> Cell:
    """Data as it is. Raises CannotBuild where it exceeds the context: nothing is cut off."""
    prompt, question = tokenizer.prompt(), replace(example.question, ordered=False)
    asked = replace(as_asked(question, tokenizer, prompt), max_tokens=example.max_tokens)
    ids = [*prompt.prefix_ids, *tokenizer.encode(example.text)]
    # the references are not the answer's length
    tokens = len(ids) + len(asked.ids) + example.max_tokens
    if tokens > context:
        raise CannotBuild(f"the example takes {tokens:,} tokens, more than the longest --context")
    return Cell(ids, (replace(asked, answer_ids=[], spans=()),), tokens)
