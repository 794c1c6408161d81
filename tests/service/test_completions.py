"""Completions (gateway/service/completions.py), where the store fails; what else they promise: tests/server/control."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import Reason, Refused
from gateway.core.job import Output
from gateway.core.keys import Token, TokenLimits
from gateway.service.completions import Completions
from gateway.service.job_errors import OutputNotVerified
from gateway.service.jobs import Jobs
from gateway.service.leases import Leases
from gateway.service.queues import QueueRules
from gateway.stores.base import StoreUnavailable
from gateway.upstream.base import UpstreamRequest
from tests.service.between import Call, answers_late, fails, next_call, preceded
from tests.service.job_desk import J, at, desk
from tests.service.rebuild_desk import Trouble
from tests.service.rig import BUCKET, JOB, Fault, elapsed, refusal, rig, rule
from tests.virtual_time import run


def test_a_token_whose_raise_failed_after_it_was_durable_completes() -> None:
    """Found by simulation: the store knew the token to hold the floor, and the gate did not."""

    async def main() -> None:
        r = await rig()
        await r.put(1, b"A")
        leases = Leases(r.fences)
        jobs = Jobs(leases, r.store, r.writes.clock, QueueRules())
        completions = Completions(r.fences, leases, jobs, r.upstream, r.rules)
        answers_late(r.store, "raise_floor", denied=True)
        assert (await refusal(completions.complete(J, Token(2)))).reason is Reason.STORE_UNAVAILABLE
        job = await completions.complete(J, Token(2))
        assert job.completion is not None
        assert job.completion.token == 2
        assert (await refusal(r.put(2, b"B"))).reason is Reason.SEALED
        assert (await refusal(r.put(1, b"A"))).reason is Reason.STALE_TOKEN

    run(main())


def test_a_completion_that_is_told_after_the_job_was_reopened_and_delivered_leaves_that_alone() -> None:
    """Found by the explorer: the delivery was forgotten with the completed one, and stayed with nobody."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        assert await d.received() == ("j", 1, 1)
        await at(31)

        async def told_late(complete: Call, *asked: Any) -> Any:
            change = await complete(*asked)
            await d.jobs.reopen(J, "again")
            assert await d.received() == ("j", 2, 1)
            return change

        next_call(d.store.jobs, "complete", told_late)
        await completions.complete(J, Token(1))
        assert await d.received(wait_s=60) == ("j", 3, 2)

    run(main())


def test_a_job_completed_at_the_moment_at_which_its_token_is_sealed_comes_back() -> None:
    """Found by simulation: an operator's seal reaches the disk while the completion is recorded. Its worker is told so,
    and not that the job has been completed; the job is delivered again."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        assert await d.received() == ("j", 1, 1)
        preceded(d.store.jobs, "complete", lambda: d.store.seal(J, 1))
        assert (await refusal(completions.complete(J, Token(1)))).reason is Reason.SEALED
        assert await d.received(wait_s=60) == ("j", 2, 2)

    run(main())


def test_a_completion_that_the_store_did_and_denied_lets_nothing_pass() -> None:
    """Found by the explorer: the job was completed for all to see, and a write of its token passed and landed after
    that, since the gate had not been told. It stays closed until that is known."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        assert await d.received() == ("j", 1, 1)

        async def denied(complete: Call, *asked: Any) -> Any:
            await complete(*asked)
            d.store.broken = True
            raise StoreUnavailable("the disk is away")

        next_call(d.store.jobs, "complete", denied)
        assert (await refusal(completions.complete(J, Token(1)))).reason is Reason.STORE_UNAVAILABLE
        assert (await refusal(d.rig.put(1, b"late"))).reason is Reason.HANDOVER_PENDING
        await at(10)
        d.store.broken = False
        await at(12)
        assert (await refusal(d.rig.put(1, b"late"))).reason is Reason.SEALED
        job = await completions.complete(J, Token(1))
        assert job.completion is not None
        assert job.completion.token == 1
        await completions.stop()

    run(main())


