"""The stages in order, all on the device: no list leaves it, no size depends on what it holds. Triton; see reference.prune_ref."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hipcli.kernels.coding import Coding
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.triton_candidates import fill_bank
from hipcli.kernels.triton_choose import choose
from hipcli.kernels.triton_scan import Candidates, scan


@dataclass
class Selection:
    """Per stage what entered it (`inputs`), and what the last one kept, in chunks of the last stage.

    stops: [NB] int32, end of each block's middle.
    """

    stops: torch.Tensor
    inputs: list[Candidates]


def first_most(most_stop: int, plan: PrunePlan) -> int:
    """Room for the chunks of the longest middle: a multiple of 16, or every length would have its kernels compiled anew."""
    return 16 * max(1, -(-(most_stop - plan.sink_tokens) // (16 * plan.stages[0].chunk_len)))


def first_candidates(kv: int, blocks: int, most_stop: int, plan: PrunePlan, device) -> Candidates:
    """All chunks of the middle; its kernels count them from `stops`. most_stop: upper bound of the stops."""
    # not read: a stage of ratio 0 needs neither list nor count
    unused = torch.empty(kv, blocks, dtype=torch.int32, device=device)
    return Candidates(unused[..., None], unused, 0, first_most(most_stop, plan))


def empty_selection(kv: int, blocks: int, most_stop: int, plan: PrunePlan, layer: int, device) -> Selection:
    """Room for the lists of every stage, to be filled by `prune`."""
    inputs = [first_candidates(kv, blocks, most_stop, plan, device)]
    for index, stage in enumerate(plan.stages):
        keep = plan.keep_chunks(index, layer)
        finer = plan.stages[index + 1].chunk_len if index + 1 < len(plan.stages) else 1
        lists = torch.empty(kv, blocks, keep, dtype=torch.int32, device=device)
        counts = torch.empty(kv, blocks, dtype=torch.int32, device=device)
        inputs.append(Candidates(lists, counts, stage.chunk_len // finer, keep * (stage.chunk_len // finer)))
    return Selection(torch.empty(blocks, dtype=torch.int32, device=device), inputs)


def prune(
    q,
    k,
    firsts,
    selection: Selection,
    plan: PrunePlan,
    layer: int,
    rope: Rope,
    from_stage: int = 0,
    coding: Coding | None = None,
    banks: list[torch.Tensor] | None = None,
) -> None:
    """Fill `selection` for the blocks of q from stage `from_stage` on; earlier lists and `stops` stay.

    banks: of a decode step whose keys lie on the host (triton_candidates.py): k is read by the first stage only.

    q: [H, NB * rows, D]; k: [KV, T, D], as `coding` has it; firsts: [NB] int32.
    """
    for index in range(from_stage, len(plan.stages)):
        entering, leaving = selection.inputs[index], selection.inputs[index + 1]
        if entering.most <= plan.keep_chunks(index, layer):
            # all are kept, and nobody reads a score
            scores = torch.empty(1 if plan.share == "all" else k.shape[0], 1, 1, device=q.device)
        else:
            in_bank = banks is not None and index > 0
            keys = banks[index - 1] if in_bank else k
            scores = scan(q, keys, firsts, selection.stops, entering, index, plan, layer, rope, coding, in_bank)
        choose(scores, selection.stops, entering, index, plan, layer, out=leaving)
        if banks is not None and index < len(banks):
            fill_bank(banks, index, k, selection.stops, selection.inputs[1:], plan)
