"""Queues: which there are, the jobs that wait in each, and the workers that wait for them.

The store keeps the whole line; here is its first part, so that a delivery costs the same however long the line is, and
so that nobody has to look again and again whether something has come.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from gateway.core.job import RetryPolicy
from gateway.service.job_errors import UnknownQueue
from gateway.stores.base import StoreUnavailable
from gateway.stores.job_base import Place

READ_AT_ONCE = 256
MOST_IDLE = 1000
"""So many queues at which nobody waits are remembered."""
MOST_READ = 65536
"""How far the line is searched for a worker who may not have every key."""


@dataclass(frozen=True, slots=True)
class QueueRule:
    """The settings of queues. Times in seconds."""

    name: str = "*"
    """A shell pattern."""
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    visibility_s: float = 60.0


class QueueRules:
    """The first that matches a queue holds. Without any, every queue exists, with the defaults."""

    def __init__(self, rules: tuple[QueueRule, ...] = ()) -> None:
        self._rules = rules

    def of(self, queue: str) -> QueueRule:
        """Raises `UnknownQueue`."""
        if not self._rules:
            return QueueRule()
        for rule in self._rules:
            if fnmatchcase(queue, rule.name):
                return rule
        raise UnknownQueue(queue, [rule.name for rule in self._rules])

    def policy(self, queue: str | None) -> RetryPolicy:
        """How often jobs are tried; of a queue that the settings no longer name, by the defaults."""
        try:
            return self.of(queue or "").policy
        except UnknownQueue:
            return RetryPolicy()


def _everything(key: str) -> bool:
    return True


@dataclass(eq=False, slots=True)
class Worker:
    """One who waits for a job."""

    given: asyncio.Future[Place | None]
    may_have: Callable[[str], bool] = _everything
    found_none: bool = False
    """In all of the line that is known, but for what has come since."""


class Queue:
    """One queue. All methods belong to one event loop."""

    def __init__(self, read: Callable[[int], Awaitable[list[Place]]]) -> None:
        """`read` gives so many of the first jobs in line."""
        self._read = read
        self._first: list[Place] = []
        self._is_all = False
        """Nobody stands in line behind `_first`."""
        self._limit = READ_AT_ONCE
        self._taken: set[str] = set()
        self._back: dict[str, Place] = {}
        """What has come to wait while it was taken: again, unless a reading has found it before it was told of."""
        self._reading: asyncio.Task[None] | None = None
        self._added: list[Place] = []
        """Since the reading began."""
        self._gone: set[str] = set()
        """Taken and decided since the reading began."""
        self.workers: dict[Worker, None] = {}
        self.users = 0
        self.open = True
        """False: nobody is given anything any more."""

    @property
    def idle(self) -> bool:
        """There is nothing here that the store does not know."""
        return not self.users and not self._taken and self._reading is None

    async def take(self, timeout_s: float, may_have: Callable[[str], bool] | None = None) -> Place | None:
        """The first job in line that this worker may have, after waiting for one at most `timeout_s`; None if there is
        none. It stands in line no more, until it is `decided` or `put_back`. Raises `StoreUnavailable`."""
        if not self.open:
            return None
        loop = asyncio.get_running_loop()
        worker = Worker(loop.create_future(), may_have or _everything)
        self.workers[worker] = None
        timer = None
        try:
            self._match()
            if not worker.given.done() and timeout_s <= 0:
                while self._reading is not None and not worker.given.done():
                    await asyncio.wait([self._reading])
                if not worker.given.done():
                    return None
            elif not worker.given.done():
                timer = loop.call_later(timeout_s, _give_up, worker.given)
            return await worker.given
        except asyncio.CancelledError:
            given = worker.given
            if given.done() and not given.cancelled() and given.exception() is None and (place := given.result()):
                self.put_back(place)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self.workers.pop(worker, None)

    def dismiss(self) -> None:
        """Tell all workers that there is nothing."""
        self.open = False
        for worker in self.workers:
            _give_up(worker.given)

    def take_more(self, count: int, may_have: Callable[[str], bool] | None = None) -> list[Place]:
        """At most `count` further jobs, as far as they are known: nobody is waited for."""
        if self.workers:
            return []
        places = [place for place in self._first if may_have is None or may_have(place.key)][:count]
        for place in places:
            self._first.remove(place)
            self._taken.add(place.key)
        return places

    def add(self, place: Place) -> None:
        """A job has come to wait, or waits again."""
        if place.key in self._taken:
            self._back[place.key] = place
            return
        self._gone.discard(place.key)
        if self._reading is not None:
            self._added.append(place)
        new = None
        if self._is_all or (self._first and place < self._first[-1]):
            at = bisect_left(self._first, place)
            if self._first[at : at + 1] != [place]:
                self._first.insert(at, place)
                new = place
            if len(self._first) > 2 * self._limit:
                del self._first[self._limit :]
                self._is_all = False
                new = new if at < self._limit else None
        self._match(new)

    def doubt(self) -> None:
        """What is known of the line may be wrong: it is read again."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._first, self._is_all = [], False
        self._match()

    def put_back(self, place: Place) -> None:
        """A job that was taken waits on."""
        self._taken.discard(place.key)
        self._back.pop(place.key, None)
        self.add(place)

    def decided(self, key: str) -> None:
        """A job that was taken waits no more, unless it has come back meanwhile."""
        self._taken.discard(key)
        if self._reading is not None:
            self._gone.add(key)
        if (place := self._back.pop(key, None)) is not None:
            self.add(place)

    def _match(self, new: Place | None = None) -> None:
        """Give what stands in line to those who wait, in the order of both. `new`: what has come since. Who may not
        have every key is not held against the whole line each time."""
        for worker in list(self.workers):
            if not self._first:
                break
            line = self._first if not worker.found_none else () if new is None else (new,)
            place = next((place for place in line if worker.may_have(place.key)), None)
            if place is None:
                worker.found_none = True
                continue
            if place == new:
                new = None
            del self.workers[worker]
            if worker.given.done():
                continue
            self._first.remove(place)
            self._taken.add(place.key)
            worker.given.set_result(place)
        if self.workers and not self._is_all and self._reading is None:
            if self._first:  # none of which they may have
                if self._limit >= MOST_READ:
                    return
                self._limit *= 2
            self._reading = asyncio.ensure_future(self._refill())

    async def _refill(self) -> None:
        this = asyncio.current_task()
        self._added, self._gone = [], set()
        limit = self._limit + len(self._taken)
        try:
            places = await self._read(limit)
        except BaseException as error:
            if self._reading is this:
                self._reading = None
                self._cannot_be_read(error)
            if isinstance(error, StoreUnavailable):
                return
            raise
        if self._reading is not this:
            return  # what has been read is doubted
        self._reading = None
        out = self._taken | self._gone
        self._first = sorted({place for place in (*places, *self._added) if place.key not in out})
        self._is_all = len(places) < limit
        for worker in self.workers:
            worker.found_none = False
        self._match()

    def _cannot_be_read(self, error: BaseException) -> None:
        """Tell those who wait."""
        told = error if isinstance(error, StoreUnavailable) else StoreUnavailable("the queue could not be read")
        for worker in list(self.workers):
            if not worker.given.done():
                worker.given.set_exception(told)
        self.workers.clear()


