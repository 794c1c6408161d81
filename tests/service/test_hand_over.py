"""R1, R2, R3 and R5 on the real service: who may write, who is cancelled, who is waited for, and how long."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Outcome, Reason, TryAgain
from gateway.core.keys import FencingKey, Token, WithoutToken
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.values import EventKind
from tests.service.between import answers_late, fails
from tests.service.rig import DEAF, HONEST, Fault, Payload, elapsed, refusal, rig, rule
from tests.virtual_time import VirtualClock, run

BOTH = pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["conditional", "unconditional"])


@BOTH
def test_a_lower_token_is_refused_and_sends_nothing(capabilities) -> None:
    """R1: below the floor nothing goes upstream, and the object stays."""

    async def main() -> None:
        r = await rig(capabilities=capabilities)
        await r.put(34, b"B")
        sent = len(r.upstream.sent)
        error = await refusal(r.put(33, b"A"))
        assert (error.reason, error.floor, error.token, error.outcome) == (
            Reason.STALE_TOKEN,
            34,
            33,
            Outcome.NOT_APPLIED,
        )
        assert r.data() == b"B"
        assert len(r.upstream.sent) == sent

    run(main())


@BOTH
@pytest.mark.parametrize("size", [10, 100], ids=["at hand", "streamed"])
def test_overtaken_while_staging_it_never_becomes_visible(capabilities, size) -> None:
    """R2, R3: 33 has sent all but its last byte when 34 writes; 33 ends stale, the object is 34's."""

    async def main() -> None:
        r = await rig(capabilities=capabilities)
        slow = Payload(length=size)
        slow.give(b"a" * (size - 1))
        writing = asyncio.create_task(r.put(33, slow))
        await slow.wanted.wait()
        await asyncio.sleep(0)
        await r.put(34, b"B")
        slow.give(b"a")
        slow.end()
        error = await refusal(writing)
        assert error.reason is Reason.STALE_TOKEN
        assert r.data() == b"B"

    run(main())


def test_a_streamed_write_is_interrupted_at_once() -> None:
    """R3: the staged write is answered when it is overtaken, not when its client sends on."""

    async def main() -> None:
        r = await rig()
        stuck = Payload(length=100)
        stuck.give(b"a" * 50)
        writing = asyncio.create_task(r.put(33, stuck))
        await stuck.wanted.wait()
        await asyncio.sleep(0)
        await r.put(34, b"B")
        assert (await refusal(writing)).reason is Reason.STALE_TOKEN

    run(main())


def test_a_cancelled_handler_stays_cancelled() -> None:
    """A task that ends for another reason while its send is overtaken is not turned into a refusal."""

    async def main() -> None:
        r = await rig()
        stuck = Payload(length=100)
        writing = asyncio.create_task(r.put(33, stuck))
        await stuck.wanted.wait()
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert not r.fences.unsettled("j")

    run(main())


def test_a_committing_lower_write_is_waited_for() -> None:
    """R3: 34 is answered only after 33's send has been answered."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.SILENT]
        old = asyncio.create_task(r.put(33, b"A"))
        await r.upstream.reached.wait()
        new = asyncio.create_task(r.put(34, b"B"))
        await asyncio.sleep(5)
        assert not new.done()
        assert await r.floor() == 34
        r.upstream.silent.set()
        assert (await old).status == 200
        assert (await new).status == 200
        assert r.data() == b"B"

    run(main())


def test_same_token_sends_pass_side_by_side() -> None:
    """R3: writes of one token to two objects do not wait for one another."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.SILENT]
        first = asyncio.create_task(r.put(33, b"A"))
        await r.upstream.reached.wait()
        _, seconds = await elapsed(r.put(33, b"B", key="renders/j/other"))
        assert seconds == 0
        r.upstream.silent.set()
        await first

    run(main())


LOSSES = [Fault.LOST_DROPPED, Fault.LOST_LATE, Fault.ERROR_500_DROPPED]


