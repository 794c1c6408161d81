"""Completion: recorded once, with the token that did it, when all that it has written is known to be there (R3).

The gate of the key is closed to the token, what has been sent is waited for, the outputs are looked at, and one
transaction records and seals. Where an output is not as it is said to be, the gate opens again and nothing has
happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from urllib.parse import quote, unquote

import structlog

from gateway.core.errors import Reason, Refused, TryAgain
from gateway.core.job import Completion, Job, Output
from gateway.core.keys import FencingKey, Ruleset, Token, key_in_metadata
from gateway.s3.errors import S3Error
from gateway.s3.fencing import object_state
from gateway.service.beside import Beside
from gateway.service.fences import Fences
from gateway.service.job_errors import AlreadyCompleted, OutputNotVerified
from gateway.service.jobs import Jobs
from gateway.service.lease_errors import Lost
from gateway.service.leases import Leases
from gateway.service.sending import head_of
from gateway.service.turns import Turns
from gateway.stores.job_base import JobChange
from gateway.stores.values import Fence
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamRequest

_log = structlog.get_logger(__name__)

LOOKS_AT_ONCE = 8
AGAIN_S = 1.0
"""When a store that failed is asked again what it has recorded."""


class Completions:
    """Completes jobs, also of keys that no queue knows."""

    def __init__(self, fences: Fences, leases: Leases, jobs: Jobs, upstream: Upstream, rules: Ruleset) -> None:
        self._store = fences.store
        self._clock = fences.clock
        self._fences = fences
        self._leases = leases
        self._jobs = jobs
        self._upstream = upstream
        self._rules = rules
        self._turns = Turns()
        self._beside = Beside()
        self._doubtful: dict[FencingKey, asyncio.Task[None]] = {}
        """Completions of which nobody knows yet whether the store has recorded them."""
        self.completed = 0
        """How many jobs this process has recorded as done."""

    async def complete(
        self,
        key: FencingKey,
        token: Token,
        *,
        result: str | None = None,
        outputs: Sequence[Output] = (),
        request_id: str = "",
    ) -> Job:
        """The job with its completion, recorded now or before by this very token; the first record stays. `result` is
        JSON text. Raises `AlreadyCompleted` (by another token), `OutputNotVerified`, `Refused` (stale, sealed),
        `Malformed` (TokenNotIssued, TokenJump), `TryAgain` (HandoverPending, UpstreamUnavailable, StoreUnavailable),
        `StoreUnavailable`."""
        # A caller that goes away must not open the gate while his completion is being recorded.
        return await self._turns.to_its_end(
            key, self._beside, lambda: self._complete(key, token, result, tuple(outputs), request_id)
        )

    async def stop(self) -> None:
        """What is still waited for, or looked at, is completed no more."""
        await self._beside.stop()

    async def _complete(
        self, key: FencingKey, token: Token, result: str | None, outputs: tuple[Output, ...], request_id: str
    ) -> Job:
        fence = await self._fences.state(key)
        if (doubtful := self._doubtful.pop(key, None)) is not None:
            doubtful.cancel()  # now it is known
            await asyncio.wait([doubtful])
        if not fence.completed_token:
            if token > fence.floor:
                await self._take_note(key, token, request_id)
            async with AsyncExitStack() as gate:
                await gate.enter_async_context(self._fences.closed(key, token))
                await self._verify(key, token, outputs)
                try:
                    change = await self._record(key, token, result, outputs, request_id)
                except TryAgain:
                    self._doubtful[key] = self._beside.run(self._find_out(key, gate.pop_all()))
                    raise
            if change.done and change.job is not None:
                self.completed += 1
                self._jobs.completed(key, token)
                return change.job
            if not change.fence.completed_token:
                self._jobs.sealed(key, token)
                await self._take_note(key, token, request_id)  # which refuses it
        return await self._recorded(key, token)

    async def _find_out(self, key: FencingKey, gate: AsyncExitStack) -> None:
        """The store has failed, and may have recorded the completion all the same: the gate stays closed until that is
        known."""
        async with gate:
            while True:
                try:
                    await self._fences.state(key)
                except TryAgain as error:
                    _log.warning("completion-in-doubt", fence_key=key, reason=error.message)
                    await asyncio.sleep(AGAIN_S)
                else:
                    break
        self._doubtful.pop(key, None)

    async def _take_note(self, key: FencingKey, token: Token, request_id: str) -> None:
        """A token of elsewhere that is seen for the first time raises the floor like any other call."""
        limits = self._rules.limits_of(key)
        live = await self._fences.admit(key, token, cause="complete", request_id=request_id, limits=limits)
        self._fences.unpin(live)

    async def _record(
        self, key: FencingKey, token: Token, result: str | None, outputs: tuple[Output, ...], request_id: str
    ) -> JobChange:
        """Raises `Refused` where the token has been overtaken meanwhile."""
        held = (await self._fences.state(key)).held
        holder = held.holder if held is not None and held.token == token else ""
        completion = Completion(token, holder, result, outputs, self._clock.wall())
        change: JobChange | None = None

        async def seal() -> Fence:
            nonlocal change
            change = await self._store.jobs.complete(key, completion, request_id)
            return change.fence

        end = self._leases.end if holder else self._fences.end
        try:
            await end(key, token, seal)
        except Lost as lost:
            reason = Reason.SEALED if lost.sealed else Reason.STALE_TOKEN
            raise Refused(reason, lost.message, key=key, token=token, floor=lost.floor) from lost
        assert change is not None
        return change

    async def _recorded(self, key: FencingKey, token: Token) -> Job:
        job = await self._store.jobs.job(key)
        if job is None or job.completion is None:
            # Reopened since it was looked at.
            raise AlreadyCompleted(key, token)
        if job.completion.token != token:
            raise AlreadyCompleted(key, job.completion.token)
        return job

    async def _verify(self, key: FencingKey, token: Token, outputs: Sequence[Output]) -> None:
        """Raises `OutputNotVerified` for the first that is not there, or that was not written under this key by this
        token; `TryAgain` where nobody can tell."""
        for start in range(0, len(outputs), LOOKS_AT_ONCE):
            looks = (self._look(key, token, output) for output in outputs[start : start + LOOKS_AT_ONCE])
            for outcome in await asyncio.gather(*looks, return_exceptions=True):
                if outcome is not None:
                    raise outcome

    async def _look(self, key: FencingKey, token: Token, output: Output) -> None:
        request = UpstreamRequest("HEAD", output.bucket, quote(output.key, safe="/-_.~"), "", (), EMPTY_SHA256)
        try:
            head = await head_of(self._upstream, request, "the output")
        except S3Error as error:
            raise OutputNotVerified(key, output, f"it cannot be looked at: {error.message}") from error
        if head.status == 404:
            raise OutputNotVerified(key, output, "there is no such object")
        state = object_state(head.headers)
        if state.key is None:
            raise OutputNotVerified(
                key, output, "it has not been written under a fencing key, as where a rule's mode is observe or off"
            )
        if state.key != key_in_metadata(key):
            raise OutputNotVerified(key, output, f"it has been written under the key {unquote(state.key)!r}")
        if state.token != token:
            raise OutputNotVerified(key, output, f"it has been written by token {state.token}, not by {token}")
