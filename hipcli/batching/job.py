"""What a batch is asked to do, checked once, and the work that is left of it.

Knows neither models nor how rows are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from hipcli.errors import UsageError
from hipcli.options import RunOptions
from hipcli.questions import Question

_EXAMPLE = 'hip batch papers/ --prompt "What was measured?" --out rows.jsonl'


@dataclass(frozen=True)
class BatchJob:
    """A batch, checked; raises UsageError.

    out: a .jsonl or .parquet file. engine: "local" or "ray". workers: of Ray, None for one a GPU.
    export: "openai-batch", None to answer here.
    max_context: tokens that the target of an export takes, None for any number.
    """

    options: RunOptions
    questions: tuple[Question, ...]
    out: str
    retry_failed: bool = False
    engine: str = "local"
    workers: int | None = None
    export: str | None = None
    max_context: int | None = None

    def __post_init__(self) -> None:
        suffix = PurePath(self.out).suffix.lower()
        if suffix not in (".jsonl", ".parquet"):
            raise UsageError(f"--out must end in .jsonl or .parquet, got {self.out!r}", _EXAMPLE)
        if self.workers is not None and self.engine != "ray":
            raise UsageError("--workers is for --engine ray", "one process answers all files otherwise")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--workers must be at least 1, got {self.workers}")
        if self.max_context is not None and self.export is None:
            raise UsageError("--max-context is for --export: here, what does not fit into memory is refused by itself")
        if self.export is not None and (suffix != ".jsonl" or self.engine != "local"):
            raise UsageError("--export writes a .jsonl file, in this process", "leave --engine away, and name --out requests.jsonl")

    @property
    def as_parquet(self) -> bool:
        """Whether the rows become a Parquet file in the end."""
        return self.out.lower().endswith(".parquet")


def chosen_questions(prompt: str | None, questions: str | None) -> tuple[Question, ...]:
    """The prompt, or the questions of a file; raises UsageError, InputError."""
    from hipcli.questions import load_questions

    if (prompt is None) == (questions is None):
        raise UsageError(f"give {'either' if prompt else 'a'} --prompt or --questions{', not both' if prompt else ''}", _EXAMPLE)
    if questions is not None:
        return tuple(load_questions(questions))
    if not prompt.strip():
        raise UsageError("the prompt is empty", _EXAMPLE)
    return (Question(prompt.strip()),)


def required_out(out: str | None) -> str:
    """The name of the file of rows; raises UsageError."""
    if out is None:
        raise UsageError("say where the rows go: --out rows.jsonl", _EXAMPLE)
    return out


def context_tokens(text: str | None) -> int | None:
    """Tokens of a --max-context; raises UsageError."""
    from hipcli.bench import parse_context

    return None if text is None else parse_context(text, "--max-context")


@dataclass(frozen=True)
class Task:
    """One file and what is still to be asked of it. run: identifies file, model and settings."""

    path: str
    sha256: str
    run: str
    questions: tuple[Question, ...]
