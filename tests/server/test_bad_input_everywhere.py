"""Tokens and keys that are none, on each way to change an object, in each payload mode: nowhere is one overlooked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.stores.values import Upload
from tests.end_to_end.wire import MODES, request
from tests.server.rig import BUCKET, CREDENTIALS, HOST, Pairs, Rig, running
from tests.server.test_s3_stale import JOB, KEY, NEVER, RULES, UPLOAD, WAYS, Way

FLOOR = 34
GOOD = ("x-fencing-token", "35")
TOKENS = ("-1", "0", "33.0", "+33", "033", "٣٣", str(2**63), "9" * 400, "")
KEYS = ("", "k" * 513, "%ff", "k\udcff", "a%01b")
NO_TOKEN: list[Pairs] = [
    *([("x-fencing-token", token)] for token in TOKENS),
    [GOOD, GOOD],
    [GOOD, ("fencing-token", "36")],
    [GOOD, ("x-amz-meta-fencing-token", "35")],
]
NO_KEY: list[Pairs] = [[GOOD, ("x-fencing-key", key)] for key in KEYS]
BAD = [*((said, "TokenInvalid") for said in NO_TOKEN), *((said, "KeyInvalid") for said in NO_KEY)]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Token 34 has written the object, and has an upload bound."""
    async with running(rules=RULES) as rig:
        assert (await rig.put(KEY, b"as it was", FLOOR)).status == 200
        await rig.store.uploads.bind(Upload(UPLOAD, BUCKET, KEY, JOB, FLOOR, "nonce"))
        rig.upstream.requests.clear()
        yield rig


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_bad_input_changes_nothing(rig: Rig, way: Way) -> None:
    """The answer is the interface's, the log has its reason, and object and floor are as they were."""
    path, _, query = way.target.format(b=BUCKET).partition("?")
    fields = [(name, value.format(b=BUCKET)) for name, value in way.headers]
    for mode in [mode for mode in MODES if way.body is not None or not mode.startswith("STREAMING")]:
        for said, reason in BAD:
            sent = request(
                way.method, HOST, path, way.body or b"", CREDENTIALS, mode=mode, query=query, headers=(*fields, *said)
            )
            answer = await rig.say(sent.head + sent.body, way.method)
            due = (501, "NotImplemented", "OperationNotFenced")
            if way.status != NEVER["status"]:
                due = (400, "InvalidArgument", reason)
            told = answer.xml
            assert (answer.status, told["Code"], told["FencingReason"]) == due, (mode, said)
            assert (answer.header("x-fencing-reason"), told["FencingOutcome"]) == (due[2], "NotApplied")
            record = rig.record
            assert (record["operation"], record["decision"], record["reason"]) == (way.operation, "refused", due[2])
            rig.stream.seek(0)
            rig.stream.truncate()
    assert rig.upstream.requests == []
    assert (stored := rig.stored(KEY)) is not None
    assert stored.data == b"as it was"
    assert [(fence.key, fence.floor) for fence in await rig.store.fences(None, 9)] == [(JOB, FLOOR)]
