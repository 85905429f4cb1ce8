"""The definition itself: equal to stock attention where nothing is pruned, and keeping what it says it keeps."""

import pytest
import torch
import torch.nn.functional as F

from hipcli.kernels.reference import attend_ref, decode_ref, dense_ref, keep_best, prefill_ref, prune_ref, RefDecodeState
from hipcli.kernels.rope import Rope, rotate, split_pairs
from hipcli.kernels.stages import PrunePlan, PruneStage

KV, G, D = 2, 2, 8
ROPE = Rope(1.0 / (10000 ** (torch.arange(0, D, 2) / D)))


def small_plan(**changes):
    stages = (PruneStage(16, 64, 2, 2, 4), PruneStage(4, 16, 1, 0, 2))
    fields = {"stages": stages, "sink_tokens": 16, "window_tokens": 20, "block_len": 8, "special_layers": 1, "special_keep_tokens": 24}
    return PrunePlan(**(fields | changes))


def stock_attention(q, k, v, start):
    """Textbook: half-split rotation with cos and sin, SDPA with an explicit causal mask."""

    def rope(x, positions):
        angles = positions[:, None].float() * ROPE.inv_freq
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    rows, keys = torch.arange(start, start + q.shape[1]), torch.arange(k.shape[1])
    mask = keys[None] <= rows[:, None]
    keys_turned = rope(k, keys).repeat_interleave(G, 0)
    return F.scaled_dot_product_attention(rope(q, rows), keys_turned, v.repeat_interleave(G, 0), attn_mask=mask)


def draw(rows, total):
    return torch.randn(KV * G, rows, D), torch.randn(KV, total, D), torch.randn(KV, total, D)


def test_rotation_keeps_products_and_turns_back_to_split_halves():
    x, y = torch.randn(5, D), torch.randn(5, D)
    a, b = rotate(x, ROPE.table(5)), rotate(y, ROPE.table(5))
    torch.testing.assert_close((a * b).sum(-1), (x * y).sum(-1))
    torch.testing.assert_close(split_pairs(rotate(x, ROPE.table(1))), x)


@pytest.mark.parametrize(("total", "start"), [(1, 0), (33, 0), (70, 41), (70, 69)])
def test_dense_equals_stock_attention(total, start):
    q, k, v = draw(total - start, total)
    torch.testing.assert_close(dense_ref(q, k, v, start, ROPE), stock_attention(q, k, v, start), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("total", [1, 15, 21, 37, 100, 111])
def test_a_budget_that_covers_the_middle_equals_dense(total, layer):
    stages = (PruneStage(16, 128, 2, 2, 4), PruneStage(4, 128, 1, 0, 2))
    q, k, v = draw(total, total)
    sparse = prefill_ref(q, k, v, 0, small_plan(stages=stages, special_keep_tokens=128), layer, ROPE)
    torch.testing.assert_close(sparse, stock_attention(q, k, v, 0), rtol=1e-5, atol=1e-5)


def test_pruning_really_leaves_keys_out():
    q, k, v = draw(200, 200)
    assert (prefill_ref(q, k, v, 0, small_plan(), 1, ROPE) - stock_attention(q, k, v, 0)).abs().max() > 1e-2


def test_the_middle_ends_just_before_the_window_and_begins_after_the_sinks():
    plan, first = small_plan(), 160
    q, k, _ = draw(8, 168)
    stop = first - plan.window_tokens + 1
    kept = prune_ref(q, k, first, stop, plan, 1, ROPE).kept
    for index in kept:
        assert index.tolist() == sorted(set(index.tolist()))
        assert index.min() >= plan.sink_tokens and index.max() < stop
        assert len(index) <= plan.keep_tokens(1)


def test_a_key_that_stands_out_is_kept_wherever_it_is_probed():
    """A chunk whose keys all match the queries is found by every variant."""
    q, k, _ = draw(8, 168)
    loud = slice(64, 80)  # one chunk of 16
    for changes in ({}, {"probe": "first", "score": "last"}, {"descent": "head"}, {"share": "all"}):
        plan = small_plan(**changes)
        marked = k.clone()
        turned = q[:, :1].mean(0, keepdim=True)
        marked[:, loud] = 20 * turned / turned.norm()
        for layer in (0, 1):
            kept = prune_ref(q[:, :1].expand(-1, 8, -1), marked, 160, 141, plan, layer, Rope(torch.zeros(D // 2))).kept
            assert all(set(range(64, 80)) <= set(index.tolist()) for index in kept)


def test_ties_keep_the_lower_index():
    assert keep_best([10, 20, 30, 40], [1.0, 2.0, 2.0, 2.0], 2) == [20, 30]


def test_sharing_one_list_for_all_heads():
    q, k, _ = draw(8, 168)
    kept = prune_ref(q, k, 160, 141, small_plan(share="all"), 1, ROPE).kept
    assert all(torch.equal(kept[0], index) for index in kept)


def test_attention_uses_one_gapless_span_of_positions():
    """Moving everything but the sinks far away changes nothing: no angle grows with T."""
    plan = small_plan()
    q, k, v = draw(8, 100)
    kept = [torch.arange(40, 56)] * KV
    near = attend_ref(q, k, v, 92, 73, kept, plan, ROPE)
    shift = 1000
    far_k, far_v = (torch.cat([x[:, :16], torch.full((KV, shift, D), torch.nan), x[:, 16:]], 1) for x in (k, v))
    far = attend_ref(q, far_k, far_v, 92 + shift, 73 + shift, [index + shift for index in kept], plan, ROPE)
    torch.testing.assert_close(near, far)


def test_a_key_that_leaves_the_window_between_refreshes_does_not_vanish():
    plan = small_plan()
    q, k, v = draw(8, 168)
    state = RefDecodeState()
    for step, position in enumerate(range(160, 164)):
        decode_ref(
            q[:, step : step + 1], k[:, : position + 1], v[:, : position + 1], position, plan, 1, ROPE, state, 0 if step == 0 else None
        )
        assert state.selection.stop == 160 - plan.window_tokens + 1
