"""Takes what waits for one webhook to its receiver: at least once, in order for each key.

Of each key the oldest announcement is at hand, its *head*; the next of the key follows when the head has been taken,
or given up. A head that is not taken is posted again, later and later: a key that the receiver chokes on holds up no
other.

When nothing has got through for a while the receiver is *down*: then posts go one at a time, with pauses. The first
that is taken ends it, and all that waits goes at once.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gateway.clock import Clock
from gateway.service.alarms import MIN_WAIT_S
from gateway.stores.base import Outbox, StoreUnavailable
from gateway.stores.values import Waiting

_log = structlog.get_logger(__name__)

PAGE = 256
MAX_HEADS = 10_000
"""So many keys are at hand; where that many are held up, others wait until one of them is not."""
FAILURES_UNTIL_DOWN = 8
"""So many posts in a row that are not taken, whatever their keys."""
STOP_GRACE_S = 1.0
"""How long posts under way may go on when the gateway stops; what is cut is posted again by the next run."""
TOLD_EVERY_S = 60.0
"""The log is told of failures, and of what is left out, so often at most."""
_MAX_DOUBLINGS = 32


class NotTaken(Exception):
    """The receiver has not taken a post. The message says why; it holds no secret, and of the URL at most the host."""

    def __init__(self, why: str, *, pause_s: float = 0.0, gone: bool = False) -> None:
        """`pause_s`: how long the receiver wants to be left alone. `gone`: it wants no more posts at all."""
        super().__init__(why)
        self.pause_s = pause_s
        self.gone = gone


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a courier tries, in seconds. Each pause is drawn between half of what it may be and the whole."""

    first_s: float = 1.0
    """After the first failure of an announcement; twice as long after each further one."""
    most_s: float = 300.0
    """Never longer than this."""
    down_s: float = 30.0
    """The longest pause between two posts to a receiver that is down."""
    wish_s: float = 3600.0
    """The longest that a receiver's wish to be left alone is heeded; one that is gone is asked again after this."""
    at_a_time: int = 8
    """Posts under way."""


@dataclass(eq=False, slots=True)
class _Head:
    """The oldest announcement of a key."""

    row: Waiting
    last: int
    """The highest serial of the key that is known to wait."""
    attempts: int = 0
    running: bool = False
    dropped: bool = False


