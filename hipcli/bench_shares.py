"""How a stretch of work divides over kinds of torch operation, on a CPU, which runs them one after another."""

from __future__ import annotations

import time

from torch.utils._python_dispatch import TorchDispatchMode

OPERATIONS = {
    "linear layers": ("linear",),
    "attention": ("flash_attention", "softmax", "logaddexp"),
    "gather": ("index_select",),
    "scan": ("matmul", "bmm", "amax", "topk", "sort", "gather", "masked_fill", "maximum"),
    "rotation": ("complex", "mul", "copy"),
}


class OperationClock(TorchDispatchMode):
    """Adds up the time of each torch operation by kind while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = dict.fromkeys(OPERATIONS, 0.0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        kind = next((kind for kind, names in OPERATIONS.items() if any(part in name for part in names)), None)
        if kind:
            self.spent[kind] += time.perf_counter() - start
        return result

    def shares(self, total: float) -> dict[str, float]:
        """Seconds by kind; `other` is what is left of `total`, Python included."""
        return self.spent | {"other": total - sum(self.spent.values())}