@BOTH
@pytest.mark.parametrize("fault", LOSSES, ids=lambda f: f.name)
def test_a_send_in_doubt_holds_the_hand_over_for_the_settle_timeout(capabilities, fault) -> None:
    """R5: no answer, a reset or a 500 leave doubt; only the settle time-out lets the next token in."""

    async def main() -> None:
        r = await rig(capabilities=capabilities, timing=Timing(handover_wait_s=60))
        r.upstream.faults = [fault]
        error = await refusal(r.put(33, b"A"))
        assert (error.reason, error.outcome) == (Reason.IN_DOUBT, Outcome.UNKNOWN)
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(30, abs=0.1)
        assert r.fences.settled_by_timeout == 1
        assert r.data() == b"B"
        kinds = [event.kind for event in await r.store.events("j", None, 10)]
        assert EventKind.IN_DOUBT in kinds
        assert EventKind.SETTLED_BY_TIMEOUT in kinds

    run(main())


def test_a_hand_over_that_takes_too_long_is_503_and_goes_on_later() -> None:
    """R3: at most handover_wait_s, then 503 with Retry-After; the floor stays raised; asked again it passes."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"A"))
        error, seconds = await elapsed(refusal(r.put(34, b"B")))
        assert error.reason is Reason.HANDOVER_PENDING
        assert seconds == pytest.approx(20, abs=0.1)
        assert 9 < error.retry_after_s < 11
        assert await r.floor() == 34
        assert (await refusal(r.put(33, b"A"))).reason is Reason.STALE_TOKEN
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(10, abs=0.1)

    run(main())


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.ERROR_500_APPLIED], ids=lambda f: f.name)
def test_its_own_nonce_settles_a_send_and_answers_it(fault) -> None:
    """R5: the answer is lost, the object bears the send's nonce: applied, 200, and nobody waits."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [fault]
        result = await r.put(33, b"A")
        assert result.status == 200
        assert result.header("etag") == r.object().etag
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == 0

    run(main())


def test_a_late_landing_is_found_and_ends_the_wait() -> None:
    """R5: the nonce that appears later settles the send before its time-out."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=60))
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(33, b"A"))
        next_write = asyncio.create_task(r.put(34, b"B"))
        await asyncio.sleep(5)
        assert not next_write.done()
        r.upstream.land()
        _, seconds = await elapsed(next_write)
        assert seconds < 5
        assert r.data() == b"B"

    run(main())


def test_another_attempts_success_settles_nothing() -> None:
    """Counterexample of R5: lost answer, a retry that succeeds, delete, hand-over, late landing over nothing."""

    async def main() -> None:
        r = await rig(capabilities=DEAF, timing=Timing(handover_wait_s=60))
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(33, b"A"))
        await r.put(33, b"A again")
        await r.delete(33)
        _, seconds = await elapsed(r.delete(34))
        assert seconds == pytest.approx(30, abs=0.1)

    run(main())


def test_a_final_error_settles() -> None:
    """R5: AccessDenied is final; the next token does not wait."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.REFUSED_403]
        assert (await r.put(33, b"A")).status == 403
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == 0

    run(main())


def test_what_was_never_sent_is_not_in_doubt() -> None:
    """R5: no connection, no doubt: 503 NotApplied, and the next token does not wait."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.NOT_REACHED]
        error = await refusal(r.put(33, b"A"))
        assert (error.reason, error.outcome) == (Reason.UPSTREAM_UNAVAILABLE, Outcome.NOT_APPLIED)
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == 0

    run(main())


def test_check_is_a_hand_over() -> None:
    """R3: whatever raises a floor is answered only when nothing lower can land."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=60))
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"A"))
        live, seconds = await elapsed(r.fences.admit("j", 34, cause="check"))
        r.fences.unpin(live)
        assert seconds == pytest.approx(30, abs=0.1)

    run(main())


