"""Decode over keys and values that lie on the host: what a layer's list names is gathered into a bank on the device. Triton.

A bank is a small store: [sinks][kept][window], each token at a row of its own. The decode kernel reads it as it reads any
store, by a list that names every row in order; only a refresh reads the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hipcli.kernels.stages import PrunePlan
from hipcli.kernels.triton_candidates import rows_in_parent
from hipcli.kernels.triton_prune import Selection
from hipcli.kernels.triton_scan import Candidates

ROWS = 32  # of one program of the gather


@dataclass
class Bank:
    """Keys and values that one layer reads until its next refresh.

    keys, values: [KV, far + near, D]. selection: a list of the bank's own rows. position: [1] int32, row of the newest
    token. shift: [1] int32, what takes a position of the window to its row. near: rows of the window.
    """

    keys: torch.Tensor
    values: torch.Tensor
    selection: Selection
    position: torch.Tensor
    shift: torch.Tensor
    near: int


@triton.jit
def gather_kernel(
    k,
    v,
    bank_k,
    bank_v,
    position,
    stops,
    bank_stops,
    kept,
    candidates,
    parent_kept,
    k_stride_h,
    bank_stride_h,
    candidates_stride_h,
    sinks,
    keep,
    parent_keep,
    far,
    PARENT: tl.constexpr,
    PARENT_LEN: tl.constexpr,
    BP: tl.constexpr,
    LEN: tl.constexpr,
    WHOLE: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BR: tl.constexpr,
):
    """Copy the kept rows of one key/value head, with WHOLE its sinks and window as well; with PARENT kept keys come from a bank."""
    i_r, i_kv = tl.program_id(0), tl.program_id(1)
    now, stop, bank_stop = tl.load(position), tl.load(stops), tl.load(bank_stops)
    row = i_r * BR + tl.arange(0, BR)
    if not WHOLE:
        row += sinks
    o_d = tl.arange(0, BD)
    is_near = row >= bank_stop
    is_kept = (row >= sinks) & (row < far) & (row < bank_stop)
    chunk = tl.maximum(row - sinks, 0)
    start = tl.load(kept + i_kv * keep + chunk // LEN, mask=is_kept, other=0)
    source = tl.where(is_near, stop + row - bank_stop, tl.where(is_kept, start + chunk % LEN, row))
    # padding starts past every middle; the newest token is stored by whoever attends
    mask = tl.where(is_near, source < now, source < stop) & (source >= 0)
    if not WHOLE:
        mask = mask & is_kept
    mask = mask[:, None] & (o_d < D)[None, :]
    at = source.to(tl.int64)[:, None] * D + o_d[None, :]
    to = row.to(tl.int64)[:, None] * D + o_d[None, :]
    p_k, p_v = k + i_kv.to(tl.int64) * k_stride_h, v + i_kv.to(tl.int64) * k_stride_h
    p_key = p_k + at
    if PARENT:
        inner = rows_in_parent(start, parent_kept + i_kv * parent_keep, parent_keep, PARENT_LEN, BP) + chunk % LEN
        p_bank = candidates + i_kv.to(tl.int64) * candidates_stride_h + inner.to(tl.int64)[:, None] * D + o_d[None, :]
        p_key = tl.where(is_kept[:, None], p_bank, p_key)
    tl.store(bank_k + i_kv.to(tl.int64) * bank_stride_h + to, tl.load(p_key, mask=mask), mask=mask)
    tl.store(bank_v + i_kv.to(tl.int64) * bank_stride_h + to, tl.load(p_v + at, mask=mask), mask=mask)


@triton.jit
def enter_kernel(new_k, new_v, k, v, position, shift, bank_position, new_stride_h, k_stride_h, D: tl.constexpr, BD: tl.constexpr):
    """Store the newest token on the host, and say which row of the bank is its."""
    i_kv = tl.program_id(0)
    now, o_d = tl.load(position), tl.arange(0, BD)
    mask = o_d < D
    at = i_kv.to(tl.int64) * k_stride_h + now.to(tl.int64) * D + o_d
    tl.store(k + at, tl.load(new_k + i_kv * new_stride_h + o_d, mask=mask), mask=mask)
    tl.store(v + at, tl.load(new_v + i_kv * new_stride_h + o_d, mask=mask), mask=mask)
    if i_kv == 0:
        tl.store(bank_position, now + tl.load(shift))


def new_bank(kept: Candidates, near: int, plan: PrunePlan, like: torch.Tensor, device: torch.device) -> Bank:
    """An empty bank for the lists of `kept`. near: most tokens of the window between two full refreshes. like: keys [KV, T, D]."""
    kv, _, keep = kept.starts.shape
    length = plan.stages[-1].chunk_len
    far = plan.sink_tokens + keep * length
    number = {"dtype": torch.int32, "device": device}
    # slots of the kernel's last tile past the list read row 0, masked
    rows = torch.arange(keep, **number) * length + plan.sink_tokens
    own = Candidates(rows.expand(kv, 1, -1).contiguous(), kept.counts, 0, keep * length)
    keys = torch.zeros(kv, far + near, like.shape[2], dtype=like.dtype, device=device)
    stops, position, shift = torch.full((1,), far, **number), torch.zeros(1, **number), torch.zeros(1, **number)
    return Bank(keys, torch.zeros_like(keys), Selection(stops, [own]), position, shift, near)


def fill(bank: Bank, k, v, position, selection: Selection, plan: PrunePlan, whole: bool, candidates: torch.Tensor | None = None) -> None:
    """Bring the bank up to a fresh list.

    k, v: [KV, capacity, D] on the host or the device; whole: after a full refresh. candidates: the bank of the stage before the
    last (triton_candidates.py), None to read kept keys from k.
    """
    kept, dim, kv = selection.inputs[-1].starts, k.shape[2], k.shape[0]
    parent = kept if candidates is None else selection.inputs[-2].starts
    far = plan.sink_tokens + kept.shape[-1] * plan.stages[-1].chunk_len
    if whole:
        # a middle that ends within the sinks keeps nothing: the window then follows them at its own place
        stops = selection.stops
        torch.where(stops < plan.sink_tokens, stops, torch.full_like(stops, far), out=bank.selection.stops)
        torch.sub(bank.selection.stops, stops, out=bank.shift)
    rows = bank.keys.shape[1] if whole else far - plan.sink_tokens
    gather_kernel[(triton.cdiv(rows, ROWS), kv)](
        k=k,
        v=v,
        bank_k=bank.keys,
        bank_v=bank.values,
        position=position,
        stops=selection.stops,
        bank_stops=bank.selection.stops,
        kept=kept,
        candidates=k if candidates is None else candidates,
        parent_kept=parent,
        k_stride_h=k.stride(0),
        bank_stride_h=bank.keys.stride(0),
        candidates_stride_h=0 if candidates is None else candidates.stride(0),
        sinks=plan.sink_tokens,
        keep=kept.shape[-1],
        parent_keep=parent.shape[-1],
        far=far,
        PARENT=candidates is not None,
        PARENT_LEN=plan.stages[max(0, len(plan.stages) - 2)].chunk_len,
        BP=triton.next_power_of_2(parent.shape[-1]),
        LEN=plan.stages[-1].chunk_len,
        WHOLE=whole,
        D=dim,
        BD=max(16, triton.next_power_of_2(dim)),
        BR=ROWS,
    )


def enter(bank: Bank, new_k, new_v, k, v, position) -> None:
    """Store a token [KV, 1, D] at `position` of the host's k, v and set the bank's own position."""
    enter_kernel[(k.shape[0],)](
        new_k=new_k,
        new_v=new_v,
        k=k,
        v=v,
        position=position,
        shift=bank.shift,
        bank_position=bank.position,
        new_stride_h=new_k.stride(0),
        k_stride_h=k.stride(0),
        D=k.shape[2],
        BD=max(16, triton.next_power_of_2(k.shape[2])),
    )
