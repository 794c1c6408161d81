"""Checksums are verified, and kept on the object wherever the store can hold them (R2)."""

from __future__ import annotations

import pytest

from gateway.clock import SystemClock
from gateway.s3 import checksums
from gateway.upstream.base import Capabilities
from gateway.upstream.probe import FixedCapabilities, Prober
from tests.cases.sides import Sides
from tests.cases.stores import Keeping, Strict
from tests.cases.uploads import Framing, Mode, checksum, converse, upload
from tests.server.rig import BUCKET, rule, running

FIVE = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
TRAILERS = (Mode.SIGNED_TRAILER, Mode.UNSIGNED_TRAILER)
SMALL, LARGE = b"small" * 200, bytes(range(256)) * 800
SHOW = ("x-amz-checksum-mode", "ENABLED")
TOKEN = ("x-fencing-token", "5")
RULES = (rule("renders/{job}/**", "{job}"),)


def by_name(value: object) -> str:
    return value.name.lower() if isinstance(value, Mode | Framing) else str(value)


@pytest.mark.parametrize("mode", TRAILERS, ids=by_name)
@pytest.mark.parametrize("algorithm", FIVE)
async def test_a_trailing_checksum_is_shown_by_head(sides: Sides, algorithm: str, mode: Mode) -> None:
    """At the real store, empty, small and streamed, fenced or not: a HEAD with `x-amz-checksum-mode` shows what the
    client sent behind its body."""
    name = f"x-amz-checksum-{algorithm}"
    wire = await sides.rig.wire()
    for payload in (b"", SMALL, LARGE):
        for key, fields in ((f"plain-{algorithm}", ()), (f"renders/{algorithm}/out", (TOKEN,))):
            target = f"/{sides.of_gateway}/{key}"
            sent = upload(target, payload, mode, Framing.CHUNKED, fields=fields, algorithm=algorithm)
            answer = await converse(wire, sent)
            assert answer.status == 200, answer.body
            shown = await sides.rig.ask("HEAD", target, [SHOW])
            assert shown.header(name) == checksum(algorithm, payload)
            assert shown.header("content-length") == str(len(payload))
            assert shown.header("content-encoding") is None
            assert (await sides.rig.ask("HEAD", target)).header(name) is None


@pytest.mark.parametrize("algorithm", sorted(checksums.ALGORITHMS))
async def test_a_checksum_in_the_head_is_the_stores_matter(sides: Sides, algorithm: str) -> None:
    """Sent as a header, each algorithm has at the store the same answer and the same trace as without the gateway."""
    name = f"x-amz-checksum-{algorithm}"
    for payload in (b"", SMALL, LARGE):
        target = "/{b}/in-the-head-" + algorithm
        (await sides.ask("PUT", target, [(name, checksum(algorithm, payload))], payload)).alike()
        (await sides.ask("HEAD", target, [SHOW])).alike()


@pytest.mark.parametrize("algorithm", FIVE)
async def test_a_trailing_checksum_of_a_part_is_kept(sides: Sides, algorithm: str) -> None:
    """The store answers a part with its checksum, small and streamed."""
    rig, name = sides.rig, f"x-amz-checksum-{algorithm}"
    target = f"/{sides.of_gateway}/renders/parts/{algorithm}"
    created = await rig.ask("POST", f"{target}?uploads", [TOKEN, ("x-amz-checksum-algorithm", algorithm.upper())], b"")
    assert created.status == 200, created.body
    upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    for number, payload in enumerate((SMALL, LARGE), 1):
        part = f"{target}?partNumber={number}&uploadId={upload_id}"
        answer = await converse(await rig.wire(), upload(part, payload, Mode.UNSIGNED_TRAILER, algorithm=algorithm))
        assert answer.status == 200, answer.body
        direct = await rig.ask("PUT", part, [(name, checksum(algorithm, payload))], payload)
        assert answer.header(name) == direct.header(name)


