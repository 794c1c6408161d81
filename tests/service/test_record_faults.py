"""A record that is unreadable, missing or in doubt, and a bucket that may have none."""

from __future__ import annotations

import asyncio

import orjson
import pytest
import structlog

from gateway.core.errors import Reason
from gateway.core.names import RECORD_KEY
from gateway.service.record import parse_record
from gateway.upstream.base import Capabilities
from tests.service.record_desk import LAPSE_S, PLAIN, Counting, gateway, put_record, record, superseded
from tests.service.rig import BUCKET, DEAF, HONEST, Fault, refusal
from tests.virtual_time import run


@pytest.mark.parametrize(
    "data",
    [b"", b"garbage", b"[]", b'{"version": 2}', b'{"version": 1}', b'{"version": 1, "database": 7}', b"\xff" * 100],
)
def test_a_record_that_cannot_be_read_shuts_the_bucket(data: bytes) -> None:
    """Fail closed: the message names the object and what is wrong with it, and the way out."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        put_record(upstream, data)
        one = await gateway(upstream)
        error = await superseded(one.put(34, b"a"))
        assert f"{RECORD_KEY}, cannot be read" in error.message
        assert "fence rebuild" in error.message
        assert upstream.buckets[BUCKET][RECORD_KEY].data == data
        await one.writes.close()

    run(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("generation", -1), ("generation", 2**23), ("generation", True), ("generation", "1"), ("database", ""),
        ("run", "a b"), ("nonce", None), ("rebuilding", 0), ("lapse_s", 0), ("lapse_s", 301), ("lapse_s", "60"),
        ("written", "x" * 129),
    ],
)  # fmt: skip
def test_a_record_with_a_bad_member_is_none(name: str, value: object) -> None:
    """Nothing is believed of what no gateway can have written."""
    good = {
        "version": 1, "database": "d", "generation": 0, "run": "r", "nonce": "n", "rebuilding": False, "lapse_s": 60,
        "written": "w",
    }  # fmt: skip
    assert parse_record(orjson.dumps(good)).database == "d"
    with pytest.raises(ValueError, match=name):
        parse_record(orjson.dumps(good | {name: value}))


def test_a_record_that_was_deleted_is_made_anew() -> None:
    """Its own database writes it again within a lapse, beside the writes; nobody is refused."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        del upstream.buckets[BUCKET][RECORD_KEY]
        for _ in range(4):
            await asyncio.sleep(LAPSE_S / 4)
            assert (await one.put(34, b"b")).status == 200
        assert record(upstream)["database"] == one.store.authority.database
        await one.writes.close()

    run(main())


def test_a_record_that_was_gone_is_told_once_it_is_there_again() -> None:
    """The log says that it has been written again; not at each try that fails."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        del upstream.buckets[BUCKET][RECORD_KEY]
        upstream.faults = [Fault.NOT_REACHED]
        with structlog.testing.capture_logs() as logs:
            await asyncio.sleep(LAPSE_S)
            assert upstream.faults == []
            await one.put(34, b"b")
        assert record(upstream)["database"] == one.store.authority.database
        assert [line["event"] for line in logs] == ["the bucket's record was gone"]
        await one.writes.close()

    run(main())


@pytest.mark.parametrize(
    ("status", "code", "told", "not_told"),
    [
        (403, "AccessDenied", "it answers 403 AccessDenied to a GET of", "own credentials"),
        (403, "AccessDenied", "s3:GetObject", "own credentials"),
        (403, "SignatureDoesNotMatch", "own credentials or clock (SignatureDoesNotMatch)", "s3:GetObject"),
        (400, "ExpiredToken", "own credentials or clock (ExpiredToken)", "s3:GetObject"),
        (503, "SlowDown", "it answers 503 SlowDown to a GET of", "s3:GetObject"),
    ],
)
def test_a_record_that_nobody_may_read_shuts_the_bucket(status: int, code: str, told: str, not_told: str) -> None:
    """What the store does not show may be another's; the message names permissions only where they would help."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        upstream.unreadable, upstream.unreadable_code = status, code
        one = await gateway(upstream)
        error = await refusal(one.put(34, b"a"))
        assert error.reason is Reason.UPSTREAM_UNAVAILABLE
        assert told in error.message
        assert not_told not in error.message
        assert upstream.sent == []
        await one.writes.close()

    run(main())


