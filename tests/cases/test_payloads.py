"""Every mode of a payload in every framing, cut anywhere; what breaks a promise leaves nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from gateway.s3 import checksums
from gateway.s3.errors import S3Error
from gateway.upstream.memory import MemoryUpstream
from tests.cases.stores import Strict
from tests.cases.uploads import Framing, Mode, Upload, checksum, converse, upload
from tests.s3.bodies import cut
from tests.server.rig import BUCKET, Rig, rule, running, signed

TOKEN = ("x-fencing-token", "5")
PAYLOADS = (b"", b"1", b"small" * 200, bytes(range(256)) * 300)
RULES = (rule("renders/{job}/**", "{job}"),)


def by_name(value: object) -> str:
    return value.name.lower() if isinstance(value, Mode | Framing) else str(value)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A gateway before a store that knows neither chunks nor trailers."""
    async with running(upstream=Strict(BUCKET), rules=RULES) as rig:
        yield rig


@pytest.mark.parametrize("framing", Framing, ids=by_name)
@pytest.mark.parametrize("mode", Mode, ids=by_name)
async def test_every_mode_in_every_framing(rig: Rig, mode: Mode, framing: Framing) -> None:
    """The store, which would refuse any other, gets a plain body with exactly the client's bytes, fenced or not, and
    the connection goes on."""
    wire = await rig.wire()
    for payload in PAYLOADS:
        for key, fields in (("plain", ()), ("renders/7/out", (TOKEN,))):
            answer = await converse(wire, upload(f"/b/{key}", payload, mode, framing, fields=fields))
            assert answer.status == 200, answer.body
            assert answer.header("etag") == f'"{hashlib.md5(payload).hexdigest()}"'
            stored = rig.stored(key)
            assert stored is not None
            assert stored.data == payload
            assert "content-encoding" not in dict(stored.metadata)


@pytest.mark.parametrize("framing", Framing, ids=by_name)
@pytest.mark.parametrize("mode", Mode, ids=by_name)
async def test_every_mode_of_a_part_in_every_framing(rig: Rig, mode: Mode, framing: Framing) -> None:
    """Parts come in the same ways, small and streamed."""
    created = await rig.ask("POST", "/b/renders/7/parts?uploads", [TOKEN], b"")
    upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    wire = await rig.wire()
    for number, payload in enumerate(PAYLOADS, 1):
        target = f"/b/renders/7/parts?partNumber={number}&uploadId={upload_id}"
        answer = await converse(wire, upload(target, payload, mode, framing))
        assert answer.status == 200, answer.body
        assert isinstance(rig.upstream.inner, MemoryUpstream)
        assert rig.upstream.inner.uploads[upload_id].parts[number][1] == payload


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.chunked], ids=by_name)
async def test_http_chunks_may_end_at_every_byte(rig: Rig, mode: Mode) -> None:
    """aws-chunked inside chunked transfer coding: the one's chunks end anywhere in the other's."""
    payload = b"two chunks and their frames"
    wire = await rig.wire()
    sent = upload("/b/k", payload, mode, Framing.CHUNKED, chunk=20)
    for at in range(len(sent.body) + 1):
        answer = await converse(wire, sent, at)
        assert answer.status == 200, (at, answer.body)
        stored = rig.stored("k")
        assert stored is not None
        assert stored.data == payload
    answer = await converse(wire, sent, *range(len(sent.body)))
    assert answer.status == 200


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED], ids=by_name)
@pytest.mark.parametrize("mode", Mode, ids=by_name)
async def test_packets_may_end_at_any_byte(rig: Rig, mode: Mode, framing: Framing) -> None:
    """A body that comes in two packets, cut at each byte, and one that comes byte by byte."""
    payload = b"0123456789abcdef"
    sent = upload("/b/k", payload, mode, framing, chunk=10)
    whole = sent.framed(7)
    cuts = [[at] for at in range(len(whole) + 1)] + [list(range(len(whole)))]
    wire = await rig.wire()
    for edges in cuts:
        await wire.send(sent.head)
        for start, end in zip([0, *edges], [*edges, len(whole)], strict=True):
            await wire.send(whole[start:end])
            await asyncio.sleep(0)
        answer = await wire.answer("PUT")
        assert answer.status == 200, (edges, answer.body)
        stored = rig.stored("k")
        assert stored is not None
        assert stored.data == payload