@pytest.mark.parametrize("algorithm", sorted(checksums.ALGORITHMS))
async def test_what_the_store_cannot_keep_is_verified_and_dropped(algorithm: str) -> None:
    """Before a store that knows CRC32 alone every algorithm is taken, small and streamed; CRC32 is kept, and a wrong
    value is refused whatever the store knows."""
    upstream = Keeping(BUCKET, algorithms=("crc32",))
    async with running(upstream=upstream, rules=RULES, capabilities=Prober(upstream, SystemClock())) as rig:
        wire = await rig.wire()
        for payload in (b"", SMALL, LARGE):
            for key in ("plain", "renders/7/out"):
                fields = (TOKEN,) if "/" in key else ()
                sent = upload(f"/b/{key}", payload, Mode.UNSIGNED_TRAILER, fields=fields, algorithm=algorithm)
                answer = await converse(wire, sent)
                assert answer.status == 200, answer.body
                stored = rig.stored(key)
                assert stored is not None
                assert stored.data == payload
                kept = upstream.kept.get((BUCKET, key))
                name = f"x-amz-checksum-{algorithm}"
                assert kept == ((name, checksum(algorithm, payload)) if algorithm == "crc32" else None)
        for payload in (SMALL, LARGE):
            wrong = checksum(algorithm, b"another")
            sent = upload("/b/plain", payload, Mode.UNSIGNED_TRAILER, algorithm=algorithm, value=wrong)
            refused = await converse(await rig.wire(), sent)
            assert (refused.status, refused.code) == (400, "BadDigest")
        stored = rig.stored("plain")
        assert stored is not None
        assert stored.data == LARGE


@pytest.mark.parametrize("mode", TRAILERS, ids=by_name)
@pytest.mark.parametrize("fields", [(), (TOKEN,)], ids=["plain", "fenced"])
async def test_a_small_bodys_trailer_goes_upstream_as_a_header(mode: Mode, fields: tuple[tuple[str, str], ...]) -> None:
    """Whatever the store has proved: a body at hand has its checksum before it, and no trailer is named."""
    async with running() as rig:
        answer = await converse(await rig.wire(), upload("/b/k", SMALL, mode, fields=fields))
        assert answer.status == 200
        put = next(request for request in rig.upstream.requests if request.method == "PUT")
        assert ("x-amz-checksum-crc32", checksum("crc32", SMALL)) in put.headers
        assert "x-amz-trailer" not in dict(put.headers)
        assert rig.upstream.bodies[-1] == SMALL


async def test_a_store_without_trailers_is_not_asked_for_them() -> None:
    """A store that refuses them has proved none: streamed bodies go to it with a plain length, verified."""
    upstream = Strict(BUCKET)
    prober = Prober(upstream, SystemClock())
    assert (await prober.of_bucket(BUCKET)).trailers == frozenset()
    async with running(upstream=upstream, capabilities=prober) as rig:
        for fields in ((), (TOKEN,)):
            answer = await converse(await rig.wire(), upload("/b/k", LARGE, Mode.SIGNED_TRAILER, fields=fields))
            assert answer.status == 200
            stored = rig.stored("k")
            assert stored is not None
            assert stored.data == LARGE


async def test_a_streamed_bodys_trailer_follows_it_where_that_is_proved() -> None:
    """The frames that go upstream are the gateway's own: unsigned, and closed by the client's checksum."""
    upstream = Keeping(BUCKET, algorithms=("sha256",))
    proved = FixedCapabilities(Capabilities(True, True, True, trailers=frozenset({"sha256"}), files_paths=False))
    async with running(upstream=upstream, capabilities=proved) as rig:
        sent = upload("/b/k", LARGE, Mode.SIGNED_TRAILER, algorithm="sha256", fields=(TOKEN,), chunk=7777)
        assert (await converse(await rig.wire(), sent)).status == 200
        assert upstream.kept[BUCKET, "k"] == ("x-amz-checksum-sha256", checksum("sha256", LARGE))
        stored = rig.stored("k")
        assert stored is not None
        assert stored.data == LARGE
