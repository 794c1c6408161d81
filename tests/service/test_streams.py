"""R2, R5: a body that streams; what breaks off before its commit point, at it, and after it."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

import pytest

from gateway.core.errors import Outcome, Reason
from gateway.s3.errors import S3Error
from gateway.upstream.base import UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryExchange, MemoryResponse
from tests.service.rig import DEAF, JOB, FaultyUpstream, Payload, elapsed, refusal, rig, rule
from tests.service.sent import elsewhere
from tests.virtual_time import run

BODY = b"x" * 100


class Break(Enum):
    """What happens to an exchange."""

    TAIL_NOT_SENT = auto()
    """The connection is gone before the tail is written."""
    EARLY_403 = auto()
    EARLY_200 = auto()
    EARLY_LOST = auto()
    """An answer came before the whole body; it is a refusal, a success, or breaks off."""
    LOST = auto()
    """The tail is sent and applied; its answer is lost, and the object cannot be looked at."""


class BrokenExchange(MemoryExchange):
    """An exchange that breaks as told."""

    def __init__(self, store: Breaking, request: UpstreamRequest, length: int, how: Break | None) -> None:
        super().__init__(store, request, length)
        self.how = how
        self.aborted = False

    async def write(self, data: bytes) -> None:
        if self.how in (Break.EARLY_403, Break.EARLY_200, Break.EARLY_LOST):
            raise UpstreamNotReached("answered early")
        if self.how is Break.TAIL_NOT_SENT and len(data) == self._unsent:
            self.how = Break.EARLY_LOST
            raise UpstreamNotReached("gone")
        await super().write(data)

    async def response(self, timeout_s: float) -> MemoryResponse:
        match self.how:
            case Break.EARLY_403:
                return MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")
            case Break.EARLY_200:
                return MemoryResponse(200, [], b"")
            case Break.EARLY_LOST | Break.LOST:
                raise UpstreamLost("reset")
        return await super().response(timeout_s)

    def abort(self) -> None:
        self.aborted = True
        super().abort()


class Breaking(FaultyUpstream):
    """A store whose next exchange breaks; it can be made unreadable."""

    def __init__(self) -> None:
        super().__init__("bkt")
        self.how: Break | None = None
        self.exchanges: list[BrokenExchange] = []
        self.unreadable = False

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        how, self.how = self.how, None
        self.exchanges.append(BrokenExchange(self, request, content_length, how))
        return self.exchanges[-1]

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        if self.unreadable:
            raise UpstreamLost("reset")
        return await super().read(request, body)


@pytest.mark.parametrize("how", [Break.TAIL_NOT_SENT, Break.EARLY_200, Break.EARLY_LOST], ids=lambda how: how.name)
def test_what_was_not_sent_whole_is_not_applied_and_leaves_no_doubt(how) -> None:
    """G5: 503 NotApplied, even if the upstream has said 200 too early; the next token does not wait."""

    async def main() -> None:
        r = await rig(upstream=Breaking())
        r.upstream.how = how
        error = await refusal(r.put(33, BODY))
        assert (error.reason, error.outcome) == (Reason.UPSTREAM_UNAVAILABLE, Outcome.NOT_APPLIED)
        assert not r.fences.unsettled("j")
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == 0

    run(main())


def test_an_early_refusal_is_passed_on() -> None:
    """R5: it is final, whenever it comes."""

    async def main() -> None:
        r = await rig(upstream=Breaking())
        r.upstream.how = Break.EARLY_403
        assert (await r.put(33, BODY)).code == "AccessDenied"
        assert not r.fences.unsettled("j")

    run(main())


def test_a_lost_answer_to_a_streamed_body_leaves_it_in_doubt() -> None:
    """R5: after the tail a lost answer is no refusal."""

    async def main() -> None:
        r = await rig(upstream=Breaking())
        await r.put(33, b"A")
        r.upstream.how, r.upstream.unreadable = Break.LOST, True
        error = await refusal(r.put(33, BODY))
        assert (error.reason, error.outcome) == (Reason.IN_DOUBT, Outcome.UNKNOWN)
        assert [send.phase for send in r.fences.unsettled("j")] == ["in-doubt"]

    run(main())


class _Disproved(Payload):
    """A body that turns out not to be what its head promised."""

    async def pieces(self):
        async for pieces in super().pieces():
            yield pieces
        raise S3Error("BadDigest", "The digest does not match.")


@pytest.mark.parametrize("size", [10, 100], ids=["at hand", "streamed"])
def test_the_tail_waits_until_the_body_is_verified(size) -> None:
    """R2: all bytes have come, their digest is wrong: nothing is visible, and the exchange is cut."""

    async def main() -> None:
        r = await rig(upstream=Breaking())
        with pytest.raises(S3Error):
            await r.put(33, _Disproved(b"x" * size))
        assert r.data() is None
        assert all(exchange.aborted for exchange in r.upstream.exchanges)
        assert not r.fences.unsettled("j")

    run(main())


def test_the_tail_is_not_released_while_another_keys_send_may_land() -> None:
    """R9, R2: K's send comes into doubt while M streams to the same object; M's tail stays where it is."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True), upstream=Breaking())
        body = Payload(length=100)
        writing = asyncio.create_task(r.put(1, body, key="o", fence_key="M"))
        await body.wanted.wait()
        entry = r.writes.objects.pin("bkt", "o")
        entry.begin("K")
        body.give(BODY)
        body.end()
        error = await refusal(writing)
        assert (error.reason, error.outcome) == (Reason.HANDOVER_PENDING, Outcome.NOT_APPLIED)
        assert r.data("o") is None
        assert r.upstream.exchanges[0].aborted

    run(main())


def test_a_streamed_body_takes_the_state_from_a_look() -> None:
    """R4: nothing is known of an object that is there: a look, not a guess that costs the client its body."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        again = await rig(store=r.store, upstream=r.upstream)
        assert (await again.put(33, BODY)).status == 200
        assert again.data() == BODY

    run(main())


def test_a_write_past_the_fence_is_not_remembered_as_the_last_state() -> None:
    """What the fence does not cover changes the object too: the next streamed body looks at it."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await r.writes.unfenced(r.write("PUT", JOB, 0, Payload(b"plain")))
        assert (await r.put(33, BODY)).status == 200

    run(main())


def test_a_lost_answer_past_the_fence_is_unknown() -> None:
    """G5 also where no fence applies."""

    async def main() -> None:
        r = await rig(upstream=Breaking())
        r.upstream.how = Break.LOST
        error = await refusal(r.writes.unfenced(r.write("PUT", JOB, 0, Payload(BODY))))
        assert error.outcome is Outcome.UNKNOWN

    run(main())


def test_an_object_that_cannot_be_looked_at_is_not_overwritten() -> None:
    """G4: where no condition protects it, a HEAD that fails is no proof of absence."""

    async def main() -> None:
        r = await rig(upstream=Breaking(), capabilities=DEAF)
        await elsewhere(r, 34, b"B")
        r.upstream.unreadable = True
        assert (await refusal(r.put(33, BODY))).reason is Reason.UPSTREAM_UNAVAILABLE
        assert r.data() == b"B"

    run(main())