@pytest.mark.parametrize("algorithm", sorted(checksums.ALGORITHMS))
@pytest.mark.parametrize("mode", [Mode.SIGNED_TRAILER, Mode.UNSIGNED_TRAILER], ids=by_name)
def test_every_algorithm_cut_at_every_byte(mode: Mode, algorithm: str) -> None:
    """In two pieces cut anywhere and byte by byte, of several chunks and of none: a right trailer is verified and told,
    one whose value is another's is refused at the end, wherever the body was cut."""
    name = f"x-amz-checksum-{algorithm}"
    for payload in (b"", b"x", b"0123456789abcdef"):
        right = upload("/b/k", payload, mode, algorithm=algorithm, chunk=5)
        wrong = upload("/b/k", payload, mode, algorithm=algorithm, chunk=5, value=checksum(algorithm, b"another"))
        cuts = [[at] for at in range(len(right.body) + 1)] + [list(range(len(right.body)))]
        for places in cuts:
            decoder, given = right.decoder(), b""
            for piece in cut(right.body, places):
                given += b"".join(decoder.feed(piece))
            decoder.finish()
            assert given == payload
            assert decoder.trailing_checksum == (algorithm, checksum(algorithm, payload)), name
            decoder = wrong.decoder()
            for piece in cut(wrong.body, places):
                decoder.feed(piece)
            with pytest.raises(S3Error) as refusal:
                decoder.finish()
            assert refusal.value.code == "BadDigest"
            assert decoder.trailing_checksum is None


@pytest.mark.parametrize("mode", Mode, ids=by_name)
def test_a_body_that_ends_too_early(mode: Mode) -> None:
    """Cut off after any of its bytes but the last, a body is never whole."""
    sent = upload("/b/k", b"0123456789abcdef", mode, chunk=5)
    for length in range(len(sent.body)):
        decoder = sent.decoder()
        decoder.feed(sent.body[:length])
        with pytest.raises(S3Error) as refusal:
            decoder.finish()
        assert refusal.value.code == "IncompleteBody"


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode not in (Mode.PLAIN, Mode.UNSIGNED)], ids=by_name)
def test_a_body_with_any_byte_changed(mode: Mode) -> None:
    """Where the payload is signed or has a checksum, no changed byte of it passes; where all is signed, none at all
    but in the spelling of a frame's size and of a trailer's name."""
    sent = upload("/b/k", b"0123456789abcdef", mode, chunk=5)
    passed = []
    for at in range(len(sent.body)):
        decoder = sent.decoder()
        try:
            given = b"".join(decoder.feed(sent.body[:at] + bytes([sent.body[at] ^ 0x20]) + sent.body[at + 1 :]))
            decoder.finish()
        except S3Error:
            continue
        assert given == b"0123456789abcdef"
        passed.append(sent.body[at : at + 1])
    assert b"".join(passed).lower().strip(b"abcdefghijklmnopqrstuvwxyz") == b""
    if mode in (Mode.HEX, Mode.SIGNED_CHUNKS):
        assert passed == []


# --- broken promises


async def refused(rig: Rig, sent: Upload, status: int, code: str) -> None:
    """The upload is refused so, and what was there before still is."""
    assert (await rig.put("k", b"older", 5)).status == 200
    before = len(rig.upstream.writes)
    answer = await converse(await rig.wire(), sent)
    assert (answer.status, answer.code) == (status, code), answer.body
    stored = rig.stored("k")
    assert stored is not None
    assert stored.data == b"older"
    assert len(rig.upstream.writes) - before <= 1


@pytest.mark.parametrize("size", [1000, 200_000])
@pytest.mark.parametrize("framing", Framing, ids=by_name)
@pytest.mark.parametrize("mode", [Mode.SIGNED_CHUNKS, Mode.SIGNED_TRAILER], ids=by_name)
async def test_a_forged_second_chunk(rig: Rig, mode: Mode, framing: Framing, size: int) -> None:
    """403, and nothing of the first one is visible."""
    sent = upload("/b/k", b"x" * size, mode, framing, fields=(TOKEN,), chunk=size // 2)
    mark = b"chunk-signature="
    second = sent.body.index(mark, sent.body.index(mark) + 1) + len(mark)
    body = sent.body[:second] + b"0" * 64 + sent.body[second + 64 :]
    await refused(rig, sent.with_body(body), 403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("wrong", [-1, 1, 100_000])
@pytest.mark.parametrize("framing", Framing, ids=by_name)
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.chunked], ids=by_name)
async def test_a_decoded_length_that_is_not_what_comes(rig: Rig, mode: Mode, framing: Framing, wrong: int) -> None:
    """Larger or smaller: 400, nothing stored."""
    sent = upload("/b/k", b"x" * 1000, mode, framing, fields=(TOKEN,), decoded=1000 + wrong)
    await refused(rig, sent, 400, "IncompleteBody")


