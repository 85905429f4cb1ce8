"""Every kernel once at small sizes, for a memory and race checker to watch:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python docs/results/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck python docs/results/sanitize.py

Without torch's allocator in between every tensor is an allocation of its own, so a read past its end is seen.
"""

import torch

from hipcli.kernels.backends import backend_class
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage

STAGES = (PruneStage(32, 128, 4, 2, 4), PruneStage(8, 64, 2, 1, 2), PruneStage(2, 32, 1, 0, 1))
SIZES = {"sink_tokens": 32, "window_tokens": 20, "block_len": 16, "special_layers": 1, "special_keep_tokens": 48}
PAPER = {"descent": "head", "probe": "first", "score": "last", "share": "all"}
SHAPES = ((2, 3, 64, torch.bfloat16), (2, 4, 128, torch.bfloat16), (1, 7, 96, torch.float16), (1, 2, 64, torch.float32))


def exercise(kv: int, group: int, dim: int, dtype: torch.dtype, variant: dict[str, str]) -> None:
    """Prefill with a ragged end, then a refresh cycle of decode steps, in a special and an ordinary layer."""
    rope = Rope(1.0 / (10000 ** (torch.arange(0, dim, 2, device="cuda") / dim)))
    backend = backend_class("triton")(PrunePlan(STAGES, **SIZES, **variant), rope, 0)
    total, steps = 407, 6
    q = torch.randn(kv * group, total + steps, dim, dtype=dtype, device="cuda")
    k, v = (torch.randn(kv, total + steps, dim, dtype=dtype, device="cuda") for _ in "kv")
    for layer in (0, 1):
        o = backend.prefill(layer, q[:, :total], k[:, :total].contiguous(), v[:, :total].contiguous(), backend.new_state())
        assert o.isfinite().all()
        state = backend.new_state()
        state.mass = torch.empty(kv * group, 4096, device="cuda")
        for step in range(steps):
            stop = total + step + 1
            seen = k[:, :stop].contiguous(), v[:, :stop].contiguous()
            o = backend.decode(layer, q[:, stop - 1 : stop], *seen, state, backend.plan.refresh_stage(step, layer, 2))
            assert o.isfinite().all()


for shape in SHAPES:
    for variant in ({}, PAPER):
        exercise(*shape, variant)
torch.cuda.synchronize()
print("done")
