"""Deliveries: jobs handed to workers, each under a lease of its own, as soon as its hand-over is complete.

The first in line goes to the worker who waits longest. Each grant and what it makes of its job is one decision of the
store. What is delivered to a caller who goes away meanwhile is called back, unless he can ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import structlog

from gateway.clock import Clock
from gateway.core.errors import FenceError, Reason, TryAgain
from gateway.core.job import Job, JobState
from gateway.core.keys import FencingKey, Token
from gateway.service.alarms import MIN_WAIT_S
from gateway.service.beside import Beside, answer_of
from gateway.service.job_errors import JobError, RepeatedReceive
from gateway.service.lease_errors import Held, LeaseError
from gateway.service.leases import Lease, Leases
from gateway.service.queues import Queue, QueueRule, QueueRules, Queues
from gateway.service.repeats import Repeats
from gateway.service.running import Running
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.job_base import Place
from gateway.stores.values import Event, Granted, GrantWanted

MayHave = Callable[[str], bool]
_log = structlog.get_logger(__name__)

AGAIN_S = 1.0
"""When a key is tried again whose lease is in the way for an unknown time."""
READY_S = 0.05
"""How long deliveries that are ready wait for those that were made with them."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job that has been handed to a worker: no lower token can have an effect any more."""

    job: Job
    lease: Lease


@dataclass(frozen=True, slots=True)
class Wish:
    """What a worker asks for. Times in seconds."""

    holder: str
    visibility_s: float | None = None
    """None: as the queue's settings say."""
    wait_s: float = 0.0
    most: int = 1
    idempotency_key: str | None = None
    request_id: str = ""


class _NotWaiting(JobError):
    """The job has been delivered, ended or removed since it was found."""

    def __init__(self, key: FencingKey) -> None:
        super().__init__(f"The job {key!r} waits no more.", key)


