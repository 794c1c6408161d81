"""The simulated store that keeps versions, against the one that comes along."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
from dataclasses import dataclass

import pytest

from gateway.upstream.base import Upstream, UpstreamRequest
from tests.conftest import StoreServer
from tests.server.rig import real
from tests.simulation.versions import NULL, Version, VersionedStore

STEPS = 14
KEY = "k"


@dataclass(frozen=True)
class Step:
    """One request. `version`: the how-manieth that was made, the first being `null`."""

    method: str
    body: bytes = b""
    condition: tuple[tuple[str, str], ...] = ()
    version: int | None = None


class Side:
    """One of the two stores, and the ids that it has given to versions."""

    def __init__(self, upstream: Upstream, bucket: str) -> None:
        self.upstream, self.bucket = upstream, bucket
        self.ids = [NULL]

    async def play(self, step: Step) -> int:
        query = "" if step.version is None else f"versionId={self.ids[step.version]}"
        digest = hashlib.sha256(step.body).hexdigest()
        request = UpstreamRequest(step.method, self.bucket, KEY, query, step.condition, digest)
        answer = await self.upstream.send(request, step.body, 10)
        answer.close()
        made = answer.header("x-amz-version-id")
        if step.version is None and made not in (None, NULL):
            self.ids.append(str(made))
        # S3 itself says 404 where a condition on an ETag meets nothing.
        return 412 if answer.status == 404 and step.condition else answer.status

    async def shown(self) -> tuple[int, str | None, bool]:
        """A HEAD's status, its ETag, and whether it shows a version with an id."""
        answer = await self.upstream.read(UpstreamRequest("HEAD", self.bucket, KEY, "", ()))
        answer.close()
        return answer.status, answer.header("etag"), answer.header("x-amz-version-id") not in (None, NULL)


def drawn(
    chance: random.Random, number: int, etags: list[str], versions: int, *, null: bool, marked: bool
) -> Step | None:
    """The next step; None: versioning is switched. SeaweedFS 4.48 is at fault where a version is deleted and `null` is
    current, and where versions are kept again and that is a delete mark (`docs/stores.md`)."""
    body, latest = f"body {number}".encode(), (("if-match", chance.choice(etags[-2:])),)
    steps = [
        Step("PUT", body), Step("PUT", body), Step("PUT", body, (("if-none-match", "*"),)), Step("PUT", body, latest),
        Step("DELETE"), Step("DELETE", condition=latest), Step("DELETE", version=chance.randrange(versions)),
    ]  # fmt: skip
    return chance.choice([*steps[: -1 if null else None], *([] if marked else [None])])


@pytest.mark.parametrize("seed", range(12))
async def test_it_answers_as_seaweedfs_does(store_server: StoreServer, seed: int) -> None:
    """Writes and deletes with and without conditions, of the object and of versions, while versioning is switched: the
    same statuses, and the same is shown after each."""
    bucket, chance = f"versions-{secrets.token_hex(6)}", random.Random(seed)
    await asyncio.to_thread(store_server.client.create_bucket, Bucket=bucket)
    simulated, upstream = VersionedStore(bucket, seaweedfs=True), real(store_server)
    sides, etags, told = (Side(simulated, bucket), Side(upstream, bucket)), ['"none"'], []
    for number in range(STEPS):
        versions = simulated.versions.get(KEY, [])
        null = len(versions) > 1 and versions[-1].id == NULL
        step = drawn(chance, number, etags, len(sides[0].ids), null=null, marked=versions[-1:] == [Version(NULL, None)])
        if step is None:
            simulated.versioning = "Suspended" if simulated.versioning == "Enabled" else "Enabled"
            said = {"Status": simulated.versioning}
            await asyncio.to_thread(
                store_server.client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=said
            )
        answers = [None if step is None else await side.play(step) for side in sides]
        one, other = [await side.shown() for side in sides]
        told.append((step or simulated.versioning, answers, one, other))
        assert (answers[0], one) == (answers[1], other), told
        etags += [one[1]] if one[1] else []
    await upstream.close()
