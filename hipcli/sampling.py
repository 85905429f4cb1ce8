"""Logits to the next id: greedy, or temperature with top-p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hipcli.errors import UsageError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_p keeps the smallest set of ids whose probabilities reach it; seed makes runs repeat."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be above 0 and at most 1, got {self.top_p}")


class Sampler:
    """Draws ids; one per answer, so that the same seed gives the same answer."""

    def __init__(self, sampling: Sampling, device: str) -> None:
        import torch

        self.sampling = sampling
        self.generator = torch.Generator(device=device)
        if sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(sampling.seed)

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """logits: [vocab] -> id, [] int64 on the same device: nothing waits for it here."""
        import torch

        if self.sampling.temperature == 0:
            return logits.argmax()
        # relative to the best, so that no temperature, however small, overflows
        probabilities = ((logits.double() - logits.max()) / self.sampling.temperature).softmax(-1)
        if self.sampling.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            # the id that crosses top_p still belongs to the set
            beyond = ordered.cumsum(-1) - ordered >= self.sampling.top_p
            beyond[0] = False
            ordered = ordered.masked_fill(beyond, 0)
            probabilities = torch.zeros_like(probabilities).scatter(0, order, ordered)
        return torch.multinomial(probabilities, 1, generator=self.generator)[0]