@pytest.mark.parametrize("again_after_s", [0, 5])
def test_a_completion_that_the_store_did_not_do_leaves_the_gate_open(again_after_s: float) -> None:
    """As soon as that is known, by itself or by the next call: what it writes then is completed by that."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        assert await d.received() == ("j", 1, 1)
        fails(d.store.jobs, "complete", StoreUnavailable("the disk is away"))
        assert (await refusal(completions.complete(J, Token(1)))).reason is Reason.STORE_UNAVAILABLE
        await at(again_after_s)
        if again_after_s:
            await d.rig.put(1, b"again")
        assert (await completions.complete(J, Token(1))).completion is not None
        await completions.stop()

    run(main())


def test_a_completion_that_fails_opens_no_gate_that_another_has_closed() -> None:
    """R3: two complete the same work at once. One finds its output missing; the other still looks at its own, and until
    it has been recorded no write of the token passes."""

    async def main() -> None:
        r = await rig()
        await r.put(1, b"A")
        leases = Leases(r.fences)
        completions = Completions(
            r.fences, leases, Jobs(leases, r.store, r.writes.clock, QueueRules()), r.upstream, r.rules
        )
        read, looked = r.upstream.read, asyncio.Event()

        async def slow(request: UpstreamRequest, body: bytes = b"") -> Any:
            if request.raw_key == JOB:
                await looked.wait()
            return await read(request, body)

        r.upstream.read = slow  # type: ignore[method-assign]
        missing = completions.complete(J, Token(1), outputs=[Output(BUCKET, "renders/j/none")])
        there = asyncio.ensure_future(completions.complete(J, Token(1), outputs=[Output(BUCKET, JOB)]))
        with pytest.raises(OutputNotVerified):
            await missing
        await asyncio.sleep(1)
        assert (await refusal(r.put(1, b"late", "renders/j/log"))).reason is Reason.HANDOVER_PENDING
        looked.set()
        assert (await there).completion is not None

    run(main())


def test_a_completion_that_is_overtaken_while_it_waits_is_told_at_once() -> None:
    """R3: it waits for a send in doubt; a higher token comes."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        d.rig.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(d.rig.put(1, b"A"))
        completing = asyncio.create_task(completions.complete(J, Token(1)))
        await asyncio.sleep(1)
        await d.fences.found(J, Token(2), "on an object")
        error, took_s = await elapsed(refusal(completing))
        assert isinstance(error, Refused)
        assert (error.reason, took_s) == (Reason.STALE_TOKEN, 0)

    run(main())


@pytest.mark.parametrize("when", ["looked", "ended"])
def test_a_completion_whose_lease_is_overtaken_meanwhile_is_refused(when: str) -> None:
    """R3: nothing is recorded for a token that holds the key no more."""

    async def main() -> None:
        d = await desk()
        completions = Completions(d.fences, d.leases, d.jobs, d.rig.upstream, d.rig.rules)
        lease = await d.leases.acquire(J, "A", 30)
        await d.rig.put(lease.token, b"A")
        owner, name = (d.rig.upstream, "read") if when == "looked" else (d.leases, "end")
        call = getattr(owner, name)

        async def overtaken(*given: Any) -> Any:
            await d.fences.found(J, Token(9), "on an object")
            return await call(*given)

        setattr(owner, name, overtaken)
        error = await refusal(completions.complete(J, lease.token, outputs=[Output(BUCKET, JOB)]))
        assert (error.reason, error.floor) == (Reason.STALE_TOKEN, 9)
        assert (await d.store.fence(J)).completed_token == 0

    run(main())


def test_a_completion_raises_no_floor_beyond_its_rules_limits() -> None:
    """R10: it is a call like any other."""

    async def main() -> None:
        r = await rig(rule(limits=TokenLimits(first_token=100, jump=10)))
        leases = Leases(r.fences)
        jobs = Jobs(leases, r.store, r.writes.clock, QueueRules())
        completions = Completions(r.fences, leases, jobs, r.upstream, r.rules)
        assert (await refusal(completions.complete(J, Token(101)))).reason is Reason.TOKEN_JUMP
        assert await r.floor() == 0

    run(main())


def test_an_output_that_the_store_does_not_show_is_not_verified() -> None:
    """As one under its writer's own encryption key: nobody knows who has written it."""

    async def main() -> None:
        r = await rig(upstream=Trouble(BUCKET))
        assert isinstance(r.upstream, Trouble)
        await r.put(1, b"A")
        r.upstream.status[JOB] = 400
        leases = Leases(r.fences)
        jobs = Jobs(leases, r.store, r.writes.clock, QueueRules())
        completions = Completions(r.fences, leases, jobs, r.upstream, r.rules)
        with pytest.raises(OutputNotVerified, match="cannot be looked at"):
            await completions.complete(J, Token(1), outputs=[Output(BUCKET, JOB)])

    run(main())
