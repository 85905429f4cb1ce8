"""Softmax attention that also returns its log-sum-exp, so that parts computed apart can be merged. Torch, any device."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

LONG_ROWS = 128  # query rows from which the kernel that plans each shape is worth its plan


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False):
    """Attention of q over k and v.

    q: [B, H, Q, D]; k, v: [B, H, N, D]; mask: additive, broadcastable to [B, H, Q, N], q's dtype; causal: square, Q = N.
    Returns o [B, H, Q, D] in q's dtype and lse [B, H, Q] fp32.
    """
    if q.device.type == "cpu":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(q, k, v, is_causal=causal, attn_mask=mask)
    if mask is None and q.device.type == "cuda":
        fused = fused_attention(q.dtype, q.shape[-1], q.shape[-2] >= LONG_ROWS)
        if fused is not None:
            return fused(q, k, v, causal)
    logits = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(hidden, float("-inf"))
    if mask is not None:
        logits = logits + mask
    lse = logits.logsumexp(-1)
    return ((logits - lse[..., None]).exp().to(q.dtype) @ v), lse


def cudnn_attention(q, k, v, causal: bool):
    """cuDNN's, the fastest on recent GPUs; it plans anew for every shape."""
    o, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)[:2]
    return o, lse.reshape(q.shape[:-1])


def flash_attention(q, k, v, causal: bool):
    """Two-byte formats, any shape."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)[:2]


def efficient_attention(q, k, v, causal: bool):
    """fp32 too."""
    o, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[:2]
    # rows of its log-sum-exp are padded
    return o, lse[:, :, : q.shape[2]]


def fused_candidates(dtype: torch.dtype, long: bool) -> tuple:
    """Kernels to try, the fastest first. fp32 has one: called directly, cuDNN takes fp32 too and returns NaN."""
    if dtype.itemsize > 2:
        return (efficient_attention,)
    quick = (flash_attention, efficient_attention)
    return (cudnn_attention, *quick) if long else quick


@lru_cache(maxsize=None)
def fused_attention(dtype: torch.dtype, head_dim: int, long: bool):
    """The fastest of torch's fused kernels that takes such heads on this GPU, found by trying; None when none does.

    long: many rows, which pay for a plan.
    """
    tiny = torch.zeros(1, 1, LONG_ROWS, head_dim, dtype=dtype, device="cuda")
    for kernel in fused_candidates(dtype, long):
        try:
            kernel(tiny, tiny, tiny, True)
            return kernel
        except RuntimeError:
            # absent in this build, or not for this head size or format
            continue
    return None


def merge(left: tuple, right: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    """Join two (o, lse) over disjoint keys: o = (o1 e^lse1 + o2 e^lse2) / (e^lse1 + e^lse2)."""
    (o1, lse1), (o2, lse2) = left, right
    lse = torch.logaddexp(lse1, lse2)
    # weights in fp32: exponents of long contexts differ by more than low precision resolves
    o = o1.float() * (lse1 - lse).exp()[..., None] + o2.float() * (lse2 - lse).exp()[..., None]
    return o.to(o1.dtype), lse


def expand_group(x: torch.Tensor, group: int) -> torch.Tensor:
    """[KV, N, D] -> [1, KV * G, N, D] without copying."""
    kv, n, d = x.shape
    return x[:, None].expand(kv, group, n, d).reshape(1, kv * group, n, d) if group > 1 else x[None]


def dense_prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last Q positions over all T keys.

    q: [H, Q, D]; k, v: [KV, T, D]; q and k rotated to true positions. Returns [H, Q, D].
    """
    heads, rows, dim = q.shape
    kv, start = k.shape[0], k.shape[1] - rows
    own = expand_group(k[:, start:], heads // kv), expand_group(v[:, start:], heads // kv)
    done = attend(q[None], *own, causal=True)
    if start:
        # the heads of a group read the same keys: as rows of one product they read them once
        o, lse = attend(q.reshape(1, kv, -1, dim), k[None, :, :start], v[None, :, :start])
        done = merge(done, (o.reshape(1, heads, rows, dim), lse.reshape(1, heads, rows)))
    return done[0][0]


def dense_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """One query over keys rotated beforehand: q [H, 1, D], k, v [KV, N, D] -> [H, 1, D]."""
    kv = k.shape[0]
    packed = q.reshape(1, kv, -1, q.shape[-1])
    return attend(packed, k[None], v[None], mask)[0].reshape(q.shape)
