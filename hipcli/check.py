"""`hip ask --check`: what the meter measured, as one number, one sentence, a warning, a JSON object.

Knows words and shares; the meter knows the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hipcli.console import Terminal, duration

if TYPE_CHECKING:
    from hipcli.engine import Engine
    from hipcli.kernels.coverage import Coverage
    from hipcli.meter import Meter

    Result = TypeVar("Result")

# the 24 questions on samples/lighthouse.md, default model, every block pruned: lists of 2048 keys agree to 0.99 and answer as
# many right (11) as dense attention does; 1024 keys agree to 0.96 and answer 6, 512 agree to 0.92 and answer 4
TRUSTED_AGREEMENT = 0.98
WORST_LAYERS = 3
DIGITS = 4


@dataclass(frozen=True)
class LayerShares:
    """Means over the rows of one layer, one number a query head; their names are those of kernels.coverage.Coverage."""

    layer: int
    caught: tuple[float, ...]
    outside: tuple[float, ...]
    outside_caught: tuple[float, ...]
    top_caught: tuple[float, ...]
    outside_top_caught: tuple[float, ...]

    @staticmethod
    def of(layer: int, coverage: Coverage) -> LayerShares:
        """Of [H, R] shares."""
        return LayerShares(layer, **{name: tuple(shares.mean(1).tolist()) for name, shares in vars(coverage).items()})

    def mean(self, name: str) -> float:
        """Mean of one share over the heads."""
        return _mean(getattr(self, name))

    @property
    def record(self) -> dict[str, Any]:
        """The layer as JSON: of its middle the share caught, and per head what was caught."""
        heads = {name: [round(share, DIGITS) for share in getattr(self, name)] for name in ("caught", "top_caught")}
        shares = {name: round(self.mean(name), DIGITS) for name in ("caught", "outside", "top_caught")}
        return {"layer": self.layer, **shares, "outside_caught": round(_outside_caught([self]), DIGITS), "heads": heads}


@dataclass(frozen=True)
class Check:
    """How far pruned attention agreed with dense attention while one question was read.

    layers: those measured, none when nothing was pruned. rows: query rows measured in each. seconds: that it took, all before
    the first token. beyond_window: the question stood past the positions the model was trained on, where dense attention is
    no yardstick: it goes astray there by itself.
    """

    layers: tuple[LayerShares, ...]
    rows: int
    seconds: float
    beyond_window: bool = False

    @staticmethod
    def of(meter: Meter, trained_window: int) -> Check:
        """What a meter has measured on a model that was trained on texts of trained_window tokens."""
        found = meter.layers()
        rows = next((coverage.caught.shape[1] for coverage in found.values()), 0)
        return Check(
            tuple(LayerShares.of(layer, coverage) for layer, coverage in found.items()), rows, meter.seconds, meter.tokens > trained_window
        )

    @property
    def agreement(self) -> float:
        """Share of dense attention that the pruned lists caught, mean over layers, heads and rows; 1 when nothing was pruned."""
        return self.mean("caught") if self.layers else 1.0

    @property
    def is_trusted(self) -> bool:
        """Whether the agreement is what right answers have."""
        return self.agreement >= TRUSTED_AGREEMENT

    @property
    def outside_caught(self) -> float:
        """Of the attention outside sinks and window, the share that was caught; 1 where there is none."""
        return _outside_caught(self.layers)

    @property
    def worst(self) -> list[LayerShares]:
        """The layers in which the least was caught, the worst first."""
        return sorted(self.layers, key=lambda layer: layer.mean("caught"))[:WORST_LAYERS]

    def mean(self, name: str) -> float:
        """Mean of one share over layers and heads."""
        return _mean([layer.mean(name) for layer in self.layers])

    def say(self, terminal: Terminal) -> None:
        """One sentence, and a warning when the answer should not be trusted."""
        if not self.layers:
            terminal.note("check: attention was dense while the question was read: nothing was pruned")
            return
        outside = f"{self.outside_caught:.0%} of the {self.mean('outside'):.0%} that lay outside sinks and window"
        terminal.note(
            f"check: the pruned attention caught {self.agreement:.1%} of what dense attention would have weighed, {outside} "
            f"({len(self.layers)} layers, {self.rows} rows, {duration(self.seconds)})"
        )
        least = ", ".join(f"{layer.layer} ({layer.mean('caught'):.1%})" for layer in self.worst)
        terminal.detail(f"check: {self.mean('top_caught'):.0%} of each row's heaviest keys were read; least was caught in layers {least}")
        if self.beyond_window:
            terminal.note("check: the question stood beyond the window the model was trained on, where dense attention goes astray too")
        if not self.is_trusted:
            way = "ask a model with a longer window" if self.beyond_window else "compare with --dense"
            terminal.warn(f"the answer may rest on too little of the document: look it up on the pages named, or {way}")

    @property
    def record(self) -> dict[str, Any]:
        """The check as JSON."""
        common = {"pruned": bool(self.layers), "agreement": round(self.agreement, DIGITS), "trusted": self.is_trusted}
        if not self.layers:
            return common
        shares = {name: round(self.mean(name), DIGITS) for name in ("caught", "outside", "top_caught", "outside_top_caught")}
        return {
            **common,
            **shares,
            "outside_caught": round(self.outside_caught, DIGITS),
            "worst_layers": [layer.layer for layer in self.worst],
            "layers": [layer.record for layer in self.layers],
            "rows": self.rows,
            "beyond_trained_window": self.beyond_window,
            "seconds": round(self.seconds, DIGITS),
        }


def checked(engine: Engine, wanted: bool, answer: Callable[[], Result]) -> tuple[Result, Check | None]:
    """Run `answer`, which asks the engine one question, under a meter when that is wanted."""
    if not wanted:
        return answer(), None
    from hipcli.meter import Meter

    meter = Meter(engine.runtime)
    with engine.watching(meter):
        return answer(), Check.of(meter, engine.model.trained_window)


def _mean(shares) -> float:
    return sum(shares) / len(shares)


def _outside_caught(layers) -> float:
    outside = sum(layer.mean("outside") for layer in layers)
    return sum(layer.mean("outside_caught") for layer in layers) / outside if outside else 1.0