class Deliveries:
    """All deliveries of one gateway. All methods belong to one event loop."""

    def __init__(
        self,
        leases: Leases,
        store: Store,
        clock: Clock,
        rules: QueueRules,
        *,
        queues: Queues,
        running: Running,
        max_waiting: int,
        look_after: Callable[[Job], Awaitable[Lease | None]],
        doubt: Callable[[FencingKey], None],
    ) -> None:
        """`max_waiting` bounds the workers that wait; `look_after` answers the lease that a job runs under, None where
        that is over; `doubt` is told of a job of which nobody knows whether the store has delivered it."""
        self._leases = leases
        self._store = store
        self._clock = clock
        self._rules = rules
        self._queues = queues
        self._running = running
        self._max_waiting = max_waiting
        self._look_after = look_after
        self._doubt = doubt
        self._repeats: Repeats[tuple[str, str], list[Delivery]] = Repeats()
        self._unheard: dict[str, asyncio.Task[Any]] = {}
        """What is being delivered to a caller who has gone, and who can ask again, by the name of his call."""
        self._aside: dict[FencingKey, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        """What has been found and cannot be delivered: when it comes back to its queue, and how."""
        leases.on_end.append(self.free)
        self._beside = Beside()
        self.delivered = 0
        """How many deliveries this process has made."""

    async def stop(self) -> None:
        """Nothing is delivered any more."""
        await self._beside.stop()

    async def receive(self, queue: str, wish: Wish, may_have: MayHave | None = None) -> list[Delivery]:
        """Jobs, as soon as there is one, at most `wish.most`; none if there is none for `wish.wait_s`. Asked again with
        the same idempotency key, the same jobs, as long as they are held. `may_have` says which keys the worker may
        use. Raises `UnknownQueue`, `RepeatedReceive`, `TryAgain` (HandoverPending: ask again; Overloaded, Draining),
        `StoreUnavailable`."""
        rule = self._rules.of(queue)
        if self._queues.dismissed:
            raise TryAgain(Reason.DRAINING, "The gateway is being stopped.", retry_after_s=1)
        if self._queues.workers >= self._max_waiting and wish.wait_s:
            told = "Too many workers wait for jobs already. Send the request again."
            raise TryAgain(Reason.OVERLOADED, told, retry_after_s=1)
        if wish.idempotency_key is None:
            return await self._receive(queue, rule, wish, self._clock.nonce(), may_have)
        delivery = f"{quote(queue, safe='')}/{wish.idempotency_key}"
        return await self._repeats.answer(
            (queue, wish.idempotency_key),
            (wish.holder, wish.visibility_s, wish.most),
            lambda: self._beside.run(self._receive(queue, rule, wish, delivery, may_have)),
            RepeatedReceive,
        )

    async def _receive(
        self, name: str, rule: QueueRule, wish: Wish, delivery: str, may_have: MayHave | None
    ) -> list[Delivery]:
        if wish.idempotency_key is not None and (again := await self._again(delivery, wish)):
            return again
        deadline = self._clock.monotonic() + wish.wait_s
        with self._queues.at(name) as queue:
            while (first := await queue.take(deadline - self._clock.monotonic(), may_have)) is not None:
                places = [first, *queue.take_more(wish.most - 1, may_have)]
                work = self._beside.run(self._deliver(queue, places, rule, wish, delivery))
                try:
                    deliveries = await answer_of(work)
                except asyncio.CancelledError:
                    if wish.idempotency_key is None:
                        work.add_done_callback(self._recall)
                    else:
                        self._unheard[delivery] = work
                        work.add_done_callback(lambda _: self._unheard.pop(delivery))
                    raise
                if deliveries is not None:
                    return deliveries
        return []

    async def _deliver(
        self, queue: Queue, places: Sequence[Place], rule: QueueRule, wish: Wish, delivery: str
    ) -> list[Delivery] | None:
        """None where nothing of it can be delivered now."""
        takes = (self._take(queue, place, rule, wish, delivery) for place in places)
        taken = await asyncio.gather(*takes, return_exceptions=True)
        jobs = [job for job in taken if isinstance(job, Job)]
        if jobs:
            return await self._told(jobs, wish)
        for outcome in taken:
            if isinstance(outcome, BaseException):
                raise outcome
        return None

    def _recall(self, work: asyncio.Task[list[Delivery] | None]) -> None:
        """There is nobody any more to be told."""
        if not work.cancelled() and work.exception() is None:
            for one in work.result() or ():
                self._beside.run(self._give_back(one.lease))

    async def _give_back(self, lease: Lease) -> None:
        with suppress(LeaseError, FenceError):
            await self._leases.release(lease.key, lease.token)

    async def _again(self, delivery: str, wish: Wish) -> list[Delivery]:
        """What an earlier call of the same idempotency key was given, as far as it is still held."""
        if (work := self._unheard.get(delivery)) is not None:
            await asyncio.wait({work})
        held = []
        for job in await self._store.jobs.delivered_by(delivery):
            lease = await self._look_after(job)
            if lease is not None:
                if lease.holder != wish.holder:
                    raise RepeatedReceive
                held.append(job)
        return await self._told(held, wish) if held else []

    async def _take(self, queue: Queue, place: Place, rule: QueueRule, wish: Wish, delivery: str) -> Job | None:
        """Have the job delivered to this worker; None where that cannot be now."""
        key = FencingKey(place.key)
        delivered: Job | None = None

        async def call(_: FencingKey, wanted: GrantWanted, event: Event) -> Granted:
            nonlocal delivered
            try:
                change = await self._store.jobs.deliver(key, wanted, event)
            except StoreUnavailable:
                self._doubt(key)
                raise
            if change.done and change.job is not None:
                delivered = change.job
                self._running.note(delivered)
            elif change.job is None or change.job.state is not JobState.WAITING:
                raise _NotWaiting(key)
            return Granted(change.fence, change.fence.floor if change.done else 0)

        visibility_s = rule.visibility_s if wish.visibility_s is None else wish.visibility_s
        try:
            await self._leases.take(
                key,
                wish.holder,
                visibility_s,
                grant_id=delivery,
                call=call,
                repeatable=wish.idempotency_key is not None,
                request_id=wish.request_id,
            )
        except _NotWaiting:
            queue.decided(key)
            return None
        except Held as held:
            # Leased without the queue: the others do not wait for that.
            self._set_aside(key, partial(queue.put_back, place), max(held.free_in_s or AGAIN_S, MIN_WAIT_S))
            return None
        except LeaseError as error:
            _log.warning("job-not-deliverable", fence_key=key, reason=error.message)
            queue.decided(key)
            return None
        except BaseException:
            queue.put_back(place)
            raise
        assert delivered is not None, "what has been granted has been delivered"
        queue.decided(key)
        self.delivered += 1
        return delivered

    def _set_aside(self, key: FencingKey, put_back: Callable[[], None], for_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(for_s, self.free, key)
        self._aside[key] = (timer, put_back)

    def free(self, key: FencingKey, *_: object) -> None:
        """The lease has ended that was in the way of a delivery, or should have."""
        timer, put_back = self._aside.pop(key, (None, None))
        if timer is not None and put_back is not None:
            timer.cancel()
            put_back()

    async def _told(self, jobs: Sequence[Job], wish: Wish) -> list[Delivery]:
        """Await the hand-overs: those that are complete soon are answered, or else the first that is. Of the others the
        leases know that they are pending. Raises `TryAgain` where none is complete in time."""
        tasks = {job.key: asyncio.ensure_future(self._confirm(job, wish)) for job in jobs}
        pending = set(tasks.values())
        try:
            ready: list[Delivery] = []
            first = True
            while pending and not ready:
                when = asyncio.ALL_COMPLETED if first else asyncio.FIRST_COMPLETED
                _, pending = await asyncio.wait(pending, timeout=READY_S if first else None, return_when=when)
                first = False
                ready = [task.result() for task in tasks.values() if task.done() and not task.exception()]
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        errors = [error for task in tasks.values() if not task.cancelled() and (error := task.exception())]
        if not ready and errors:
            again = [error for error in errors if isinstance(error, TryAgain)]
            if again:
                raise again[0]
            if not all(isinstance(error, LeaseError) for error in errors):
                raise errors[0]
        return ready

    async def _confirm(self, job: Job, wish: Wish) -> Delivery:
        lease = await self._leases.confirm(FencingKey(job.key), Token(job.token), request_id=wish.request_id)
        return Delivery(job, lease)