def test_a_record_whose_answer_was_lost_is_known_by_its_nonce() -> None:
    """It has been written, or it is written again: either way the write goes on in the end."""

    async def main() -> None:
        for fault in (Fault.LOST_APPLIED, Fault.ERROR_500_APPLIED, Fault.APPLIED_412):
            upstream = Counting(BUCKET)
            one = await gateway(upstream)
            upstream.faults = [fault]
            assert (await one.put(34, b"a")).status == 200
            await one.writes.close()
        for fault in (Fault.LOST_DROPPED, Fault.ERROR_500_DROPPED, Fault.REFUSED_403, Fault.NOT_REACHED):
            upstream = Counting(BUCKET)
            one = await gateway(upstream)
            upstream.faults = [fault]
            assert (await refusal(one.put(34, b"a"))).reason is Reason.UPSTREAM_UNAVAILABLE
            assert one.data() is None
            assert (await one.put(34, b"a")).status == 200
            await one.writes.close()

    run(main())


def test_without_conditional_writes_there_is_no_record() -> None:
    """It could not be made sure of; one that is there is obeyed all the same."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream, capabilities=DEAF)
        for _ in range(3):
            assert (await one.put(34, b"a")).status == 200
        assert RECORD_KEY not in upstream.buckets[BUCKET]
        assert upstream.reads == 1
        honest = await gateway(upstream, "two")
        await honest.put(34, b"b")
        await asyncio.sleep(LAPSE_S)
        await superseded(one.put(34, b"c"))
        for each in (one, honest):
            await each.writes.close()

    run(main())


def test_fenced_before_false_looks_for_no_record() -> None:
    """For those who know better."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        put_record(upstream, b"garbage")
        one = await gateway(upstream, fenced_before=False)
        assert (await one.put(34, b"a")).status == 200
        assert upstream.reads == 0
        await one.writes.close()

    run(main())


def test_fenced_before_true_refuses_a_bucket_that_was_never_rebuilt() -> None:
    """Also without a record, and where the store has no conditional writes; one that it has rebuilt is served."""

    async def main() -> None:
        for capabilities in (HONEST, DEAF):
            upstream = Counting(BUCKET)
            one = await gateway(upstream, capabilities=capabilities, fenced_before=True)
            error = await superseded(one.put(34, b"a"))
            assert "fenced_before" in error.message
            await one.store.rule(BUCKET)
            await asyncio.sleep(2)
            assert (await one.put(34, b"a")).status == 200
            await one.writes.close()

    run(main())


def test_a_bucket_that_is_not_there_gets_no_record() -> None:
    """The store tells the writer; the database learns of no such bucket."""

    async def main() -> None:
        upstream = Counting()
        one = await gateway(upstream)
        result = await one.put(34, b"a")
        assert (result.status, result.code) == (404, "NoSuchBucket")
        assert await one.store.rulings() == []
        await one.writes.close()

    run(main())


@pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["with a record", "without"])
def test_a_bucket_with_fenced_writes_is_known_to_the_database(capabilities: Capabilities) -> None:
    """G0: a backup knows it, and what is restored from that serves nothing fenced there, even if no record tells."""

    async def main() -> None:
        one = await gateway(Counting(BUCKET), capabilities=capabilities)
        assert (await one.put(34, b"a")).status == 200
        assert [(ruling.bucket, ruling.claim) for ruling in await one.store.rulings()] == [(BUCKET, None)]
        assert one.writes.records.unrecorded == (set() if capabilities.conditional_put else {BUCKET})
        await one.writes.close()

    run(main())


@pytest.mark.parametrize("told", [True, False], ids=["through the gateway", "past it"])
def test_a_bucket_that_is_gone_is_not_told_to_be_without_a_record(told: bool) -> None:
    """What an operator is to look at is there to be looked at."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream, capabilities=DEAF)
        assert (await one.put(34, b"a")).status == 200
        del upstream.buckets[BUCKET]
        if told:
            await one.writes.records.bucket_is_gone(BUCKET)
        else:
            one.writes.records.forget(BUCKET)
            assert (await one.put(34, b"a")).code == "NoSuchBucket"
        assert one.writes.records.unrecorded == set()
        await one.writes.close()

    run(main())


def test_the_first_write_with_a_token_leaves_a_record_where_others_wrote_before() -> None:
    """A write without one leaves none, and what it has seen is not enough for the next."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(0, b"x", PLAIN)
        assert RECORD_KEY not in upstream.buckets[BUCKET]
        await one.put(34, b"a")
        assert record(upstream)["database"] == one.store.authority.database
        await one.writes.close()

    run(main())