@pytest.mark.parametrize("size", [1000, 200_000])
@pytest.mark.parametrize("framing", Framing, ids=by_name)
@pytest.mark.parametrize("mode", [Mode.SIGNED_TRAILER, Mode.UNSIGNED_TRAILER], ids=by_name)
async def test_a_wrong_trailing_checksum(rig: Rig, mode: Mode, framing: Framing, size: int) -> None:
    """In every framing, small and streamed: 400, nothing stored."""
    wrong = checksum("crc32", b"another")
    sent = upload("/b/k", b"x" * size, mode, framing, fields=(TOKEN,), value=wrong)
    await refused(rig, sent, 400, "BadDigest")


@pytest.mark.parametrize(
    "trailer",
    [
        b"",
        b":AAAAAA==\r\n",
        b" : AAAAAA==\r\n",
        b"x-amz-checksum-crc32\r\n",
        b"x-amz-checksum-crc32c:AAAAAA==\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-crc32:AAAAAA==\r\n",
        b"\r\n0\r\n",
    ],
    ids=["missing", "empty name", "blank name", "no value", "another", "twice", "doubled zero chunk"],
)
@pytest.mark.parametrize("size", [0, 1000, 200_000])
async def test_a_trailer_that_is_not_the_announced_one(rig: Rig, size: int, trailer: bytes) -> None:
    """400 MalformedTrailerError, nothing stored."""
    sent = upload("/b/k", b"x" * size, Mode.UNSIGNED_TRAILER, fields=(TOKEN,), trailer=trailer)
    await refused(rig, sent, 400, "MalformedTrailerError")


@pytest.mark.parametrize("payload", [b"", b"data"])
async def test_a_doubled_zero_chunk(rig: Rig, payload: bytes) -> None:
    """What comes behind the last frame is refused, as S3 does: MalformedTrailerError."""
    for mode in (Mode.SIGNED_CHUNKS, Mode.UNSIGNED_TRAILER):
        sent = upload("/b/k", payload, mode, Framing.CHUNKED, fields=(TOKEN,))
        await refused(rig, sent.with_body(sent.body + b"0\r\n\r\n"), 400, "MalformedTrailerError")


@pytest.mark.parametrize("mode", [Mode.HEX, Mode.UNSIGNED], ids=by_name)
async def test_a_body_whose_length_nobody_knows(rig: Rig, mode: Mode) -> None:
    """Chunked transfer coding without a decoded length: 411, as on S3, before any byte of it is asked for."""
    payload_hash = hashlib.sha256(b"x").hexdigest() if mode is Mode.HEX else mode.value
    fields = [("expect", "100-continue"), ("transfer-encoding", "chunked")]
    answer = await rig.say(signed("PUT", "/b/k", fields, payload=payload_hash), "PUT")
    assert (answer.status, answer.code) == (411, "MissingContentLength")
    assert rig.upstream.requests == []


@pytest.mark.parametrize("order", [0, 1])
async def test_two_lengths(rig: Rig, order: int) -> None:
    """Content-Length together with Transfer-Encoding is 400, whichever comes first, and the connection ends."""
    fields = [("content-length", "5"), ("transfer-encoding", "chunked")]
    head = signed("PUT", "/b/k", fields if order else fields[::-1], payload="UNSIGNED-PAYLOAD")
    wire = await rig.wire()
    await wire.send(head + b"5\r\nhello\r\n0\r\n\r\n")
    answer = await wire.answer("PUT")
    assert (answer.status, answer.closes) == (400, True)
    assert await wire.rest() == b""
    assert rig.upstream.requests == []


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (["aws-chunked,gzip"], "gzip"),
        (["aws-chunked, gzip"], "gzip"),
        (["gzip, aws-chunked"], "gzip"),
        (["gzip", "aws-chunked"], "gzip"),
        (["AWS-chunked"], None),
        (["aws-chunked", "aws-chunked"], None),
        (["br,aws-chunked,gzip"], "br,gzip"),
    ],
)
async def test_aws_chunked_leaves_the_content_encoding(rig: Rig, sent: list[str], kept: str | None) -> None:
    """`gzip` is kept and `aws-chunked` goes; a HEAD shows `gzip` alone."""
    fields = [("content-encoding", value) for value in sent]
    made = upload("/b/k", b"packed", Mode.UNSIGNED_TRAILER)
    body = made.body
    fields += [("x-amz-decoded-content-length", "6"), ("x-amz-trailer", "x-amz-checksum-crc32")]
    head = signed(
        "PUT", "/b/k", fields, payload=Mode.UNSIGNED_TRAILER.value, unsigned=[("content-length", str(len(body)))]
    )
    assert (await rig.say(head + body, "PUT")).status == 200
    assert (await rig.ask("HEAD", "/b/k")).header("content-encoding") == kept
