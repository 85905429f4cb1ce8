"""The dense baseline on a GPU: the fastest of the SDPA kernels present, found by trying them in this very process.

A speed-up over a slow baseline does not count. Each kernel returns its log-sum-exp, so that a chunk's own causal square
and the keys before it can be computed apart, where that is fastest, and merged in one pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from hipcli.bench_timing import graph_ms, median_ms
from hipcli.errors import HipError
from hipcli.kernels.backends import DenseBackend
from hipcli.kernels.rope import rotate
from hipcli.kernels.torch_attend import dense_prefill, expand_group
from hipcli.model import first_line

TRIAL_TOKENS = 1 << 17
# (q [1, H, Q, D], k, v [1, KV, N, D], causal) -> o [1, H, Q, D] and its log-sum-exp, H * Q numbers
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor]]
# (q [H, Q, D], k, v [KV, T, D]) -> [H, Q, D]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def cudnn_kernel(q, k, v, causal, stats: bool = True):
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, stats, 0.0, causal, False)[:2]


def flash_kernel(q, k, v, causal):
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)[:2]


def efficient_kernel(q, k, v, causal):
    o, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[:2]
    # rows of its log-sum-exp are padded to a multiple of 32
    return o, lse[:, :, : q.shape[2]]


KERNELS: dict[str, Kernel] = {"cuDNN": cudnn_kernel, "flash": flash_kernel, "efficient": efficient_kernel}


def as_rows(kernel: Kernel) -> Kernel:
    """Heads of a group as rows of one head, which is how they read each key once."""

    def packed(q, k, v, causal):
        o, lse = kernel(q.reshape(1, k.shape[1], -1, q.shape[-1]), k, v, causal)
        return o.reshape(q.shape), lse

    return packed


def in_parts(own: Kernel, before: Kernel) -> Attention:
    """A chunk's own causal square by one kernel, the keys before it by another."""

    def attend(q, k, v):
        heads, rows, _ = q.shape
        start, group = k.shape[1] - rows, heads // k.shape[0]
        near, near_lse = own(q[None], expand_group(k[:, start:], group), expand_group(v[:, start:], group), True)
        if not start:
            return near[0]
        far, far_lse = before(q[None], k[None, :, :start], v[None, :, :start], False)
        # o = near + (far - near) * e^far_lse / (e^near_lse + e^far_lse)
        share = torch.sigmoid(far_lse.reshape(1, heads, rows, 1) - near_lse.reshape(1, heads, rows, 1))
        return torch.lerp(near, far.reshape(near.shape), share.to(near.dtype))[0]

    return attend


def in_one_call(kernel: Kernel, causal: bool) -> Attention:
    """All keys by one kernel; causal ones must align the diagonal with the last query, as flash does."""
    return lambda q, k, v: kernel(q[None], k[None], v[None], causal)[0][0]


def prefill_candidates() -> Iterator[tuple[str, Attention]]:
    """Ways to attend a chunk, by name; packed: the heads of a group are rows of one."""
    yield "flash, one call", in_one_call(flash_kernel, True)
    for name, kernel in KERNELS.items():
        yield f"{name} in two parts, packed", in_parts(kernel, as_rows(kernel))
        if name != "efficient":
            yield f"{name} in two parts, grouped", in_parts(kernel, kernel)


def decode_candidates() -> Iterator[tuple[str, Attention]]:
    """Ways to attend one query, by name."""
    # one query needs no log-sum-exp, and without it cuDNN has other kernels to choose from
    for name, kernel in (KERNELS | {"cuDNN without log-sum-exp": partial(cudnn_kernel, stats=False)}).items():
        yield f"{name}, packed", in_one_call(as_rows(kernel), False)
        if name != "efficient":
            yield f"{name}, grouped", in_one_call(kernel, False)


@dataclass(frozen=True)
class FastestDense:
    """The winners for one context, each with its name."""

    prefill_name: str
    prefill: Attention
    decode_name: str
    decode: Attention


def fastest_dense(q_chunk: torch.Tensor, q_one: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> FastestDense:
    """Try every kernel on q_chunk [H, Q, D] and q_one [H, 1, D] over keys, values [KV, T, D]. Raises HipError when none runs."""
    # which kernel is quickest does not change any more beyond this many keys, and slow ones take their time
    near = keys[:, -TRIAL_TOKENS:], values[:, -TRIAL_TOKENS:]
    chunk = fastest(prefill_candidates(), lambda attend: median_ms(lambda: attend(q_chunk, *near), "cuda", 3))
    one = fastest(decode_candidates(), lambda attend: graph_ms(lambda: attend(q_one, keys, values), 10))
    return FastestDense(*chunk, *one)


def fastest(candidates, measure: Callable[[Attention], float]) -> tuple[str, Attention]:
    """Name and function of the quickest candidate that runs here."""
    timed, reasons = [], []
    for name, attend in candidates:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                timed.append((measure(attend), name, attend))
        except RuntimeError as error:
            # this kernel is absent, or cannot take this head size, grouping or number format
            reasons.append(f"{name}: {first_line(error)}")
    if not timed:
        raise HipError(f"none of torch's attention kernels runs here ({'; '.join(reasons)})")
    _, name, attend = min(timed, key=lambda entry: entry[0])
    return name, attend


class MeasuredDenseBackend(DenseBackend):
    """Dense attention of a whole model through the kernels that won."""

    def __init__(self, plan, rope, dense_below: int, winners: FastestDense) -> None:
        super().__init__(plan, rope, dense_below)
        self.winners = winners

    def prefill(self, layer, q, k, v, state):
        total = k.shape[1]
        turned = rotate(q, self.rope.table(total)[total - q.shape[1] :])
        try:
            return self.winners.prefill(turned, k, v)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # a library that is quick with a chunk may refuse the few rows of a question
            return dense_prefill(turned, k, v)

    def decode(self, layer, q, k, v, state, from_stage):
        return self.winners.decode(rotate(q, self.rope.one(k.shape[1] - 1)), k, v)
