"""`hip batch`: files found, what is left of them answered by an engine, rows kept, failures told."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from hipcli.answers_file import AnswersFile
from hipcli.batching.failures import Failures
from hipcli.batching.files import find_files, runs_of
from hipcli.batching.job import BatchJob, Task
from hipcli.batching.ledger import Ledger
from hipcli.console import Terminal
from hipcli.input import read_password
from hipcli.options import RunOptions
from hipcli.pipeline import check_early, find_model


def batch(job: BatchJob, terminal: Terminal) -> None:
    """Do what no earlier run did; raises every HipError, IncompleteError when files failed."""
    _check(job)
    if job.export is not None:
        from hipcli.batching.export import export

        ledger = export(job, terminal)
    else:
        ledger = _answer(job, terminal)
    ledger.report()


def _answer(job: BatchJob, terminal: Terminal) -> Ledger:
    files = find_files(job.options.sources, terminal)
    digest = find_model(job.options, terminal).digest
    with _opened_rows(job) as rows:
        ledger = Ledger(job, rows, Failures(job.out + ".failed"), terminal)
        with ledger.kept():
            tasks = ledger.plan(files, runs_of(files, digest, job.options))
            if tasks and job.engine == "ray":
                from hipcli.batching.ray_engine import answer_on_ray

                answer_on_ray(tasks, job, digest, ledger, terminal)
            elif tasks:
                _answer_here(tasks, job.options, ledger, terminal)
    return ledger


def _answer_here(tasks: Sequence[Task], options: RunOptions, ledger: Ledger, terminal: Terminal) -> None:
    """One model in this process, one file after the other."""
    from hipcli.batching.worker import open_worker

    with open_worker(options, terminal) as worker, terminal.phase("batch", len(tasks), "files", long=True) as phase:
        for task in tasks:
            ledger.done(task, worker.answer(task, partial(ledger.row, task)))
            phase.advance()


def _opened_rows(job: BatchJob):
    """The file of rows, closed in the end."""
    if not job.as_parquet:
        return closing(AnswersFile(job.out))
    from hipcli.batching.parquet import parquet_rows

    return parquet_rows(job.out)


def _check(job: BatchJob) -> None:
    """Refuse what would fail for every file; raises UsageError."""
    options = job.options
    read_password(options.password_file)
    if options.encoding is not None:
        from hipcli.readers.decode import check_encoding

        check_encoding(options.encoding)
    if job.as_parquet:
        from hipcli.batching.parquet import require_pyarrow

        require_pyarrow()
    if job.engine == "ray":
        from hipcli.batching.ray_engine import require_ray

        require_ray()
    elif job.export is None:
        check_early(options)
