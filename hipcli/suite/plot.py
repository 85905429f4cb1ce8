"""The suite as a picture: context against score, a panel a task, with 95 % intervals. matplotlib is checked for before the work."""

from __future__ import annotations

from pathlib import Path

from hipcli.bench_plot import short
from hipcli.errors import DiskError
from hipcli.suite.records import Row
from hipcli.suite.summary import EVERY_TASK, summaries

COLORS = ("#1b6ca8", "#b5432a", "#3f8f4f", "#8a5aa8", "#b08a1e", "#5a5a5a")
MARKERS = "osD^vX"
PANELS_A_ROW = 4


def draw(path: Path, answers: list[Row], title: str) -> None:
    """Draw the decoded score where there is one, else that of one pass. Raises DiskError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = summaries(answers)
    tasks = sorted(dict.fromkeys(row["task"] for row in rows), key=lambda task: task != EVERY_TASK)
    names = list(dict.fromkeys(row["attention"] for row in rows))
    across = min(PANELS_A_ROW, len(tasks))
    down = -(-len(tasks) // across)
    figure = Figure(figsize=(3.6 * across + 0.4, 3.0 * down + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize="medium")
    for place, task in enumerate(tasks, 1):
        axes = figure.add_subplot(down, across, place)
        for number, name in enumerate(names):
            _curve(axes, [row for row in rows if (row["task"], row["attention"]) == (task, name)], name, number)
        _dress(axes, task, sorted({row["context"] for row in rows}))
    figure.axes[0].legend(fontsize="small")
    figure.supxlabel("context (tokens)", fontsize="small")
    figure.supylabel("score", fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}", "choose another place for --plot") from error


def _curve(axes, rows: list[Row], name: str, number: int) -> None:
    points = []
    for row in rows:
        scoring = "greedy" if "greedy" in row else "pass"
        points.append((row["context"], row[scoring], row[f"{scoring}_low"], row[f"{scoring}_high"]))
    if not points:
        return
    contexts, middles, lows, highs = zip(*sorted(points))
    below = [max(0.0, middle - low) for middle, low in zip(middles, lows)]
    above = [max(0.0, high - middle) for middle, high in zip(middles, highs)]
    style = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4, "capsize": 2}
    axes.errorbar(contexts, middles, yerr=(below, above), label=name, linewidth=1.2, elinewidth=0.8, **style)


def _dress(axes, task: str, contexts: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [short(tokens) for tokens in contexts], fontsize="small")
    axes.minorticks_off()
    axes.set_ylim(-0.03, 1.03)
    axes.set_title(task, fontsize="small")
    axes.grid(True, alpha=0.25)
