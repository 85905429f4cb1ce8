"""Keys that later stages of a decode step scan, where the others lie on the host: gathered into banks on the device. Triton.

A bank holds the chunks that a stage kept, in the order of its list, so that candidate c of the next stage, a piece of
them, begins at row c * its length. It is filled when its stage runs; the stages after it never read the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.triton_device import PAD
from hipcli.kernels.triton_scan import Candidates

ROWS = 32  # of one program of the gather


@triton.jit
def rows_in_parent(start, p_list, parent_keep, PARENT_LEN: tl.constexpr, BP: tl.constexpr):
    """Row of a bank at which the chunks that begin at `start` [N] lie: pieces of the chunks that the bank's list names."""
    o_p = tl.arange(0, BP)
    parent = tl.load(p_list + o_p, mask=o_p < parent_keep, other=PAD)
    # [N, BP], one true in a row
    inside = (start[:, None] >= parent[None, :]) & (start[:, None] < parent[None, :] + PARENT_LEN)
    return tl.sum(tl.where(inside, o_p[None, :] * PARENT_LEN + start[:, None] - parent[None, :], 0), axis=1)


@triton.jit
def candidates_kernel(
    k,
    bank,
    stops,
    kept,
    parent_kept,
    k_stride_h,
    bank_stride_h,
    keep,
    parent_keep,
    LEN: tl.constexpr,
    PARENT: tl.constexpr,
    PARENT_LEN: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BR: tl.constexpr,
    BP: tl.constexpr,
):
    """Copy the rows of one head's kept chunks, from the store or, with PARENT, from the bank of the stage before."""
    i_r, i_kv = tl.program_id(0), tl.program_id(1)
    row, o_d = i_r * BR + tl.arange(0, BR), tl.arange(0, BD)
    start = tl.load(kept + i_kv * keep + row // LEN, mask=row < keep * LEN, other=PAD)
    mask = start + row % LEN < tl.load(stops)
    source = start
    if PARENT:
        source = rows_in_parent(start, parent_kept + i_kv * parent_keep, parent_keep, PARENT_LEN, BP)
    mask = mask[:, None] & (o_d < D)[None, :]
    p_k = k + i_kv.to(tl.int64) * k_stride_h + (source + row % LEN).to(tl.int64)[:, None] * D + o_d[None, :]
    p_bank = bank + i_kv.to(tl.int64) * bank_stride_h + row.to(tl.int64)[:, None] * D + o_d[None, :]
    tl.store(p_bank, tl.load(p_k, mask=mask), mask=mask)


def new_banks(lists: list[Candidates], plan: PrunePlan, like: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
    """Room for what every stage but the last keeps, [KV, kept keys, D] each. lists: that leave the stages. like: keys [KV, T, D]."""
    sizes = [kept.starts.shape[-1] * stage.chunk_len for kept, stage in zip(lists[:-1], plan.stages)]
    return [torch.zeros(like.shape[0], size, like.shape[2], dtype=like.dtype, device=device) for size in sizes]


def fill_bank(
    banks: list[torch.Tensor], index: int, k: torch.Tensor, stops: torch.Tensor, lists: list[Candidates], plan: PrunePlan
) -> None:
    """Bring the bank of stage `index` up to its list. k: [KV, T, D] of the store, read by the first stage's; lists: that leave the stages."""
    kept, bank = lists[index].starts, banks[index]
    source, parent = (k, kept) if index == 0 else (banks[index - 1], lists[index - 1].starts)
    kv, rows, dim = bank.shape
    candidates_kernel[(triton.cdiv(rows, ROWS), kv)](
        k=source,
        bank=bank,
        stops=stops,
        kept=kept,
        parent_kept=parent,
        k_stride_h=source.stride(0),
        bank_stride_h=bank.stride(0),
        keep=kept.shape[-1],
        parent_keep=parent.shape[-1],
        LEN=plan.stages[index].chunk_len,
        PARENT=index > 0,
        PARENT_LEN=plan.stages[max(0, index - 1)].chunk_len,
        D=dim,
        BD=max(16, triton.next_power_of_2(dim)),
        BR=ROWS,
        BP=triton.next_power_of_2(parent.shape[-1]),
    )
