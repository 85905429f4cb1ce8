"""`hip bench --suite`: asks every task of every attention on the same prompts, one prefill each, and says what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli import bench, bench_plot
from hipcli.console import Terminal, amount, duration, write_json
from hipcli.errors import DoesNotFit, InputError
from hipcli.suite import plot as picture
from hipcli.suite import report
from hipcli.suite.fit import CannotBuild, TextTooShort
from hipcli.suite.options import SuiteOptions
from hipcli.suite.prompt import Cell, build_cell, longest
from hipcli.suite.prose import Prose, digest_of, load_prose
from hipcli.suite.records import KEY, VERDICTS, Records, Row, key_of, mend, read_records
from hipcli.suite.tasks import Task

if TYPE_CHECKING:
    from hipcli.engine import Engine
    from hipcli.model import LoadedModel
    from hipcli.settings import AttentionSettings
    from hipcli.tokens import Tokenizer


@dataclass(frozen=True)
class Bench:
    """What cells are run with. attention: settings by the name that rows give them. deadline: by time.monotonic."""

    options: SuiteOptions
    model: LoadedModel
    tokenizer: Tokenizer
    prose: Prose | None
    attention: dict[str, AttentionSettings]
    deadline: float
    terminal: Terminal

    def key(self, task: Task, context: int, sample: int, attention: str) -> Row:
        """The fields that tell a cell from others."""
        options = self.options
        values = (task.name, context, options.seed, sample, attention, self.model.name, self.model.device, self.model.dtype_name)
        below = None if attention == "dense" else options.dense_below
        text = self.prose.digest if self.prose and task.needs_prose else None
        if task.examples:
            # numbers of examples mean nothing in another file
            example = task.examples[sample]
            text = digest_of(f"{example.question.text}\n{example.text}")
        return dict(zip(KEY, (*values, below, options.pack, text)))


def run(options: SuiteOptions, *, out: str | None, plot: str | None, as_json: bool) -> None:
    """Run, print and write everything. Raises UsageError, InputError, ModelError, DiskError, DoesNotFit."""
    if plot is not None:
        bench_plot.require_plot(Path(plot))
    deadline, terminal = time.monotonic() + options.seconds, Terminal(as_json=as_json)
    records = read_records(Path(out)) if out is not None else Records()
    if out is not None:
        bench.require_out(Path(out))
        mend(Path(out))
    opened = open_bench(options, deadline, terminal)
    wanted = list(_keys(opened))
    skipped: list[Row] = []
    try:
        for row in rows(opened, records):
            records.add(row)
            if row["row"] == "skipped":
                skipped.append(row)
            if as_json:
                write_json(row)
            else:
                report.show(row)
            if out is not None:
                bench.append_line(Path(out), row)
    finally:
        answers = records.answers(wanted)
        report.conclude(answers, as_json)
        if plot is not None and answers:
            picture.draw(Path(plot), answers, f"{opened.model.name}, {opened.model.dtype_name}")
            terminal.note(f"plot: {plot}")
    _judge(answers, skipped)


def _judge(answers: list[Row], skipped: list[Row]) -> None:
    """Raise for a run that has no answers, or in which something failed."""
    named = [{"row": f"{row['task']} at {row['context']:,} tokens, {row['attention']}", "reason": row["reason"]} for row in skipped]
    bench.judge([{"row": "answers"}] * bool(answers) + named)
    if skipped and not answers:
        why = next(row["skipped"] for row in skipped if row["reason"] in ("text", "context"))
        raise InputError(f"nothing was measured: {why}", "give a longer --text, or another --context")


def open_bench(options: SuiteOptions, deadline: float, terminal: Terminal) -> Bench:
    """Prose, model and tokenizer. Raises UsageError, InputError, ModelError, DoesNotFit."""
    # a file that is not there must not cost the loading of a model
    prose = load_prose(options.text) if any(task.needs_prose for task in options.tasks) else None
    files, model = bench.load_trained(options.model, options.device, options.dtype, terminal)
    from hipcli.tokens import load_tokenizer

    return Bench(options, model, load_tokenizer(files.path), prose, attentions(options, model.device), deadline, terminal)


def attentions(options: SuiteOptions, device: str) -> dict[str, AttentionSettings]:
    """Settings of every attention asked for, by preset; "auto" goes by the name of the preset it stands for."""
    from hipcli.attention import preset_name
    from hipcli.settings import AttentionSettings

    found = {}
    for name in options.attention:
        settings = AttentionSettings(mode="dense") if name == "dense" else AttentionSettings(preset=name, dense_below=options.dense_below)
        if name != "dense":
            settings = replace(settings, preset=preset_name(settings, device))
        found["dense" if name == "dense" else settings.preset] = settings
    return found


def _keys(opened: Bench) -> Iterator[tuple]:
    for context, task, sample in _cells(opened.options):
        for attention in opened.attention:
            yield key_of(opened.key(task, context, sample, attention))


def _cells(options: SuiteOptions) -> Iterator[tuple[int, Task, int]]:
    """First one haystack of every task and context, so that a run that ends early has seen them all."""
    most = max([options.samples or 1, *(samples_of(task, options) for task in options.tasks)])
    for sample in range(most):
        for context in options.contexts:
            # data is as long as it is: the longest context is the limit
            tasks = [task for task in options.tasks if not task.examples or context == options.contexts[-1]]
            for task in tasks:
                if sample < samples_of(task, options):
                    yield context, task, sample


def samples_of(task: Task, options: SuiteOptions) -> int:
    """Haystacks or examples of a task that are asked about."""
    return min(options.samples or len(task.examples), len(task.examples)) if task.examples else options.samples or 1


def rows(opened: Bench, records: Records) -> Iterator[Row]:
    """Rows of every cell that `records` do not hold complete."""
    for context, task, sample in _cells(opened.options):
        keys = {name: opened.key(task, context, sample, name) for name in opened.attention}
        left = {name: key for name, key in keys.items() if not records.complete(key_of(key), opened.options.scoring, opened.options.check)}
        if left:
            yield from _haystack_rows(opened, task, context, sample, left)


def _haystack_rows(opened: Bench, task: Task, context: int, sample: int, left: dict[str, Row]) -> Iterator[Row]:
    options = opened.options
    if time.monotonic() >= opened.deadline:
        for key in left.values():
            yield _skipped(key, "time is up, give --minutes more", "time")
        return
    try:
        with opened.terminal.phase(f"{task.name} at {context:,} tokens: writing haystack {sample + 1} of {samples_of(task, options)}"):
            cell = build_cell(task, context, sample, options.seed, options.pack, opened.prose, opened.tokenizer)
    except CannotBuild as error:
        for key in left.values():
            yield _skipped(key, str(error), "text" if isinstance(error, TextTooShort) else "context")
        return
    for name, key in left.items():
        label = f"{task.name} at {context:,} tokens, {name}"
        # bench.attempt knows which faults end a run and which a row
        done = bench.attempt(partial(_as_row, opened, task, cell, name, key), label, "suite", context, opened.model.device)
        yield from done.pop("rows", None) or [_skipped(key, done["skipped"], done["reason"])]


def _skipped(key: Row, why: str, reason: str) -> Row:
    return {"row": "skipped", **key, "skipped": why, "reason": reason}


def _as_row(opened: Bench, task: Task, cell: Cell, name: str, key: Row) -> Row:
    return {"rows": list(answer_rows(opened, task, cell, name, key))}


def answer_rows(opened: Bench, task: Task, cell: Cell, name: str, key: Row) -> Iterator[Row]:
    """Prefill once, ask everything. Raises DoesNotFit or NoTimeLeft before it starts."""
    from hipcli.engine import Engine
    from hipcli.suite.scoring import answer_fields

    engine = Engine(opened.model, opened.attention[name], kv=opened.options.kv, on_notice=opened.terminal.warn)
    try:
        label = f"{task.name} at {key['context']:,} tokens, {name}"
        prefilled = _prefill(opened, engine, cell, label)
        began = time.monotonic()
        right: Counter[str] = Counter()
        with opened.terminal.phase(f"{label}: questions", len(cell.asked), "questions") as phase:
            for number, asked in enumerate(cell.asked):
                fields = answer_fields(engine, opened.tokenizer, task, asked, opened.options.scoring, opened.options.check)
                yield {"row": "answer", **key, "suite": task.suite, "question": number, "of": len(cell.asked), **fields}
                right.update(name for name in VERDICTS if fields.get(name))
                phase.advance()
        times = {"prefill_seconds": prefilled, "questions_seconds": round(time.monotonic() - began, 3)}
        sizes = {"tokens": cell.tokens, "questions": len(cell.asked), "keys_read": keys_read(engine, cell.tokens)}
        counts = {name: right[name] for name in VERDICTS if name in fields}
        yield {"row": "haystack", **key, "suite": task.suite, **sizes, **counts, **times}
    finally:
        engine.close()


def _prefill(opened: Bench, engine: Engine, cell: Cell, label: str) -> float:
    """Seconds of the prefill of a haystack."""
    from hipcli.bench_timing import NoTimeLeft

    plan, left = engine.plan(cell.tokens), opened.deadline - time.monotonic()
    if not plan.fits:
        raise DoesNotFit(f"it needs {amount(plan.peak_bytes, 'bytes')} of memory and {amount(plan.available_bytes, 'bytes')} are free")
    if plan.seconds > left:
        raise NoTimeLeft(f"it would take about {duration(plan.seconds)} and {duration(max(0.0, left))} are left, give --minutes more")
    began = time.monotonic()
    with opened.terminal.phase(label, len(cell.ids), "tokens") as phase:
        engine.prefill(cell.ids, on_chunk=phase.to, room=longest(cell.asked))
    return round(time.monotonic() - began, 3)


def keys_read(engine: Engine, tokens: int) -> int:
    """Keys that a query at the end of so many tokens reads, in the mean of all layers."""
    if engine.settings.mode == "dense":
        return tokens
    plan, layers = engine.runtime.backend.plan, range(engine.model.layers)
    kept: Any = sum(plan.keep_tokens(layer) for layer in layers) / len(layers)
    return min(tokens, round(plan.sink_tokens + kept + plan.window_tokens))
