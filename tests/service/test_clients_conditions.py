"""R4: the client's own If-Match and If-None-Match keep their meaning, and S3's answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.errors import Reason
from gateway.s3.errors import S3Error
from tests.service.rig import HONEST, Fault, refusal, rig
from tests.service.sent import conditions, elsewhere, on_look
from tests.virtual_time import run


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ((("if-none-match", "*"),), "PreconditionFailed"),
        ((("if-match", '"0123456789abcdef0123456789abcdef"'),), "PreconditionFailed"),
        ((("if-match", 'W/"7fc56270e7a70fa81a5935b72eacbe29"'),), "PreconditionFailed"),
        ((("if-none-match", '"0123456789abcdef0123456789abcdef"'),), "NotImplemented"),
        ((("if-match", '"x"'), ("if-none-match", "*")), "NotImplemented"),
    ],
)
def test_the_clients_own_condition_keeps_its_meaning(headers, code) -> None:
    """S3's own answer, without a fencing reason; the object stays."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        with pytest.raises(S3Error) as caught:
            await r.put(33, b"A2", headers=headers)
        assert caught.value.code == code
        assert r.data() == b"A"

    run(main())


def test_the_head_is_judged_before_the_clients_own_condition() -> None:
    """G4: If-Match on the very ETag that a higher token wrote is stale all the same."""

    async def main() -> None:
        r = await rig()
        await elsewhere(r, 34, b"B")
        error = await refusal(r.put(33, b"A", headers=(("if-match", r.object().etag),)))
        assert error.reason is Reason.STALE_TOKEN
        assert r.data() == b"B"

    run(main())


def test_the_clients_own_condition_can_hold() -> None:
    """If-Match on the present ETag and If-None-Match on an absent object write."""

    async def main() -> None:
        r = await rig()
        assert (await r.put(33, b"A", headers=(("if-none-match", "*"),))).status == 200
        assert (await r.put(33, b"A2", headers=(("if-match", r.object().etag),))).status == 200
        several = f'"another", {r.object().etag}'
        assert (await r.put(33, b"A3", headers=(("if-match", several),))).status == 200
        assert r.data() == b"A3"

    run(main())


def test_the_clients_if_match_on_nothing_is_404() -> None:
    """S3's answer to a condition on an absent object."""

    async def main() -> None:
        r = await rig()
        with pytest.raises(S3Error) as caught:
            await r.put(33, b"A", headers=(("if-match", '"x"'),))
        assert caught.value.code == "NoSuchKey"

    run(main())


def test_the_clients_condition_is_not_renewed_in_its_turn() -> None:
    """S3's meaning: it named one state, another write of its token has replaced that, and it gets its 412."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        etag = r.object().etag
        r.upstream.faults = [Fault.SILENT]
        first = asyncio.create_task(r.put(33, b"A2"))
        await asyncio.sleep(1)
        second = asyncio.create_task(r.put(33, b"A3", headers=(("if-match", etag),)))
        await asyncio.sleep(1)
        r.upstream.silent.set()
        await first
        with pytest.raises(S3Error) as caught:
            await second
        assert caught.value.code == "PreconditionFailed"
        assert r.data() == b"A2"

    run(main())


def test_the_clients_condition_is_not_sent_again_when_the_state_has_moved() -> None:
    """The state moves after the gateway's own look: the failure is the client's answer."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        etag = r.object().etag

        async def change() -> None:
            await elsewhere(r, 33, b"other")

        on_look(r, change)
        with pytest.raises(S3Error) as caught:
            await r.put(33, b"A2", headers=(("if-match", etag),))
        assert caught.value.code == "PreconditionFailed"
        assert r.data() == b"other"

    run(main())


def test_one_condition_goes_upstream() -> None:
    """The client's own and the gateway's are one field, in the form that the upstream understands."""

    async def main() -> None:
        r = await rig(capabilities=replace(HONEST, bare_etag=True))
        await r.put(33, b"A")
        etag = r.object().etag
        await r.put(33, b"A2", headers=(("if-match", etag),))
        assert conditions(r)[1:] == [("if-match", etag.strip('"'))]

    run(main())