class Queues:
    """All queues that somebody waits at, or whose line is partly known."""

    def __init__(self, read: Callable[[str, int], Awaitable[list[Place]]]) -> None:
        """`read` gives so many of the first jobs in a queue's line."""
        self._read = read
        self._queues: dict[str, Queue] = {}
        self.dismissed = False
        """Nobody is given anything any more."""

    @contextmanager
    def at(self, name: str) -> Iterator[Queue]:
        """A queue, which is not forgotten inside."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Queue(partial(self._read, name))
            queue.open = not self.dismissed
        queue.users += 1
        try:
            yield queue
        finally:
            queue.users -= 1
            self._forget_idle()

    def _forget_idle(self) -> None:
        for _ in range(min(len(self._queues) - MOST_IDLE, 2)):
            name, queue = next(iter(self._queues.items()))
            del self._queues[name]
            if not queue.idle:
                self._queues[name] = queue

    def add(self, name: str, place: Place) -> None:
        """A job has come to wait in a queue, or waits again."""
        if (queue := self._queues.get(name)) is not None:
            queue.add(place)

    def doubt(self) -> None:
        """The store has failed, and may have changed a line all the same."""
        for queue in self._queues.values():
            queue.doubt()

    def dismiss(self) -> None:
        """Tell all workers, and those who come, that there is nothing."""
        self.dismissed = True
        for queue in self._queues.values():
            queue.dismiss()

    @property
    def workers(self) -> int:
        """How many wait."""
        return sum(len(queue.workers) for queue in self._queues.values())


def _give_up(given: asyncio.Future[Place | None]) -> None:
    if not given.done():
        given.set_result(None)
