"""Plans by name, and by a name with changes: "default", "paper-3k", "default:keep=4K:window=2K". Data and words, no tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hipcli.kernels.stages import PrunePlan, PruneStage


def _stages(chunks, keeps, rows_means, rounds, refresh) -> tuple[PruneStage, ...]:
    return tuple(PruneStage(*row) for row in zip(chunks, keeps, rows_means, rounds, refresh))


_3K = ((256, 32, 8), (32768, 8192, 2048))
_5K = ((64, 32, 16), (32768, 16384, 4096))
_REFRESH = {"": (16, 8, 4), "-fast": (32, 16, 8), "-flash": (96, 24, 8)}

# four rounds of the first stage leave 16 keys a chunk: what a scan of a long context reads most. Questions and decode steps
# score every key: at 128K tokens they find two to three times as many needles as by descent (docs/results). A first stage
# that reads every key is the dear one: every 128 steps it finds as many as at every step
DEFAULT_PLAN = PrunePlan(_stages(*_3K, (4, 4, 1), (4, 2, 0), (128, 16, 8)), question_rounds=(0, 0, 0), decode_rounds=(0, 0, 0))

# on a CPU rows are averaged in the last stage too: a quarter of the scan, with as many needles found (docs/results)
CPU_PLAN = replace(DEFAULT_PLAN, stages=_stages(*_3K, (4, 4, 4), (3, 2, 0), (128, 16, 8)))


def _paper(budget, refresh) -> PrunePlan:
    """The paper's algorithm 3: first key of a half, the last representative's score, one list for all heads."""
    depths = tuple(length.bit_length() - 1 for length in budget[0])
    stages = _stages(*budget, (1, 1, 1), depths, refresh)
    return PrunePlan(stages, descent="head", probe="first", score="last", share="all")


def _released(budget, refresh) -> PrunePlan:
    """What the authors' released code does: middle probes, the best score on the way, averaged rows."""
    depths = tuple(length.bit_length() - 1 for length in budget[0])
    stages = _stages(*budget, (4, 4, 1), depths, refresh)
    return PrunePlan(stages, descent="head", probe="middle", score="best", share="all")


def _presets() -> dict[str, PrunePlan]:
    presets = {"default": DEFAULT_PLAN, "cpu": CPU_PLAN}
    for family, make in (("paper", _paper), ("released", _released)):
        for suffix, refresh in _REFRESH.items():
            presets[f"{family}-3k{suffix}"] = make(_3K, refresh)
        presets[f"{family}-5k"] = make(_5K, _REFRESH[""])
    return presets


PRESETS: dict[str, PrunePlan] = _presets()


def preset(text: str, share: str | None = None) -> PrunePlan:
    """The plan called "NAME" or "NAME:KEY=VALUE:...", with `share` overriding its own.

    Values by stage are written with slashes, or once for all: "rounds=4/2/0", "refresh=1". Raises ValueError saying what
    there is.
    """
    name, *changes = text.split(":")
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    plan, made = PRESETS[name], set()
    for change in changes:
        key, _, value = change.partition("=")
        if key in made:
            raise ValueError(f"{key!r} is changed twice in {text!r}")
        made.add(key)
        if key not in CHANGES:
            raise ValueError(f"a preset's changes are {', '.join(CHANGES)}, each as KEY=VALUE, got {change!r}")
        try:
            plan = CHANGES[key](plan, value)
        except ValueError as error:
            raise ValueError(f"{change!r} cannot be: {error}") from None
    return replace(plan, share=share) if share else plan


def _count(text: str) -> int:
    """A number of tokens: 2048 or 2K."""
    scale = 1024 if text[-1:] in ("K", "k") else 1
    digits = text[:-1] if scale > 1 else text
    if not digits.isdecimal():
        raise ValueError(f"a number such as 2048 or 2K is needed, got {text!r}")
    return int(digits) * scale


def _by_stage(plan: PrunePlan, text: str) -> tuple[int, ...]:
    numbers = tuple(_count(part) for part in text.split("/"))
    if len(numbers) == 1:
        return numbers * len(plan.stages)
    if len(numbers) != len(plan.stages):
        raise ValueError(f"one number or one for each of {len(plan.stages)} stages is needed")
    return numbers


def _stage_field(field: str) -> Callable[[PrunePlan, str], PrunePlan]:
    def change(plan: PrunePlan, text: str) -> PrunePlan:
        stages = tuple(replace(stage, **{field: number}) for stage, number in zip(plan.stages, _by_stage(plan, text)))
        return replace(plan, stages=stages)

    return change


def _plan_field(field: str, read: Callable[[PrunePlan, str], Any]) -> Callable[[PrunePlan, str], PrunePlan]:
    return lambda plan, text: replace(plan, **{field: read(plan, text)})


def _keep(plan: PrunePlan, text: str) -> PrunePlan:
    """Budgets of all stages, or of the last one; layers with a larger budget of their own keep it."""
    if "/" in text:
        plan = _stage_field("keep_tokens")(plan, text)
    else:
        plan = replace(plan, stages=(*plan.stages[:-1], replace(plan.stages[-1], keep_tokens=_count(text))))
    return replace(plan, special_keep_tokens=max(plan.special_keep_tokens, plan.stages[-1].keep_tokens))


def _number(plan: PrunePlan, text: str) -> int:
    return _count(text)


def _word(plan: PrunePlan, text: str) -> str:
    return text


CHANGES: dict[str, Callable[[PrunePlan, str], PrunePlan]] = {
    "keep": _keep,
    "window": _plan_field("window_tokens", _number),
    "sinks": _plan_field("sink_tokens", _number),
    "special": _plan_field("special_layers", _number),
    "special-keep": _plan_field("special_keep_tokens", _number),
    "question-keep": _plan_field("question_keep_tokens", _number),
    "question-block": _plan_field("question_block_len", _number),
    "rounds": _stage_field("rounds"),
    "question-rounds": _plan_field("question_rounds", _by_stage),
    "decode-rounds": _plan_field("decode_rounds", _by_stage),
    "mean": _stage_field("rows_mean"),
    "refresh": _stage_field("refresh"),
    "descent": _plan_field("descent", _word),
    "probe": _plan_field("probe", _word),
    "score": _plan_field("score", _word),
    "share": _plan_field("share", _word),
}
