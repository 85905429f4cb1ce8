"""The benchmark as a picture: context against time, prefill and decode, sparse and dense, on logarithmic axes.

matplotlib is an extra that a plain installation lacks; what is missing is said before anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hipcli.errors import DiskError, UsageError

SUFFIXES = (".svg", ".png", ".pdf")
STYLES = {"sparse": {"color": "#1b6ca8", "marker": "o"}, "dense": {"color": "#b5432a", "marker": "s"}}
PANELS = {
    "model": (("prefill_seconds", "prefill of a whole context (s)"), ("decode_p50_ms", "decode step (ms)")),
    "layer": (("{mode}_prefill_ms", "prefill chunk of one layer (ms)"), ("{mode}_decode_ms", "decode step of one layer (ms)")),
}


def require_plot(path: Path) -> None:
    """Raise UsageError when a picture cannot be made or its place does not exist; to be called before the work."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot must name a file ending in {', '.join(SUFFIXES)}, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot cannot write {path}: its folder does not exist", "make the folder first")
    if path.is_dir():
        raise UsageError(f"--plot cannot write {path}: it is a folder")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib, which cannot be loaded: {error}", 'pip install "matplotlib>=3.8"') from error


def curves(rows: Sequence[dict[str, Any]], kind: str) -> list[tuple[str, str, list[tuple[int, float]]]]:
    """Per panel and mode: the panel's label, the mode, and (tokens, time) by rising context; empty curves are left out."""
    found = []
    measured = [row for row in rows if row["row"] == kind and "skipped" not in row]
    for key, label in PANELS[kind]:
        for mode in STYLES:
            name = key.format(mode=mode)
            points = [(row["context"], row[name]) for row in measured if row.get("mode", mode) == mode and name in row]
            if points:
                found.append((label, mode, sorted(points)))
    return found


def plot(path: Path, rows: Sequence[dict[str, Any]], title: str) -> bool:
    """Draw whole-model rows, or one layer's where there are none; False when there is nothing to draw. Raises DiskError."""
    drawn = curves(rows, "model") or curves(rows, "layer")
    if not drawn:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(label for label, _, _ in drawn))
    figure = Figure(figsize=(5.2 * len(labels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize="medium")
    for place, label in enumerate(labels, 1):
        axes = figure.add_subplot(1, len(labels), place)
        for _, mode, points in (curve for curve in drawn if curve[0] == label):
            axes.plot(*zip(*points), label=mode, **STYLES[mode])
        _dress(axes, label, sorted({tokens for _, _, points in drawn for tokens, _ in points}))
    try:
        figure.savefig(path)
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}", "choose another place for --plot") from error
    return True


def _dress(axes, label: str, contexts: list[int]) -> None:
    """Scales, ticks at the contexts that were measured, and legend."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(contexts, [short(tokens) for tokens in contexts])
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel(label)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend()


def short(tokens: int) -> str:
    """64K, 1M, or the number where it is no multiple."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens % size == 0:
            return f"{tokens // size}{unit}"
    return f"{tokens:,}"
