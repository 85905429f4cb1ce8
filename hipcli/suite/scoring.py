"""Judges a model's answers to one haystack, by one pass over the expected answer and by free decoding."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hipcli.check import checked
from hipcli.suite.prompt import Asked
from hipcli.suite.tasks import Question, Task

if TYPE_CHECKING:
    from hipcli.engine import Engine
    from hipcli.tokens import Tokenizer


_ALL_RIGHT = 0.999


@dataclass(frozen=True)
class Score:
    """right: the whole answer. score: 0 to 1, with credit for parts."""

    right: bool
    score: float


@torch.inference_mode()
def one_pass(engine: Engine, asked: Asked) -> Score:
    """Run question and expected answer at once: a part is right when the likeliest token is its own at every place.

    For dense attention that is what greedy decoding would say of an answer that begins as expected. An answer of one
    part has credit for the share of its tokens only where it is a writing, whose likeness its metric measures.
    """
    hidden = engine.peek([*asked.ids, *asked.answer_ids[:-1]])
    logits = engine.model.network.lm_head(hidden[len(asked.ids) - 1 :])
    agrees = (logits.argmax(-1).cpu() == torch.tensor(asked.answer_ids)).tolist()
    parts = [all(agrees[start:stop]) for start, stop in asked.spans]
    credit = sum(parts) / len(parts)
    if asked.question.opening:
        tokens = [agree for start, stop in asked.spans for agree in agrees[start:stop]]
        credit = sum(tokens) / len(tokens)
    return Score(all(parts), credit)


def decode(engine: Engine, tokenizer: Tokenizer, asked: Asked) -> str:
    """The model's own answer, token by token, without the lead it was given."""
    stream = tokenizer.stream()
    ids = engine.generate(asked.ids, max_tokens=asked.max_tokens, stop_ids=tokenizer.stop_ids)
    with closing(ids):
        text = "".join([stream.push(token) for token in ids])
    return text + stream.finish()


def judge(task: Task, question: Question, answer: str) -> Score:
    """A free answer by the task's own metric."""
    score = task.metric(answer, question)
    return Score(score >= _ALL_RIGHT, score)


def answer_fields(engine: Engine, tokenizer: Tokenizer, task: Task, asked: Asked, scoring: str, check: bool) -> dict[str, Any]:
    """What a question's row says of its answer. An answer in any order is decoded whatever `scoring` is.

    check: also how far pruned attention agreed with dense attention while the question was read.
    """
    verdicts, found = checked(engine, check, lambda: _verdicts(engine, tokenizer, task, asked, scoring))
    return verdicts | ({"agreement": round(found.agreement, 4), "outside_caught": round(found.outside_caught, 4)} if found else {})


def _verdicts(engine: Engine, tokenizer: Tokenizer, task: Task, asked: Asked, scoring: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"expected": f"{asked.question.separator} ".join(asked.question.parts)}
    ordered = asked.question.ordered
    if scoring != "greedy":
        score = one_pass(engine, asked) if ordered else None
        fields |= {"pass_right": score and score.right, "pass_score": score and round(score.score, 4)}
    if scoring != "pass" or not ordered:
        answer = decode(engine, tokenizer, asked)
        score = judge(task, asked.question, answer)
        fields |= {"greedy_right": score.right, "greedy_score": round(score.score, 4), "answer": answer.strip()}
    return fields
