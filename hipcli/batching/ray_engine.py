"""`hip batch --engine ray`: actors that each hold the model answer files side by side.

Plain actors, not Ray Data: that hands out blocks of rows and, of a block that fails twice, tells neither which file it was nor
whose rows were finished, and it would bring pandas and pyarrow. Here a dying actor costs one file one try.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from hipcli import config
from hipcli.batching.job import BatchJob, Task
from hipcli.batching.ledger import Ledger
from hipcli.console import Terminal
from hipcli.errors import HipError, ModelError, UsageError
from hipcli.options import RunOptions

_TRIES = 2
_ANSWER_S = 10.0
_OBJECT_STORE_BYTES = 100_000_000  # tasks and rows are small; Ray would take a third of the memory


def require_ray() -> None:
    """Raise UsageError where Ray is not installed."""
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise UsageError("--engine ray needs Ray, which is not installed", "pip install 'hipcli[ray]', or leave --engine away")


class RayWorker:
    """A worker in a process of Ray's."""

    def __init__(self, options: RunOptions) -> None:
        self._options, self._open = options, contextlib.ExitStack()

    def load(self, digest: str) -> None:
        """Load the model; raises ModelError when it is another than the one with this digest, and what loading raises."""
        from hipcli.batching.worker import open_worker

        self._worker = self._open.enter_context(open_worker(self._options, Terminal(quiet=True)))
        if self._worker.digest != digest:
            raise ModelError("a worker of the cluster found another model under that name", "put the same files on every machine")

    def answer(self, task: Task) -> tuple[list[dict[str, Any]], HipError | None]:
        """The rows of a file, and its fault when it has one."""
        rows: list[dict[str, Any]] = []
        return rows, self._worker.answer(task, rows.append)


def answer_on_ray(tasks: Sequence[Task], job: BatchJob, digest: str, ledger: Ledger, terminal: Terminal) -> None:
    """Answer all tasks by actors; raises every HipError that ends a run. digest: of the model."""
    with _connected(terminal):
        team = _Team(job, digest, len(tasks))
        with terminal.phase("batch", len(tasks), "files", long=True) as phase:
            for task, rows, fault in team.answer(tasks):
                for row in rows:
                    ledger.row(task, row)
                ledger.done(task, fault)
                phase.advance()


class _Team:
    """Actors, and the file that each is at. An actor that dies is replaced, and its file tried once more."""

    def __init__(self, job: BatchJob, digest: str, most: int) -> None:
        import ray

        self._job, self._digest = job, digest
        found = ray.cluster_resources()
        gpus = 0 if job.options.device == "cpu" else int(found.get("GPU", 0))
        self._size = min(job.workers or gpus or 1, most)
        if gpus and self._size > gpus:
            raise UsageError(f"--workers {self._size} is more than the {gpus} GPUs that Ray found", "one worker a GPU")
        cores = 1 if gpus else found.get("CPU", 1) / self._size
        needs = {"num_cpus": int(cores) if cores > 1 else cores, "num_gpus": int(bool(gpus))}
        self._actor = ray.remote(RayWorker).options(max_restarts=0, **needs)
        self._busy: dict[Any, tuple[Any, Task | None]] = {}
        self._deaths: Counter[Task | None] = Counter()

    def answer(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, list[dict[str, Any]], HipError | None]]:
        """Each task as it ends, with its rows and its fault."""
        import ray

        waiting = deque(tasks)
        for _ in range(self._size):
            self._hire()
        while self._busy:
            # with a limit, so that an interruption is heard
            ended, _ = ray.wait(list(self._busy), timeout=1.0)
            for future in ended:
                actor, task = self._busy.pop(future)
                try:
                    result = ray.get(future)
                except ray.exceptions.RayActorError:
                    self._deaths[task] += 1
                    yield from self._bury(task, waiting)
                    if waiting:
                        self._hire()
                    continue
                if task is not None:
                    yield (task, *result)
                if waiting:
                    following = waiting.popleft()
                    self._busy[actor.answer.remote(following)] = (actor, following)

    def _hire(self) -> None:
        actor = self._actor.remote(self._job.options)
        self._busy[actor.load.remote(self._digest)] = (actor, None)

    def _bury(self, task: Task | None, waiting: deque[Task]) -> Iterator[tuple[Task, list[dict[str, Any]], HipError | None]]:
        """What becomes of the file of an actor that died: None is an actor that was loading the model."""
        if self._deaths[task] < _TRIES:
            if task is not None:
                waiting.append(task)
        elif task is None:
            raise HipError("workers of Ray end while they load the model", "fewer --workers need less memory")
        else:
            yield task, [], HipError(f"the worker that read it ended, {_TRIES} times", "without --engine ray, hip says why; perhaps memory")


def _require_answer(address: str | None) -> None:
    """Raise UsageError when nobody listens at an address of a cluster; Ray would try again for minutes."""
    where = re.fullmatch(r"(?:ray://)?(.+):(\d{1,5})", address or "")
    if where is None:
        return
    try:
        socket.create_connection((where[1].strip("[]"), int(where[2])), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as fault:
        reason = f"no Ray cluster answers at RAY_ADDRESS, {address}: {getattr(fault, 'strerror', None) or fault}"
        raise UsageError(reason, "unset RAY_ADDRESS to start Ray here") from None


@contextlib.contextmanager
def _connected(terminal: Terminal) -> Iterator[None]:
    """Ray, at RAY_ADDRESS or started here for as long as it takes; silent, and with the signals as they were."""
    config.forbid_ray_telemetry()
    with terminal.phase("starting Ray"):
        import ray

        logging.getLogger("ray").setLevel(logging.ERROR)
        heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        address = config.ray_address()
        _require_answer(address)
        own = {} if address else {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        try:
            ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **own)
        except (ConnectionError, RuntimeError, ValueError, OSError) as fault:
            hint = "a cluster that wants a token takes RAY_AUTH_MODE=token" if address else "leave --engine away"
            raise HipError(f"Ray cannot be used: {' '.join(str(fault).split())[:300]}", hint) from fault
        finally:
            for number, handler in heard.items():
                signal.signal(number, handler)
    try:
        # Ray prints what befalls its processes to standard output, which is for results
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        ray.shutdown()
