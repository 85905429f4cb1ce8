"""Answers gathered into figures: shares with intervals of each cell, means over tasks, and one attention against another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hipcli.suite.records import Row
from hipcli.suite.stats import mean_interval, paired, rank_auc, wilson

SCORINGS = ("pass", "greedy")
EVERY_TASK = "mean of tasks"
BASE = "dense"
_QUESTION = ("task", "context", "seed", "sample", "question")


def groups(rows: Iterable[Row], key: Callable[[Row], tuple]) -> dict[tuple, list[Row]]:
    """Rows by key, in the order in which keys first come."""
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _scores(rows: list[Row], scoring: str) -> list[float]:
    return [row[f"{scoring}_score"] for row in rows if row.get(f"{scoring}_score") is not None]


def agreement(rows: list[Row]) -> float | None:
    """How often both ways of scoring say the same, None where no question was judged both ways."""
    both = [row for row in rows if row.get("pass_right") is not None and row.get("greedy_right") is not None]
    return sum(row["pass_right"] == row["greedy_right"] for row in both) / len(both) if both else None


def summaries(rows: list[Row]) -> list[Row]:
    """A row for each context, task and attention, and one for the mean of the tasks that all attentions were asked.

    Each has n, score and 95 % interval by scoring.
    """
    found = []
    for context in sorted({row["context"] for row in rows}):
        here = [row for row in rows if row["context"] == context]
        for (task, attention), cell in groups(here, lambda row: (row["task"], row["attention"])).items():
            found.append(_summary(context, task, attention, cell))
        shared = [row for row in here if row["task"] in _shared_tasks(here)]
        if len({row["task"] for row in shared}) > 1:
            for (attention,), cell in groups(shared, lambda row: (row["attention"],)).items():
                found.append(_mean(context, attention, cell))
    return found


def _shared_tasks(rows: list[Row]) -> set[str]:
    """Tasks that every attention was asked: means over others could not be compared."""
    tasks = [{row["task"] for row in cell} for cell in groups(rows, lambda row: (row["attention"],)).values()]
    return set.intersection(*tasks)


def _summary(context: int, task: str, attention: str, cell: list[Row]) -> Row:
    figures: dict[str, Any] = {"row": "summary", "context": context, "task": task, "attention": attention, "n": len(cell)}
    for scoring in SCORINGS:
        if scores := _scores(cell, scoring):
            low, high = wilson(sum(scores), len(scores))
            figures |= {scoring: sum(scores) / len(scores), f"{scoring}_low": low, f"{scoring}_high": high}
    return figures | {"agree": agreement(cell)}


def _mean(context: int, attention: str, cell: list[Row]) -> Row:
    """The mean of the tasks. In that of one pass, tasks that can only be decoded stand with their decoded score."""
    tasks = groups(cell, lambda row: (row["task"],)).values()
    figures: dict[str, Any] = {"row": "summary", "context": context, "task": EVERY_TASK, "attention": attention, "n": len(cell)}
    for scoring in SCORINGS:
        scores = [_scores(rows, scoring) or (scoring == "pass" and _scores(rows, "greedy")) for rows in tasks]
        judged = scoring == "greedy" or any(_scores(rows, scoring) for rows in tasks)
        if judged and all(scores):
            mean, low, high = mean_interval([(sum(own), len(own)) for own in scores if own])
            figures |= {scoring: mean, f"{scoring}_low": low, f"{scoring}_high": high, "tasks": len(scores)}
    return figures | {"agree": agreement(cell)}


def comparisons(rows: list[Row]) -> list[Row]:
    """Each attention against dense on the questions that both were asked, by task and over all tasks of a context."""
    found = []
    for context in sorted({row["context"] for row in rows}):
        here = [row for row in rows if row["context"] == context]
        tasks = [*groups(here, lambda row: (row["task"],))]
        for scoring in SCORINGS:
            for (task,) in [*tasks, (None,)] if len(tasks) > 1 else tasks:
                cell = [row for row in here if task in (None, row["task"])]
                found += _against_base(context, task or "all tasks", scoring, cell)
    return found


def _against_base(context: int, task: str, scoring: str, cell: list[Row]) -> list[Row]:
    verdicts: dict[str, dict[tuple, bool]] = {}
    for row in cell:
        right = row.get(f"{scoring}_right")
        if right is not None:
            verdicts.setdefault(row["attention"], {})[tuple(row[name] for name in _QUESTION)] = right
    base, found = verdicts.pop(BASE, {}), []
    for attention, own in verdicts.items():
        shared = [question for question in own if question in base]
        if shared:
            counts = paired([own[question] for question in shared], [base[question] for question in shared])
            fields = {"both": counts.both, "only": counts.only_first, "only_dense": counts.only_second, "neither": counts.neither}
            head = {"row": "paired", "context": context, "task": task, "attention": attention, "scoring": scoring}
            found.append(head | {"n": len(shared), **fields, "p": counts.p})
    return found


def check_aucs(rows: list[Row]) -> list[Row]:
    """How well the figures of --check tell right answers from wrong ones: over all pruned answers, and within each cell.

    Within cells, each pair is of one task, context and attention, so that easy tasks do not help.
    """
    measured = [row for row in rows if "agreement" in row and row["attention"] != BASE]
    found = []
    for figure in ("agreement", "outside_caught"):
        for name, key in (("all answers", lambda row: ()), ("within cells", lambda row: (row["task"], row["context"], row["attention"]))):
            pairs, weighted = 0, 0.0
            for cell in groups(measured, key).values():
                right = [row[figure] for row in cell if is_right(row)]
                wrong = [row[figure] for row in cell if not is_right(row)]
                if (auc := rank_auc(right, wrong)) is not None:
                    pairs, weighted = pairs + len(right) * len(wrong), weighted + auc * len(right) * len(wrong)
            if pairs:
                found.append({"row": "check", "figure": figure, "over": name, "n": len(measured), "pairs": pairs, "auc": weighted / pairs})
    return found


def is_right(row: Row) -> bool:
    """The decoded verdict where there is one, else that of one pass."""
    verdict = row.get("greedy_right")
    return bool(row.get("pass_right") if verdict is None else verdict)
