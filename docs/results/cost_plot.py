"""Accuracy against cost at equal kept tokens: score of a task over the seconds of the prefill, a line an attention.

python docs/results/cost_plot.py suite-h200-qwen2.5-coder-0.5b.jsonl accuracy-cost.svg --task niah_multikey_1
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

from hipcli.bench_plot import short
from hipcli.suite.plot import COLORS, MARKERS
from hipcli.suite.stats import wilson


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("out")
    parser.add_argument("--task", required=True)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.rows.read_text().splitlines()]
    haystacks = [row for row in rows if row["row"] == "haystack"]
    # the first prefill of a run compiles kernels: the fastest of a context says what it costs
    seconds: dict[tuple[str, int], float] = {}
    for row in haystacks:
        key = row["attention"], row["context"]
        seconds[key] = min(seconds.get(key, float("inf")), row["prefill_seconds"])
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    asked = [row for row in haystacks if row["task"] == given.task and "pass_right" in row]
    for number, name in enumerate(dict.fromkeys(row["attention"] for row in asked)):
        cells = sorted((row["context"], row["pass_right"], row["questions"]) for row in asked if row["attention"] == name)
        spent = [seconds[name, context] for context, _, _ in cells]
        shares = [right / count for _, right, count in cells]
        bounds = [wilson(right, count) for _, right, count in cells]
        errors = [share - low for share, (low, _) in zip(shares, bounds)], [high - share for share, (_, high) in zip(shares, bounds)]
        axes.errorbar(spent, shares, yerr=errors, label=name, color=COLORS[number], marker=MARKERS[number], capsize=2, linewidth=1)
        for (context, _, _), x, y in zip(cells, spent, shares):
            axes.annotate(short(context), (x, y), textcoords="offset points", xytext=(5, 5), fontsize="small")
    axes.set_xscale("log")
    axes.set_xlabel("seconds of the prefill")
    axes.set_ylabel(f"{given.task}: share right")
    axes.set_ylim(0, 1)
    axes.legend()
    axes.grid(True, alpha=0.25)
    figure.savefig(given.out)


if __name__ == "__main__":
    main()
