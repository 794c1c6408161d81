"""R11: what is remembered under observe is bounded."""

from __future__ import annotations

import pytest

from gateway.core.errors import Malformed
from gateway.service import observed
from gateway.service.observed import Observed
from gateway.service.values import Result, Write
from tests.service.rig import JOB, Rig, rig
from tests.virtual_time import run


def began(r: Rig, uploads: Observed, upload_id: str) -> Write:
    """An upload of that id has begun; answers a write that names it."""
    answer = Result(200, [], f"<A><UploadId>{upload_id}</UploadId></A>".encode())
    uploads.seen(r.write("POST", JOB, 7, None, query="?uploads"), answer, would_refuse=False)
    return r.write("PUT", JOB, 0, None, query=f"?partNumber=1&uploadId={upload_id}")


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that begins uploads for ever costs a fixed amount of memory."""

    async def main() -> None:
        r = await rig()
        monkeypatch.setattr(observed, "CAPACITY", 2)
        uploads = Observed()
        parts = [began(r, uploads, upload_id) for upload_id in ("u1", "u2", "u3")]
        assert [uploads.of(part) is not None for part in parts] == [False, True, True]

    run(main())


def test_claims_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one that writes ever new objects."""

    async def main() -> None:
        r = await rig()
        monkeypatch.setattr(observed, "CAPACITY", 2)
        known = Observed()
        for name in ("a", "b", "c"):
            known.own(r.write("PUT", name, 7, None, fence_key="one"), None)
        known.own(r.write("PUT", "a", 7, None, fence_key="two"), None)
        with pytest.raises(Malformed):
            known.own(r.write("PUT", "c", 7, None, fence_key="two"), None)

    run(main())
