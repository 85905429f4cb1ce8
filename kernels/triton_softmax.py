"""One step of softmax attention over a tile of keys, shared by prefill and decode. Device functions, Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from hipcli.kernels.triton_device import NEVER, dot_halves


@triton.jit
def tile_logits(q_low, q_high, k_low, k_high, visible, scale):
    """[M, D] x [N, D] -> [M, N] fp32 logits in base 2, -inf where not visible. scale: log2(e) / sqrt(D)."""
    return tl.where(visible, dot_halves(q_low, q_high, k_low, k_high) * scale, NEVER)


@triton.jit
def online_softmax_step(logits, b_v, acc, top, total):
    """Fold a tile into (acc, top, total): sum of exp2(logit - top) times value, running maximum, running sum.

    logits: [M, N]; b_v: [N, D]; acc: [M, D]; top, total: [M], all but b_v fp32. Also returns the tile's weights [M, N].
    """
    new_top = tl.maximum(top, tl.max(logits, axis=1))
    # a row that has seen no key yet keeps weights of 0, not exp2(-inf + inf)
    safe = tl.where(new_top == NEVER, 0.0, new_top)
    weights = tl.exp2(logits - safe[:, None])
    decay = tl.exp2(top - safe)
    acc = tl.dot(weights.to(b_v.dtype), b_v, acc=acc * decay[:, None], input_precision="ieee")
    return acc, new_top, total * decay + tl.sum(weights, axis=1), weights
