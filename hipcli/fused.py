"""Spares a stock model small operations: rotations that do nothing, norms in eight steps. What it computes stays the same.

A decode step of a small model is bound by the number of its kernels, and a long prefill reads its hidden states once for
each of them.
"""

from __future__ import annotations

import sys
from functools import partial, wraps

import torch
import torch.nn.functional as F

ROTATION = "apply_rotary_pos_emb"  # what the modelling files of transformers call it


def skip_empty_rotation(rotary: torch.nn.Module) -> bool:
    """Let the modelling file of `rotary` leave q and k alone when their phases are empty tensors.

    Other models of that file go on as before: their phases are not empty. Returns whether such a function is there.
    """
    module = sys.modules[type(rotary).__module__]
    rotate = getattr(module, ROTATION, None)
    if rotate is None or getattr(rotate, "skips_empty", False):
        return rotate is not None

    @wraps(rotate)
    def rotate_unless_empty(q, k, cos, sin, *args, **kwargs):
        return (q, k) if cos.numel() == 0 else rotate(q, k, cos, sin, *args, **kwargs)

    rotate_unless_empty.skips_empty = True
    setattr(module, ROTATION, rotate_unless_empty)
    return True


def fuse_norms(network: torch.nn.Module) -> None:
    """Run every RMS norm of `network` as the one kernel that torch has for it on a GPU."""
    for module in network.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = partial(fused_norm, module)


def fused_norm(module: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, of hidden [..., N]."""
    return F.rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)
