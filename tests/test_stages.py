"""Plans and presets: what is refused, what refreshes when, and how blocks are cut."""

import pytest

from hipcli.kernels.blocks import dense_stop, split_blocks
from hipcli.kernels.presets import DEFAULT_PLAN, PRESETS, preset
from hipcli.kernels.stages import PrunePlan, PruneStage


def stage(**changes):
    fields = {"chunk_len": 32, "keep_tokens": 64, "rows_mean": 1, "rounds": 2, "refresh": 4} | changes
    return PruneStage(**fields)


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_len": 24},
        {"chunk_len": 0},
        {"keep_tokens": 40},
        {"keep_tokens": 0},
        {"rounds": 6},
        {"rounds": -1},
        {"rows_mean": 0},
        {"refresh": 0},
    ],
    ids=str,
)
def test_a_stage_that_cannot_work_is_refused(changes):
    with pytest.raises(ValueError, match="must be"):
        stage(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"sink_tokens": 33},
        {"window_tokens": 0},
        {"descent": "both"},
        {"probe": "last"},
        {"score": "mean"},
        {"share": "none"},
        {"special_keep_tokens": 33},
    ],
    ids=str,
)
def test_a_plan_that_cannot_work_is_refused(changes):
    with pytest.raises(ValueError, match="must be"):
        PrunePlan(**({"stages": (stage(),)} | changes))


def test_stages_must_grow_finer_and_refresh_intervals_must_nest():
    with pytest.raises(ValueError, match="shrink"):
        PrunePlan((stage(), stage()))
    with pytest.raises(ValueError, match="nest"):
        PrunePlan((stage(refresh=4), stage(chunk_len=8, refresh=3)))


def test_the_default_is_the_designed_one():
    assert [(s.chunk_len, s.keep_tokens, s.refresh) for s in DEFAULT_PLAN.stages] == [(256, 32768, 128), (32, 8192, 16), (8, 2048, 8)]
    assert [s.rest_len for s in DEFAULT_PLAN.stages] == [16, 8, 8]
    assert (DEFAULT_PLAN.sink_tokens, DEFAULT_PLAN.window_tokens, DEFAULT_PLAN.block_len) == (256, 1024, 64)
    assert DEFAULT_PLAN.keep_tokens(2) == 4096 and DEFAULT_PLAN.keep_tokens(3) == 2048


def test_every_named_budget_exists_and_an_unknown_name_lists_them():
    for family in ("paper", "released"):
        for budget in ("3k", "3k-fast", "3k-flash", "5k"):
            assert f"{family}-{budget}" in PRESETS
    assert preset("default", "all").share == "all"
    with pytest.raises(ValueError, match="paper-3k-flash"):
        preset("tiny")


def test_every_layer_runs_each_stage_at_its_own_cadence_and_step_zero_runs_all():
    layers = 30
    full = []
    for step in range(1, 257):
        due = [DEFAULT_PLAN.refresh_stage(step, layer, layers) for layer in range(layers)]
        full.append(due.count(0))
    assert [DEFAULT_PLAN.refresh_stage(0, layer, layers) for layer in range(layers)] == [0] * layers
    # 30 layers in 32 groups, a refresh every 4 steps: no step has more than one group's full refresh
    assert sum(full) == 2 * layers and max(full) == 1
    patterns = {tuple(DEFAULT_PLAN.refresh_stage(step, layer, layers) for layer in range(layers)) for step in range(1, 385)}
    assert len(patterns) == 32
    for layer in range(layers):
        ran = [DEFAULT_PLAN.refresh_stage(step, layer, layers) for step in range(128, 256)]
        assert (ran.count(0), ran.count(1), ran.count(2)) == (1, 7, 8)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 64), (0, 65), (63, 64), (64, 200), (5, 7), (5, 70), (100, 100), (1, 500)])
def test_blocks_cover_each_query_once_and_end_at_multiples(start, stop):
    runs = split_blocks(start, stop, 64)
    rows = [p for run in runs for p in range(run.first, run.stop)]
    assert rows == list(range(start, stop))
    edges = [run.first + i * run.rows for run in runs for i in range(run.count)]
    assert all(edge == start or edge % 64 == 0 for edge in edges)


@pytest.mark.parametrize("cut", [64, 128, 192])
def test_which_blocks_are_dense_does_not_depend_on_how_a_call_was_cut(cut):
    for below in range(0, 300, 7):
        whole = dense_stop(0, 256, 64, below, 20)
        parts = dense_stop(0, cut, 64, below, 20), dense_stop(cut, 256, 64, below, 20)
        assert whole == (parts[0] if parts[0] < cut else parts[1])


def test_a_block_is_dense_only_when_its_last_query_is_below_the_limit():
    assert dense_stop(0, 256, 64, 127) == 64
    assert dense_stop(0, 256, 64, 128) == 128
    # a block that begins inside the first window has nothing before it
    assert dense_stop(0, 256, 64, 0, window=65) == 128


@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("default:keep=4K", lambda plan: (plan.keep_tokens(9), plan.keep_tokens(0)), (4096, 4096)),
        ("default:keep=64K/16K/8192", lambda plan: [stage.keep_tokens for stage in plan.stages], [65536, 16384, 8192]),
        ("default:window=2K:sinks=512", lambda plan: (plan.window_tokens, plan.sink_tokens), (2048, 512)),
        ("default:refresh=1", lambda plan: [stage.refresh for stage in plan.stages], [1, 1, 1]),
        ("default:rounds=3/2/0", lambda plan: [stage.rest_len for stage in plan.stages], [32, 8, 8]),
        ("cpu:mean=1", lambda plan: [stage.rows_mean for stage in plan.stages], [1, 1, 1]),
        ("paper-3k:share=group:score=best", lambda plan: (plan.share, plan.score, plan.descent), ("group", "best", "head")),
        ("default:special=1:special-keep=8K", lambda plan: (plan.keep_tokens(0), plan.keep_tokens(1)), (8192, 2048)),
    ],
)
def test_a_preset_can_be_changed_by_name(text, read, expected):
    assert read(preset(text)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("default:nope=1", "a preset's changes are keep"),
        ("default:keep=4K:window=2K:keep=8K", "'keep' is changed twice"),
        ("default:keep", "a number such as 2048"),
        ("default:keep=100", "multiple of chunk_len"),
        ("default:rounds=1/2", "one for each of 3 stages"),
        ("default:rounds=9/0/0", "rounds must be within"),
        ("default:question-rounds=9", "rounds must be within"),
        ("default:question-keep=12", "multiple of chunk_len"),
        ("default:share=none", "share must be one of"),
        ("nope:keep=4K", "preset must be one of"),
    ],
)
def test_a_change_that_cannot_be_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        preset(text)


def test_questions_and_decode_steps_have_scans_of_their_own():
    plan = preset("default:question-rounds=0:decode-rounds=2/1/0:question-keep=4K:question-block=16")
    question, step = plan.question, plan.decode
    assert [stage.rounds for stage in question.stages] == [0, 0, 0] and [stage.rounds for stage in step.stages] == [2, 1, 0]
    assert (question.keep_tokens(5), step.keep_tokens(5), plan.keep_tokens(5)) == (4096, 2048, 2048)
    assert (question.block_len, step.block_len, plan.block_len) == (16, 64, 64)
    assert all(stage.rows_mean == 1 for own in (question, step) for stage in own.stages)
    assert question.question == question and step.decode == step