class Courier:
    """One webhook's. `post` raises `NotTaken`; else the receiver has taken the announcement."""

    def __init__(
        self,
        webhook: str,
        post: Callable[[Waiting], Awaitable[None]],
        outbox: Outbox,
        clock: Clock,
        *,
        keep_s: float,
        max_waiting: int,
        pace: Pace,
    ) -> None:
        """An announcement is given up that is not taken `keep_s` after what it tells of; and the oldest are, where more
        than `max_waiting` wait."""
        self.webhook = webhook
        self.waiting = 0
        """How many wait, those under way included."""
        self.taken = 0
        self.failed = 0
        """Posts that were not taken."""
        self.dropped: Counter[str] = Counter()
        """Announcements that were given up, by reason."""
        self.last_error: str | None = None
        self.last_error_at = 0.0
        self.last_taken_at = 0.0
        self.gone = False
        """The receiver has said that it wants no more posts."""
        self._post = post
        self._outbox = outbox
        self._clock = clock
        self._keep_s = keep_s
        self._max_waiting = max_waiting
        self._pace = pace
        self._heads: dict[str, _Head] = {}
        self._fresh: deque[_Head] = deque()
        self._later: list[tuple[float, int, _Head]] = []
        """A heap: those that failed, by when they are due."""
        self._finished: deque[_Head] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._retrying = 0
        self._turn_of_later = False
        self._read_to = 0
        self._unread = True
        self._failures = 0
        self._not_before = -math.inf
        self._told_at: dict[str, float] = {}
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, waiting: int) -> None:
        """Take up what an earlier run has left, so many."""
        self.waiting += waiting
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave what waits to the next run."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._running:
            _, cut = await asyncio.wait(self._running, timeout=STOP_GRACE_S)
            for task in cut:
                task.cancel()
            await asyncio.gather(*cut, return_exceptions=True)

    def arrived(self, count: int) -> None:
        """So many more wait, durably."""
        self.waiting += count
        self._unread = True
        self._more.set()

    @property
    def down(self) -> bool:
        return self._failures >= FAILURES_UNTIL_DOWN

    @property
    def held_up(self) -> int:
        """How many keys have an announcement at hand that has been tried in vain."""
        return sum(head.attempts > 0 for head in self._heads.values())

    @property
    def oldest_at(self) -> float:
        """When the oldest that waits happened, seconds since the epoch; 0 where nothing waits."""
        return min((head.row.event.at for head in self._heads.values()), default=0.0)

    def leave_out(self, why: str, count: int) -> None:
        """Announcements are not even made."""
        self._drop(why, count)

    # --- which are at hand

    async def _run(self) -> None:
        while True:
            self._more.clear()
            try:
                if self.waiting > self._max_waiting:
                    await self._drop_oldest()
                await self._follow_up()
                await self._take_up()
                self._begin()
                pause_s = self._pause_s()
            except StoreUnavailable as error:
                self._note(str(error))
                pause_s = self._pace.first_s
            except Exception:
                _log.exception("internal-error", webhook=self.webhook)
                pause_s = self._pace.most_s
            await self._wait(pause_s)

    async def _take_up(self) -> None:
        """Have the heads of all keys at hand, as far as there is room."""
        while self._unread and len(self._heads) < MAX_HEADS:
            self._unread = False  # what arrives from here on says so
            try:
                rows = await self._outbox.waiting(self.webhook, self._read_to, PAGE)
            except StoreUnavailable:
                self._unread = True
                raise
            for row in rows:
                head = self._heads.get(row.event.key)
                if head is None:
                    self._put_at_hand(row, row.serial)
                else:
                    head.last = max(head.last, row.serial)
                self._read_to = row.serial
            self._unread = self._unread or len(rows) == PAGE
        if not self._heads and not self._unread:
            self.waiting = 0

    async def _follow_up(self) -> None:
        """After what is finished, the next of its key."""
        while self._finished:
            head, row = self._finished[0], None
            if head.last > head.row.serial:
                row = await self._outbox.next_of(self.webhook, head.row.event.key, head.row.serial)
            self._finished.popleft()
            del self._heads[head.row.event.key]
            if row is not None:
                self._put_at_hand(row, head.last)

    def _put_at_hand(self, row: Waiting, last: int) -> None:
        head = self._heads[row.event.key] = _Head(row, max(last, row.serial))
        self._fresh.append(head)

    async def _drop_oldest(self) -> None:
        """Make room, for a while: the oldest tenth and what is too much is given up."""
        dropped = await self._outbox.drop_oldest(self.webhook, self._max_waiting - self._max_waiting // 10)
        self.waiting = max(0, self.waiting - dropped.count)
        self._drop("oldest", dropped.count)
        for key, head in list(self._heads.items()):
            if head.row.serial <= dropped.up_to:
                head.dropped = True
                if not head.running and head not in self._finished:
                    del self._heads[key]
        self._fresh = deque(head for head in self._fresh if not head.dropped)
        self._later = [entry for entry in self._later if not entry[2].dropped]
        heapq.heapify(self._later)
        # What follows them has been read and forgotten.
        self._read_to, self._unread = min(self._read_to, dropped.up_to), True

    # --- which go

    def _begin(self) -> None:
        now = self._clock.monotonic()
        while len(self._running) < self._at_a_time and now >= self._not_before:
            head = self._next(now)
            if head is None:
                return
            head.running = True
            self._retrying += head.attempts > 0
            task = asyncio.create_task(self._deliver(head))
            self._running.add(task)
            task.add_done_callback(self._ended)

    @property
    def _at_a_time(self) -> int:
        return 1 if self.down else self._pace.at_a_time

    @property
    def _may_retry(self) -> bool:
        """Retries take half of the places at most: what is sound does not wait for what hangs."""
        return self._retrying < max(1, self._pace.at_a_time // 2)

    def _next(self, now: float) -> _Head | None:
        """New ones and those that failed take turns. To a receiver that is down the newest goes first: what it chokes
        on may be all that is old."""
        due = bool(self._later) and self._later[0][0] <= now and self._may_retry
        if due and (self._turn_of_later or not self._fresh):
            self._turn_of_later = False
            return heapq.heappop(self._later)[2]
        self._turn_of_later = True
        if not self._fresh:
            return None
        return self._fresh.pop() if self.down else self._fresh.popleft()

    def _pause_s(self) -> float | None:
        """Until there is something to do that nobody will tell of; None: there is nothing."""
        if len(self._running) >= self._at_a_time:
            return None
        due = [self._clock.monotonic()] if self._fresh else []
        if self._later and self._may_retry:
            due.append(self._later[0][0])
        return max(min(due), self._not_before) - self._clock.monotonic() if due else None

    async def _wait(self, timeout_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_s is None else max(timeout_s, MIN_WAIT_S)):
                await self._more.wait()

    # --- how they fare

    async def _deliver(self, head: _Head) -> None:
        retried = head.attempts > 0
        try:
            await self._post(head.row)
        except NotTaken as error:
            self._was_not_taken(head, error)
        except Exception:
            _log.exception("internal-error", webhook=self.webhook)
            self._was_not_taken(head, NotTaken("the gateway itself failed; its log says how"))
        else:
            self._was_taken(head)
        finally:
            head.running = False
            self._retrying -= retried

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._more.set()

    def _was_taken(self, head: _Head) -> None:
        self.taken += 1
        self.last_taken_at = self._clock.wall()
        if self.down or self.gone:
            now = self._clock.monotonic()
            self._later = [(now, serial, one) for _, serial, one in sorted(self._later)]
            _log.info("webhook-up", webhook=self.webhook, waiting=self.waiting)
        self._failures, self._not_before, self.gone = 0, -math.inf, False
        self._finish(head)

    def _was_not_taken(self, head: _Head, error: NotTaken) -> None:
        now = self._clock.monotonic()
        self.failed += 1
        self._failures += 1
        head.attempts += 1
        self._note(str(error))
        if self._failures == FAILURES_UNTIL_DOWN:
            _log.warning("webhook-down", webhook=self.webhook, reason=str(error), waiting=self.waiting)
        if error.gone and not self.gone:
            _log.warning("webhook-gone", webhook=self.webhook, reason=str(error), waiting=self.waiting)
        self.gone = error.gone
        pause_s = self._pace.wish_s if error.gone else min(error.pause_s, self._pace.wish_s)
        if self.down:
            pause_s = max(pause_s, self._backoff_s(self._failures - FAILURES_UNTIL_DOWN + 1, self._pace.down_s))
        if pause_s:
            self._not_before = max(self._not_before, now + pause_s)
        if head.dropped or self._clock.wall() - head.row.event.at > self._keep_s:
            if not head.dropped:
                self._drop("expired", 1)
            self._finish(head)
        else:
            due = now + self._backoff_s(head.attempts, self._pace.most_s)
            heapq.heappush(self._later, (due, head.row.serial, head))

    def _finish(self, head: _Head) -> None:
        if not head.dropped:
            self.waiting = max(0, self.waiting - 1)
            self._outbox.done(head.row)
        self._finished.append(head)

    def _backoff_s(self, failures: int, most_s: float) -> float:
        whole = min(self._pace.first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), most_s)
        return whole * (0.5 + 0.5 * self._clock.chance())

    # --- what is told

    def _note(self, why: str) -> None:
        self.last_error, self.last_error_at = why, self._clock.wall()
        if self._may_tell("webhook-fails"):
            _log.warning("webhook-fails", webhook=self.webhook, reason=why, waiting=self.waiting)

    def _drop(self, why: str, count: int) -> None:
        if not count:
            return
        self.dropped[why] += count
        if self._may_tell(why):
            _log.warning("webhook-dropped", webhook=self.webhook, reason=why, dropped=self.dropped[why])

    def _may_tell(self, what: str) -> bool:
        now = self._clock.monotonic()
        if now - self._told_at.get(what, -math.inf) < TOLD_EVERY_S:
            return False
        self._told_at[what] = now
        return True
