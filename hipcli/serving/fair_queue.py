"""A bounded queue in which nobody waits for another's backlog: owners take turns, and so do the clients of each.

Knows nothing of what the jobs are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What can wait here. owner: whose token; client: which of that owner's programs."""

    owner: str
    client: str


J = TypeVar("J", bound=Queued)


class Full(Exception):
    """There is no room to wait."""


class FairQueue(Generic[J]):
    """Jobs in the order of turns. backlog: that wait at most; owners: among which it is shared.

    Where there are several owners, one may fill half of the backlog.
    """

    def __init__(self, backlog: int, owners: int = 1) -> None:
        self._backlog, self._share = backlog, backlog if owners == 1 else max(1, backlog // 2)
        self._turns: OrderedDict[str, OrderedDict[str, deque[J]]] = OrderedDict()
        self._first: deque[J] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return sum(map(self._waiting, self._turns))

    def _waiting(self, owner: str) -> int:
        return sum(map(len, self._turns.get(owner, {}).values()))

    def put(self, job: J) -> None:
        """Let a job wait for its turn. Raises Full."""
        with self._changed:
            waiting = sum(map(self._waiting, self._turns))
            if self._closed or waiting >= self._backlog or self._waiting(job.owner) >= self._share:
                raise Full
            self._turns.setdefault(job.owner, OrderedDict()).setdefault(job.client, deque()).append(job)
            self._changed.notify()

    def put_first(self, job: J) -> None:
        """Let a job be the next, whatever waits. Raises Full once the queue is closed."""
        with self._changed:
            if self._closed:
                raise Full
            self._first.append(job)
            self._changed.notify()

    def take(self) -> J | None:
        """The next job, waited for; None once the queue is closed."""
        with self._changed:
            while not (self._closed or self._first or self._turns):
                self._changed.wait()
            if self._closed:
                return None
            return self._first.popleft() if self._first else self._next()

    def _next(self) -> J:
        owner, clients = next(iter(self._turns.items()))
        client, jobs = next(iter(clients.items()))
        job = jobs.popleft()
        # whoever was served goes behind the others, and whoever has nothing left does not count
        clients.move_to_end(client)
        self._turns.move_to_end(owner)
        self._tidy(owner, client)
        return job

    def _tidy(self, owner: str, client: str) -> None:
        if not self._turns[owner][client]:
            del self._turns[owner][client]
        if not self._turns[owner]:
            del self._turns[owner]

    def discard(self, job: J) -> bool:
        """Take a job out that nobody waits for any more; whether it was still waiting."""
        with self._changed:
            jobs = self._turns.get(job.owner, {}).get(job.client, ())
            if job not in jobs:
                return False
            jobs.remove(job)
            self._tidy(job.owner, job.client)
            return True

    def close(self) -> list[J]:
        """Let nobody in or out any more; returns the jobs that were waiting."""
        with self._changed:
            self._closed = True
            left = [*self._first, *(job for clients in self._turns.values() for jobs in clients.values() for job in jobs)]
            self._turns.clear()
            self._first.clear()
            self._changed.notify_all()
            return left
