"""What pruning keeps, as data: stages and plans. Imports nothing but the standard library.

The middle of the context (everything between the sinks and the window) is cut into chunks; each stage scores its
chunks, keeps the best and hands them, split finer, to the next (InfiniteHiP, arXiv 2502.08910, section 3 and appendix F).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class PruneStage:
    """One stage: score every candidate chunk, keep the best.

    chunk_len: keys per chunk, a power of two.
    keep_tokens: keys the stage leaves, a multiple of chunk_len.
    rows_mean: adjacent query rows averaged before scoring, in whole blocks.
    rounds: binary descent rounds; the chunk_len >> rounds keys they leave are scored whole.
    refresh: decode steps between two runs of this stage.
    """

    chunk_len: int
    keep_tokens: int
    rows_mean: int
    rounds: int
    refresh: int

    def __post_init__(self) -> None:
        if self.chunk_len < 1 or self.chunk_len & (self.chunk_len - 1):
            raise ValueError(f"chunk_len must be a power of two, got {self.chunk_len}")
        if self.keep_tokens < self.chunk_len or self.keep_tokens % self.chunk_len:
            raise ValueError(f"keep_tokens must be a positive multiple of chunk_len {self.chunk_len}, got {self.keep_tokens}")
        if not 0 <= self.rounds <= self.chunk_len.bit_length() - 1:
            raise ValueError(f"rounds must be within 0..log2(chunk_len), got {self.rounds} for chunks of {self.chunk_len}")
        if self.rows_mean < 1 or self.refresh < 1:
            raise ValueError("rows_mean and refresh must be at least 1")

    @property
    def rest_len(self) -> int:
        """Keys of a chunk that the descent leaves, scored whole."""
        return self.chunk_len >> self.rounds


@dataclass(frozen=True)
class PrunePlan:
    """Everything that decides which keys a block of queries reads.

    sink_tokens: first keys, always read. window_tokens: most recent keys, always read.
    block_len: queries that share one list; blocks are anchored at absolute multiples of it.
    special_layers: the first layers, scanned with chunk-indexed positions and keeping special_keep_tokens.
    descent: "group" (one per key/value head) or "head" (one per query head).
    probe: a half is probed at its "middle" or "first" key.
    score: a chunk's score is the "best" seen on the way or that of the "last" keys left.
    share: lists are kept per "group" (key/value head) or one for "all" heads.
    question_rounds, question_keep_tokens, question_block_len: what `question` has in place of the stages' rounds, the last
    stage's budget and block_len, each None for the document's own. decode_rounds: likewise of `decode`.
    """

    stages: tuple[PruneStage, ...]
    sink_tokens: int = 256
    window_tokens: int = 1024
    block_len: int = 64
    special_layers: int = 3
    special_keep_tokens: int = 4096
    descent: str = "group"
    probe: str = "middle"
    score: str = "best"
    share: str = "group"
    question_rounds: tuple[int, ...] | None = None
    question_keep_tokens: int | None = None
    question_block_len: int | None = None
    decode_rounds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _one_of("descent", self.descent, ("group", "head"))
        _one_of("probe", self.probe, ("middle", "first"))
        _one_of("score", self.score, ("best", "last"))
        _one_of("share", self.share, ("group", "all"))
        if not self.stages:
            raise ValueError("a plan needs at least one stage")
        if self.window_tokens < 1 or self.block_len < 1:
            raise ValueError("window_tokens and block_len must be at least 1")
        # chunks then start at multiples of their own length, so a chunk is one row of the store
        if self.sink_tokens % self.stages[0].chunk_len:
            raise ValueError(f"sink_tokens must be a multiple of {self.stages[0].chunk_len}, got {self.sink_tokens}")
        if self.special_keep_tokens % self.stages[-1].chunk_len:
            raise ValueError(f"special_keep_tokens must be a multiple of {self.stages[-1].chunk_len}")
        for coarse, fine in zip(self.stages, self.stages[1:]):
            if fine.chunk_len >= coarse.chunk_len:
                raise ValueError(f"chunk_len must shrink from stage to stage, got {coarse.chunk_len} then {fine.chunk_len}")
            if coarse.refresh % fine.refresh:
                raise ValueError(f"refresh intervals must nest, got {coarse.refresh} then {fine.refresh}")
        for rounds in (self.question_rounds, self.decode_rounds):
            if rounds is not None and len(rounds) != len(self.stages):
                raise ValueError(f"rounds must be given for each of {len(self.stages)} stages, got {len(rounds)}")
        if any(value is not None for value in self._own.values()):
            # made now, so that a number that cannot be is refused now
            _question_plan(self), _decode_plan(self)

    @property
    def _own(self) -> dict[str, object]:
        """What this plan says of questions and decode steps."""
        return {name: getattr(self, name) for name in ("question_rounds", "question_keep_tokens", "question_block_len", "decode_rounds")}

    @property
    def question(self) -> PrunePlan:
        """The plan by which a question reads the document before it.

        Its rows are compared one by one: averaging blurs the word a question is about (with means of 8 rows a 6K-token
        document answers half as often). It is also where a finer scan costs least: one block against a document's thousands.
        """
        return _question_plan(self)

    @property
    def decode(self) -> PrunePlan:
        """The plan of a decode step."""
        return _decode_plan(self)

    def is_special(self, layer: int) -> bool:
        return layer < self.special_layers

    def keep_chunks(self, stage: int, layer: int) -> int:
        """Chunks that stage number `stage` keeps in `layer`."""
        last = stage == len(self.stages) - 1
        tokens = self.special_keep_tokens if last and self.is_special(layer) else self.stages[stage].keep_tokens
        return tokens // self.stages[stage].chunk_len

    def keep_tokens(self, layer: int) -> int:
        """Middle keys that `layer` reads at most."""
        return self.keep_chunks(len(self.stages) - 1, layer) * self.stages[-1].chunk_len

    def refresh_stage(self, step: int, layer: int, layers: int) -> int | None:
        """First stage to run again at decode step `step` of `layer`, None to reuse the list.

        Step 0, the first after new tokens, runs every stage in every layer; later refreshes are staggered over groups of
        layers so that no step pays for all of them. Groups lie half of the shortest interval apart: few enough patterns
        of a step (33 at most for 128/16/8) to capture each in a CUDA graph.
        """
        if step == 0:
            return 0
        apart = max(1, self.stages[-1].refresh // 2)
        groups = max(1, self.stages[0].refresh // apart)
        due = step + layer * groups // layers * apart
        return next((i for i, stage in enumerate(self.stages) if due % stage.refresh == 0), None)

    @property
    def scan_distance(self) -> int:
        """Distance a scan assumes between query and nearest chunk: the window less one coarse chunk, as in the paper's code."""
        return max(0, self.window_tokens - self.stages[0].chunk_len)


@lru_cache(maxsize=64)
def _question_plan(plan: PrunePlan) -> PrunePlan:
    stages = list(_by_row(plan.stages, plan.question_rounds))
    special = plan.special_keep_tokens
    if plan.question_keep_tokens is not None:
        stages[-1] = replace(stages[-1], keep_tokens=plan.question_keep_tokens)
        special = max(special, plan.question_keep_tokens)
    block_len = plan.question_block_len or plan.block_len
    return replace(plan, stages=tuple(stages), special_keep_tokens=special, block_len=block_len, **dict.fromkeys(plan._own))


@lru_cache(maxsize=64)
def _decode_plan(plan: PrunePlan) -> PrunePlan:
    return replace(plan, stages=_by_row(plan.stages, plan.decode_rounds), **dict.fromkeys(plan._own))


def _by_row(stages: tuple[PruneStage, ...], rounds: tuple[int, ...] | None) -> tuple[PruneStage, ...]:
    """Stages that compare every row, with other rounds where they are given."""
    return tuple(replace(stage, rows_mean=1, rounds=stage.rounds if rounds is None else rounds[i]) for i, stage in enumerate(stages))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
