"""The stages in order: scores to kept chunks, kept chunks to finer candidates. Torch, any device; see reference.prune_ref."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.torch_scan import scan


@dataclass
class Selection:
    """What pruning a group of blocks left.

    stop: [NB] end of each block's middle. inputs: per stage the candidate starts [KV, NB, C] that entered it.
    starts: [KV, NB, K] kept chunks of the last stage, ascending; those at or past `stop` are padding.
    """

    stop: torch.Tensor
    inputs: list[torch.Tensor] = field(default_factory=list)
    starts: torch.Tensor | None = None


def best_chunks(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Ascending indices of the `count` best of the last dimension; ties go to the lower index.

    scores: [..., C] fp32 -> [..., count] int64. Score and index are packed into one integer, so that no sort by
    score has to be stable.
    """
    size = scores.shape[-1]
    bits = scores.view(torch.int32)
    # order-preserving map of floats to integers: negative floats have their bits reversed; -0.0 counts as 0.0
    ordered = torch.where(bits >= 0, bits, torch.iinfo(torch.int32).min - bits).long()
    packed = (ordered << 32) + (size - 1 - torch.arange(size, device=scores.device))
    return packed.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values


def finer_starts(starts: torch.Tensor, coarse_len: int, fine_len: int) -> torch.Tensor:
    """Split chunks: [KV, NB, K] -> [KV, NB, K * coarse_len / fine_len]."""
    steps = torch.arange(0, coarse_len, fine_len, device=starts.device)
    return (starts[..., None] + steps).flatten(-2)


def first_starts(stop: torch.Tensor, heads: int, plan: PrunePlan) -> torch.Tensor:
    """Candidates of the first stage: [KV, NB, C], C from the block with the longest middle."""
    longest = max(int(stop.max()), plan.sink_tokens)
    starts = torch.arange(plan.sink_tokens, longest, plan.stages[0].chunk_len, device=stop.device)
    return starts.expand(heads, stop.numel(), -1)


def prune(
    q,
    k,
    first: torch.Tensor,
    stop: torch.Tensor,
    plan: PrunePlan,
    layer: int,
    rope: Rope,
    after: Selection | None = None,
    from_stage: int = 0,
) -> Selection:
    """Select the middle keys of a group of blocks.

    q: [KV, NB, G, BQ, D] un-rotated; k: [KV, T, D]; first, stop: [NB] int64. With `after`, the candidates of stage
    `from_stage` come from it and earlier stages are not run (decode).
    """
    inputs = list(after.inputs[: from_stage + 1]) if after else [first_starts(stop, k.shape[0], plan)]
    starts = inputs[-1]
    for index in range(from_stage, len(plan.stages)):
        stage = plan.stages[index]
        count = plan.keep_chunks(index, layer)
        if starts.shape[-1] > count:
            scores = scan(q, k, starts, stop, first, index, plan, layer, rope)
            if plan.share == "all":
                scores = scores.amax(0, keepdim=True).expand_as(scores)
            starts = starts.gather(-1, best_chunks(scores.contiguous(), count))
        if index + 1 < len(plan.stages):
            starts = finer_starts(starts, stage.chunk_len, plan.stages[index + 1].chunk_len)
            inputs.append(starts)
    return Selection(stop, inputs, starts)
