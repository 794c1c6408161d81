"""The client for code without asyncio: the same engine, and calls that block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from gateway.client.background import Ended
from gateway.client.engine import Connected
from gateway.client.guarded import Guarded, GuardedJob, GuardedLease, in_words
from gateway.client.records import JobRecord


class _Context(Guarded):
    """Entered: obtained, and renewed from then on. Left: ended as the subclass says."""

    def __enter__(self) -> Self:
        self._background.call(self._hold.begin(), self._hold.abandon)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None and not self._hold.ended:
                self.check()
            self._end(error)
        finally:
            self._leave(self._hold.release)

    def _end(self, error: BaseException | None) -> None:
        """Whatever the end of the body means."""

    def _leave(self, farewell: Callable[[], Awaitable[None]]) -> None:
        with suppress(Ended):  # there is nobody left to tell
            self._background.call(self._hold.leave(farewell), partial(self._hold.leave, farewell))

    def complete(self, result: object = None, outputs: Sequence[str] = ()) -> None:
        """As `Lease.complete`."""
        self._background.call(self._hold.complete(result, outputs))

    def release(self) -> None:
        """As `Lease.release`."""
        self._background.call(self._hold.release())


class SyncLease(_Context, GuardedLease):
    """A lease as a context. Left in whatever way, it is given back unless it has been completed. Nothing can interrupt
    a thread that computes or blocks: when the lease is lost, `lost` is set, callbacks are called, the next `check` (and
    the next request of a `fenced_s3` client) raises `LeaseLost`, and so does the end of the context."""


class SyncJob(_Context, GuardedJob):
    """A job as a context. Left normally, the job is completed without a result, unless it has been ended within; left
    by an exception, it has failed; interrupted (KeyboardInterrupt, SystemExit), it is given back. A call within that
    was to end it and did not is such an exception, also where it was caught. When its lease is lost, as `SyncLease`."""

    def fail(self, error: str, *, retry: bool = True, delay_s: float | None = None) -> None:
        """As `Job.fail`."""
        self._background.call(self._hold.fail(error, retry=retry, delay_s=delay_s))

    def _end(self, error: BaseException | None) -> None:
        caught = self._hold.not_ended_for if error is None else None
        failure = error or caught
        if failure is None and not self._hold.ended:
            self.complete()
        elif isinstance(failure, Exception):
            told = in_words(failure)
            self._leave(lambda: self._hold.fail(told, retry=True, delay_s=None))
        if caught is not None:
            raise caught


class SyncGatewayClient(Connected):
    """`GatewayClient` for code without asyncio; safe to use from several threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `GatewayClient.close`."""
        self.engine.close()

    def lease(self, key: str, *, ttl_s: float = 30.0, wait_s: float = 0.0) -> SyncLease:
        """As `GatewayClient.lease`."""
        return SyncLease(self.engine.lease(key, ttl_s, wait_s), self.engine.background)

    def receive(
        self, queue: str, *, visibility_s: float | None = None, wait_s: float = 20.0, max_jobs: int = 1
    ) -> list[SyncJob]:
        """As `GatewayClient.receive`."""
        receiving = self.engine.receiving(queue, visibility_s, wait_s, max_jobs)
        holds = self.engine.background.call(receiving.jobs(), receiving.give_back)
        return [SyncJob(hold, self.engine.background) for hold in holds]

    def submit(
        self, queue: str, key: str, payload: object = None, *, priority: int | None = None, delay_s: float | None = None
    ) -> JobRecord:
        """As `GatewayClient.submit`."""
        return self.engine.background.call(self.engine.submit(queue, key, payload, priority, delay_s))

    def job(self, key: str) -> JobRecord:
        """As `GatewayClient.job`."""
        return self.engine.background.call(self.engine.job(key))

    def check(self, key: str, token: int) -> None:
        """As `GatewayClient.check`."""
        self.engine.background.call(self.engine.check(key, token))
