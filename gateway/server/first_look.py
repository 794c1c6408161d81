"""What the gateway asks of the store behind by itself, a list of buckets, and what the answer tells of its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from gateway.core.errors import FenceError, TryAgain
from gateway.s3.xml import error_code, texts_of
from gateway.service.listings import MAX_LIST_BYTES
from gateway.service.record import NoBucket
from gateway.service.records import Records
from gateway.service.refusals import refuse_our_own_fault
from gateway.stores.base import Store, StoreUnavailable
from gateway.telemetry import Telemetry
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamLost, UpstreamNotReached, UpstreamRequest

LOOKS_AT_A_TIME = 8
READY_LOOK_S = 1.0
"""Those who ask for readiness wait a second or a few."""

_LOOK = UpstreamRequest("GET", None, "", "", (), EMPTY_SHA256)
_LISTED = b"ListAllMyBucketsResult"


class FirstLook:
    """Logs soon after the start what the first client would find out: whether the store is there and takes our
    credentials, and which buckets another database rules."""

    def __init__(
        self, upstream: Upstream, store: Store, records: Records, telemetry: Telemetry, *, unsigned: bool
    ) -> None:
        """`unsigned`: the settings name no credentials for the upstream."""
        self._upstream = upstream
        self._store = store
        self._records = records
        self._telemetry = telemetry
        self._unsigned = unsigned
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look; nobody waits for it."""
        self._task = asyncio.create_task(self._look())

    async def over(self) -> None:
        """Returns when what has begun is over."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Look no further."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        try:
            response = await self._upstream.read(_LOOK)
            body = await response.read(MAX_LIST_BYTES)
            if fault := fault_of(response.status, body, unsigned=self._unsigned):
                self._telemetry.warning("upstream-unusable", reason=fault)
            await self._look_at_buckets(texts_of(body, "Name") if response.status == 200 else [])
        except (UpstreamNotReached, UpstreamLost, FenceError) as error:
            self._telemetry.warning("upstream-unusable", reason=str(error))
        except StoreUnavailable as error:
            self._telemetry.warning("buckets-not-looked-at", reason=str(error))

    async def _look_at_buckets(self, names: Iterable[str]) -> None:
        """Tell at the start what has to be rebuilt before anything fenced is served. Those who may not list buckets are
        told of the ones that the database knows; of others, at their first fenced write. Raises `StoreUnavailable`."""
        known = {ruling.bucket for ruling in await self._store.rulings()}
        waiting = iter(sorted(known.union(names)))

        async def look() -> None:
            for name in waiting:
                with suppress(TryAgain, NoBucket):
                    await self._records.look_at(name)

        await asyncio.gather(*(look() for _ in range(LOOKS_AT_A_TIME)))


def fault_of(status: int, body: bytes, *, unsigned: bool) -> str | None:
    """What is wrong with `[upstream]`; None: nothing that can be seen from here. `unsigned`: it names no credentials.

    Raises `TryAgain` (UpstreamUnavailable) where the store refuses the gateway's own credentials or clock."""
    code = error_code(body)
    refuse_our_own_fault(code)
    if code is None and _LISTED not in body and (body or status == 200):
        return f"it answers {status} to a list of buckets, with nothing of S3's: check [upstream] url"
    if unsigned and status == 403:
        return "it answers 403 to what is not signed, and [upstream] names no access_key and secret_key to sign with"
    return None


async def tls_fault(upstream: Upstream, last: Callable[[], str | None]) -> str | None:
    """What keeps TLS from the upstream, as `last` tells it. As long as something does, it is tried anew: no request may
    come to do so while the gateway says that it is not ready."""
    if last() is not None:
        with suppress(UpstreamNotReached, UpstreamLost, TimeoutError):
            async with asyncio.timeout(READY_LOOK_S):
                (await upstream.read(_LOOK)).close()
    return last()
