"""The suite's rows for a person: a line for each haystack, tables in the end. Measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hipcli.bench_report import Column, aligned, drawn
from hipcli.console import duration, write_json, write_stdout
from hipcli.suite.records import Row
from hipcli.suite.summary import check_aucs, comparisons, summaries

_NAMES = {"pass": "one pass", "greedy": "decoded"}


def show(row: Row) -> None:
    """A line for a haystack that was asked, or that was not."""
    if row["row"] == "answer":
        return
    cell = f"{row['task']}, {row['context']:,} tokens, {row['attention']}, sample {row['sample'] + 1}"
    if row["row"] == "skipped":
        write_stdout(f"{cell}: {'' if row['reason'] == 'failed' else 'skipped: '}{row['skipped']}\n")
        return
    right = [f"{row[f'{scoring}_right']} ({name})" for scoring, name in _NAMES.items() if f"{scoring}_right" in row]
    times = f"prefill {duration(row['prefill_seconds'])}, questions {duration(row['questions_seconds'])}"
    write_stdout(f"{cell}: right {', '.join(right)} of {row['questions']}; {times}\n")


def _share(key: str) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else f"{100 * row[key]:.1f}"


def _interval(key: str) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else f"{100 * row[f'{key}_low']:.1f} to {100 * row[f'{key}_high']:.1f}"


def _whole(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:,}"


CELL = (
    Column("context", 10, _whole("context")),
    Column("task", 16, lambda row: row["task"]),
    Column("attention", 18, lambda row: row["attention"]),
)
SUMMARY = (
    *CELL,
    Column("questions", 9, _whole("n")),
    Column("one pass %", 10, _share("pass")),
    Column("95 %", 14, _interval("pass")),
    Column("decoded %", 9, _share("greedy")),
    Column("95 %", 14, _interval("greedy")),
    Column("agree %", 7, _share("agree")),
)
PAIRED = (
    *CELL,
    Column("scoring", 8, lambda row: _NAMES[row["scoring"]]),
    Column("questions", 9, _whole("n")),
    Column("both right", 10, _whole("both")),
    Column("only it", 8, _whole("only")),
    Column("only dense", 10, _whole("only_dense")),
    Column("neither", 8, _whole("neither")),
    Column("p", 6, lambda row: f"{row['p']:.3f}"),
)

CHECKS = (
    Column("figure", 14, lambda row: row["figure"]),
    Column("pairs of", 12, lambda row: row["over"]),
    Column("answers", 9, _whole("n")),
    Column("pairs", 9, _whole("pairs")),
    Column("AUC", 6, lambda row: f"{row['auc']:.3f}"),
)


def conclude(answers: list[Row], as_json: bool) -> None:
    """Figures of all answers: tables, or JSON lines."""
    results, pairs, checks = summaries(answers), comparisons(answers), check_aucs(answers)
    if as_json:
        for row in (*results, *pairs, *checks):
            write_json(row)
        return
    _table("Scores with Wilson's intervals", SUMMARY, results)
    _table("Against dense attention, question by question", PAIRED, pairs)
    _table("How well --check tells right from wrong: chance that a right answer has the higher figure", CHECKS, checks)


def _table(title: str, columns: tuple[Column, ...], lines: list[Row]) -> None:
    if not lines:
        return
    if sys.stdout is not None and sys.stdout.isatty():
        write_stdout(drawn(title, columns, lines))
        return
    body = "".join(aligned(columns, [column.text(line) for column in columns]) for line in lines)
    write_stdout(f"\n{title}\n{aligned(columns, [column.title for column in columns])}{body}")
