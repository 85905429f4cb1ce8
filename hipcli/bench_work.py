"""What a whole model must read and multiply: bytes of a decode step, flops of a prefill. Counts only; see bench_floors for a layer.

Held against the machine's ceilings these are the floors of the whole-model figures.
"""

from __future__ import annotations

from hipcli.bench_floors import Sizes, amortised_decode, dense_cost, sparse_costs, whole_cost
from hipcli.kernels.backend import Backend
from hipcli.model import LoadedModel

PLACES = 64  # blocks of a prefill whose mean stands for all


def weights_read(model: LoadedModel) -> int:
    """Bytes of weights that every step reads: all but an embedding table of its own, of which a step reads one row."""
    return (model.parameters - (0 if is_tied(model) else embedding_size(model))) * model.dtype.itemsize


def is_tied(model: LoadedModel) -> bool:
    return model.network.lm_head.weight is model.network.model.embed_tokens.weight


def embedding_size(model: LoadedModel) -> int:
    return model.network.model.embed_tokens.weight.numel()


def step_bytes(model: LoadedModel, backend: Backend, sizes: Sizes, context: int) -> float:
    """Bytes of weights, keys and values that a decode step at `context` tokens reads, as a mean over a refresh cycle."""
    if is_dense(backend, context):
        return weights_read(model) + model.layers * dense_cost(sizes, context, 1).bytes
    layers = range(model.layers)
    return weights_read(model) + sum(amortised_decode(backend.plan, layer, sizes, context).bytes for layer in layers)


def prefill_flops(model: LoadedModel, backend: Backend, sizes: Sizes, context: int) -> float:
    """Floating-point operations of a whole prefill: linear layers of every token, and attention; logits are of one position."""
    linear = model.parameters - embedding_size(model) * (1 if is_tied(model) else 2)
    return context * (2.0 * linear + attention_flops(model, backend, sizes, context))


def attention_flops(model: LoadedModel, backend: Backend, sizes: Sizes, context: int) -> float:
    """Mean per token over a prefill and over all layers together, from blocks at even distances."""
    rows = min(backend.plan.block_len, context)
    special = min(backend.plan.special_layers, model.layers)
    spent = 0.0
    for place in range(PLACES):
        total = max(rows, int((place + 0.5) * context / PLACES))
        if is_dense(backend, total):
            spent += model.layers * dense_cost(sizes, total, rows).flops
            continue
        for layer, count in ((0, special), (special, model.layers - special)):
            spent += count * whole_cost(sparse_costs(backend.plan, layer, sizes, total, rows)).flops
    return spent / (PLACES * rows)


def is_dense(backend: Backend, total: int) -> bool:
    """Whether the last of `total` positions attends to every key."""
    return backend.name == "dense" or total <= max(backend.dense_below, backend.plan.window_tokens)
