"""What pruning keeps, as data: stages, plans and the named presets. Imports nothing but the standard library.

The middle of the context (everything between the sinks and the window) is cut into chunks; each stage scores its
chunks, keeps the best and hands them, split finer, to the next (InfiniteHiP, arXiv 2502.08910, section 3 and appendix F).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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

    def is_special(self, layer: int) -> bool:
        return layer < self.special_layers

    def keep_chunks(self, stage: int, layer: int) -> int:
        """Chunks that stage number `stage` keeps in `layer`."""
        last = stage == len(self.stages) - 1
        tokens = self.special_keep_tokens if last and self.is_special(layer) else self.stages[stage].keep_tokens
        return tokens // self.stages[stage].chunk_len

    def rows_mean(self, stage: int, rows: int) -> int:
        """Query rows averaged in a block of `rows`: a short one, which is a question, is compared row by row.

        Averaging blurs the word a question is about: with means of 8 rows a 6K-token document answers half as often.
        """
        return self.stages[stage].rows_mean if rows == self.block_len else 1

    def keep_tokens(self, layer: int) -> int:
        """Middle keys that `layer` reads at most."""
        return self.keep_chunks(len(self.stages) - 1, layer) * self.stages[-1].chunk_len

    def refresh_stage(self, step: int, layer: int, layers: int) -> int | None:
        """First stage to run again at decode step `step` of `layer`, None to reuse the list.

        Step 0, the first after new tokens, runs every stage in every layer; later refreshes are staggered over groups of
        layers so that no step pays for all of them. Groups lie half of the shortest interval apart: few enough patterns
        of a step (9 for 32/16/8) to capture each in a CUDA graph.
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


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _stages(chunks, keeps, rows_means, rounds, refresh) -> tuple[PruneStage, ...]:
    return tuple(PruneStage(*row) for row in zip(chunks, keeps, rows_means, rounds, refresh))


_3K = ((256, 32, 8), (32768, 8192, 2048))
_5K = ((64, 32, 16), (32768, 16384, 4096))
_REFRESH = {"": (16, 8, 4), "-fast": (32, 16, 8), "-flash": (96, 24, 8)}

# four rounds of the first stage leave 16 keys a chunk: what a scan of a long context reads most
DEFAULT_PLAN = PrunePlan(_stages(*_3K, (4, 4, 1), (4, 2, 0), (32, 16, 8)))

# on a CPU rows are averaged in the last stage too: a quarter of the scan, with as many needles found (docs/results)
CPU_PLAN = replace(DEFAULT_PLAN, stages=_stages(*_3K, (4, 4, 4), (3, 2, 0), (32, 16, 8)))


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


def preset(name: str, share: str | None = None) -> PrunePlan:
    """The plan called `name`, with `share` overriding its own. Raises ValueError naming the presets there are."""
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    plan = PRESETS[name]
    return replace(plan, share=share) if share else plan
