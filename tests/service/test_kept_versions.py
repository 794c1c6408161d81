"""R4 in buckets that keep versions, keep them no longer, or begin to: what is sent, and under which condition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.errors import Reason
from gateway.upstream.memory import MemoryResponse
from tests.service.rig import BUCKET, HONEST, JOB, FaultyUpstream, Rig, refusal, rig
from tests.service.sent import conditions
from tests.simulation.versions import VersionedStore
from tests.virtual_time import run


class Upstream(VersionedStore, FaultyUpstream):
    """A store that keeps versions as SeaweedFS does, and what was sent to it."""


async def suspended() -> Rig:
    """A bucket that keeps versions no longer, and an object that was last written as one."""
    upstream = Upstream(BUCKET, seaweedfs=True)
    r = await rig(upstream=upstream, capabilities=replace(HONEST, files_paths=True))
    upstream.versioning = "Enabled"
    await r.put(33, b"A")
    upstream.versioning = "Suspended"
    return r


@pytest.mark.parametrize("operation", ["delete", "copy"])
def test_what_the_store_judges_right_keeps_its_condition(operation) -> None:
    """Where a PUT's condition has been refused for the version that is shown, a DELETE's and a copy's still holds."""

    async def main() -> None:
        r = await suspended()
        assert (await refusal(r.put(34, b"B"))).reason is Reason.STATE_MOVED
        etag, before = r.object().etag, len(conditions(r))
        if operation == "delete":
            await r.delete(34)
        else:
            await r.copy(34, JOB, x_amz_metadata_directive="REPLACE")
        assert conditions(r)[before:] == [("if-match", etag)]

    run(main())


def test_a_delete_of_nothing_is_not_sent_while_the_store_does_not_say_whether_versions_are_kept() -> None:
    """It would bear no condition, since none demands absence, and land on whatever has come after it (G3)."""

    async def main() -> None:
        r = await rig()
        read = r.upstream.read

        async def reading(request, body=b""):
            if request.raw_query == "versioning":
                return MemoryResponse(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return await read(request, body)

        r.upstream.read = reading
        assert (await refusal(r.delete(34))).reason is Reason.UPSTREAM_UNAVAILABLE
        assert not r.upstream.sent

    run(main())