@pytest.mark.parametrize(
    ("policy", "before", "after"),
    [
        (WithoutToken.UNTIL_FENCED, 200, Reason.TOKEN_REQUIRED),
        (WithoutToken.REQUIRE, 200, Reason.TOKEN_REQUIRED),
    ],
)
def test_a_write_without_token_is_token_zero(policy, before, after) -> None:
    """R3, R11: the first raise shuts it out (whether `require` lets it begin is the server's question)."""

    async def main() -> None:
        r = await rig(rule(without_token=policy))
        assert (await r.put(0, b"plain")).status == before
        assert not [n for n, _ in r.object().metadata if "fencing" in n]
        await r.put(1, b"A")
        assert (await refusal(r.put(0, b"plain"))).reason is after
        assert r.data() == b"A"

    run(main())


def test_a_staged_write_without_token_is_cancelled_by_the_first_raise() -> None:
    """R3: it is answered 428, and nothing of it is visible."""

    async def main() -> None:
        r = await rig()
        plain = Payload(length=100)
        writing = asyncio.create_task(r.put(0, plain))
        await plain.wanted.wait()
        await asyncio.sleep(0)
        await r.put(1, b"A")
        assert (await refusal(writing)).reason is Reason.TOKEN_REQUIRED
        assert r.data() == b"A"

    run(main())


def test_a_committing_write_without_token_is_waited_for() -> None:
    """R3: in doubt it holds the first hand-over like any other."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=60))
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(0, b"plain"))
        _, seconds = await elapsed(r.put(1, b"A"))
        assert seconds == pytest.approx(30, abs=0.1)

    run(main())


def test_seal_shuts_out_the_token_that_holds_the_floor() -> None:
    """R3: sealed it is refused like a lower one; a higher token begins anew."""

    async def main() -> None:
        from gateway.stores.values import Event

        r = await rig()
        await r.put(33, b"A")
        await r.fences.seal("j", 33, Event("j", EventKind.SEALED, 33, 33, "done"))
        assert (await refusal(r.put(33, b"A2"))).reason is Reason.SEALED
        assert r.data() == b"A"
        await r.put(34, b"B")
        assert r.data() == b"B"

    run(main())


class _FailingStore(MemoryStore):
    """A store whose disk is full."""

    full = False

    async def raise_floor(self, key, token, event=None):
        if self.full:
            raise StoreUnavailable("disk is full")
        return await super().raise_floor(key, token, event)


def test_without_a_durable_raise_nothing_is_sent() -> None:
    """R1: the floor is the durable floor. A store that cannot raise refuses, and the old token goes on."""

    async def main() -> None:
        store = _FailingStore(clock=VirtualClock().wall)
        r = await rig(store=store)
        await r.put(33, b"A")
        store.full = True
        sent = len(r.upstream.sent)
        error = await refusal(r.put(34, b"B"))
        assert error.reason is Reason.STORE_UNAVAILABLE
        assert len(r.upstream.sent) == sent
        await r.put(33, b"A2")
        assert r.data() == b"A2"

    run(main())


@pytest.mark.parametrize("unreadable", [False, True], ids=["at once", "when the store can be read again"])
def test_what_a_store_has_raised_and_denied_holds_before_anybody_sees_it(unreadable: bool) -> None:
    """R1: an operator who was told that it failed, and then saw the new floor in the list, took the old token to be
    shut out; it went on, until somebody looked at the key alone."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        answers_late(r.store, "raise_floor", denied=True)
        if unreadable:
            fails(r.store, "fence", StoreUnavailable("the disk is away"))
        with pytest.raises(TryAgain):
            await r.fences.admit(FencingKey("j"), Token(34), cause="operator: gone", issued=True)
        await asyncio.sleep(2)
        assert [fence.floor for fence in await r.store.fences(None, 9)] == [34]
        assert (await refusal(r.put(33, b"late"))).reason is Reason.STALE_TOKEN

    run(main())
