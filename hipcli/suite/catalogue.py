"""Every task by suite and name."""

from __future__ import annotations

from collections.abc import Sequence

from hipcli.errors import UsageError
from hipcli.suite import dialogues, needles, stories, tracing
from hipcli.suite.tasks import Task

TASKS = (*needles.TASKS, *tracing.TASKS, *stories.TASKS, *dialogues.TASKS)
SUITES = tuple(dict.fromkeys(task.suite for task in TASKS))


def choose(suites: Sequence[str], names: Sequence[str] = (), data: Sequence[Task] = ()) -> tuple[Task, ...]:
    """The tasks of the suites and of data, only those named where names are given. Raises UsageError on a name that does not exist."""
    for suite in suites:
        if suite not in SUITES:
            raise UsageError(f"--suite must be one of {', '.join(SUITES)}, got {suite!r}")
    found = [task for task in TASKS if task.suite in suites] + list(data)
    for name in names:
        if name not in {task.name for task in found}:
            raise UsageError(f"--task must be one of {', '.join(task.name for task in found)}, got {name!r}")
    return tuple(task for task in found if not names or task.name in names)
