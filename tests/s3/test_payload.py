"""What heads promise about bodies, and that a body which breaks a promise is never completed."""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3 import checksums
from gateway.s3.errors import S3Error
from gateway.s3.payload import PayloadDecoder, PayloadMode, PayloadSpec, Tail, payload_spec
from gateway.s3.request import Headers
from gateway.s3.sigv4 import ChunkSigner
from tests.s3.bodies import AMZ_DATE, SCOPE, SEED, crc32, cut, key, pass_through, split, upload

HELLO = b"hello world"
MD5 = b64encode(hashlib.md5(HELLO).digest()).decode()
SHA256 = b64encode(hashlib.sha256(HELLO).digest()).decode()
UNSIGNED = PayloadMode.UNSIGNED.value
CHUNKS = PayloadMode.UNSIGNED_CHUNKS_TRAILER.value
SIZED = {"content-length": "11"}
DECODED = {"content-length": "60", "x-amz-decoded-content-length": "11"}


def read(payload_hash: str, **headers: str) -> PayloadSpec:
    return payload_spec(Headers((n.replace("_", "-"), v) for n, v in headers.items()), payload_hash)


@pytest.mark.parametrize("mode", PayloadMode)
@pytest.mark.parametrize("payload", [b"", b"x", HELLO], ids=["empty", "one", "chunks"])
def test_right_bodies_cut_at_every_byte(mode: PayloadMode, payload: bytes) -> None:
    """In every mode a right body passes whole, cut in two anywhere, and byte by byte; its end is withheld."""
    sent = upload(mode, payload)
    cuttings = [[sent.body[:at], sent.body[at:]] for at in range(len(sent.body) + 1)]
    for cuts in (*cuttings, split(sent.body, 1)):
        passage = pass_through(sent, cuts)
        assert passage.fault is None
        assert passage.staged + passage.tail == payload
        assert len(passage.tail) >= min(1, len(payload))


@pytest.mark.parametrize("mode", PayloadMode)
def test_the_promises_of_each_mode(mode: PayloadMode) -> None:
    """Every promise of a head is in its spec."""
    sent = upload(mode, HELLO, {"content-md5": MD5})
    spec = payload_spec(Headers(sent.headers), sent.payload_hash)
    signed = mode is PayloadMode.SIGNED_HASH
    assert spec == PayloadSpec(
        mode,
        length=11,
        sha256=hashlib.sha256(HELLO).hexdigest() if signed else None,
        content_md5=hashlib.md5(HELLO).digest(),
        trailer="crc32" if mode.trailer else None,
        wire_length=len(sent.body),
    )


def test_a_length_in_chunked_transfer_coding() -> None:
    """Chunked transfer coding needs the decoded length, framed as aws-chunked or not; there is no wire length."""
    for payload_hash in (UNSIGNED, CHUNKS):
        spec = read(payload_hash, transfer_encoding="chunked", x_amz_decoded_content_length="11")
        assert (spec.length, spec.wire_length) == (11, None)


def test_headers_that_are_no_checksum_values() -> None:
    """Type, algorithm and mode speak of checksums without being one; case of the algorithm does not matter."""
    spec = read(
        UNSIGNED,
        content_length="11",
        x_amz_checksum_type="FULL_OBJECT",
        x_amz_checksum_algorithm="CRC32",
        x_amz_checksum_mode="ENABLED",
        x_amz_sdk_checksum_algorithm="CRC32",
        x_amz_checksum_crc32=crc32(HELLO),
    )
    assert spec.checksums == (("crc32", crc32(HELLO)),)
    assert read(UNSIGNED, content_length="11", x_amz_sdk_checksum_algorithm="CRC32").checksums == ()


def test_checksums_of_an_object_are_not_of_the_body() -> None:
    """On CompleteMultipartUpload the checksum headers are left alone, whatever they hold."""
    headers = Headers([("content-length", "11"), ("x-amz-checksum-crc32", "AAAAAA==-3")])
    assert payload_spec(headers, UNSIGNED, object_checksums=True).checksums == ()
    with pytest.raises(S3Error, match="Value for x-amz-checksum-crc32 header is invalid"):
        payload_spec(headers, UNSIGNED)


@pytest.mark.parametrize(
    ("payload_hash", "headers", "code", "status"),
    [
        (UNSIGNED, {}, "MissingContentLength", 411),
        (UNSIGNED, {"transfer-encoding": "chunked"}, "MissingContentLength", 411),
        (CHUNKS, SIZED, "MissingContentLength", 411),
        (CHUNKS, SIZED | {"x-amz-decoded-content-length": ""}, "MissingContentLength", 411),
        (CHUNKS, SIZED | {"x-amz-decoded-content-length": "abc"}, "MissingContentLength", 411),
        (UNSIGNED, SIZED | {"transfer-encoding": "chunked"}, "InvalidRequest", 400),
        (CHUNKS, DECODED | {"transfer-encoding": "chunked"}, "InvalidRequest", 400),
        (UNSIGNED, {"transfer-encoding": "gzip, chunked"}, "NotImplemented", 501),
        (UNSIGNED, {"content-length": "-1"}, "InvalidRequest", 400),
        (UNSIGNED, {"content-length": "+1"}, "InvalidRequest", 400),
        (UNSIGNED, {"content-length": "1_0"}, "InvalidRequest", 400),
        (UNSIGNED, {"content-length": "²"}, "InvalidRequest", 400),
        (UNSIGNED, {"content-length": "1" * 20}, "InvalidRequest", 400),
        (UNSIGNED, {"content-length": str(5 * 2**30 + 1)}, "EntityTooLarge", 400),
        (CHUNKS, DECODED | {"x-amz-decoded-content-length": str(5 * 2**30 + 1)}, "EntityTooLarge", 400),
        (UNSIGNED, SIZED | {"content-md5": ""}, "InvalidDigest", 400),
        (UNSIGNED, SIZED | {"content-md5": MD5[:-4]}, "InvalidDigest", 400),
        (UNSIGNED, SIZED | {"x-amz-checksum-crc32": "AAAA"}, "InvalidRequest", 400),
        (UNSIGNED, SIZED | {"x-amz-checksum-crc33": "AAAAAA=="}, "InvalidRequest", 400),
        (UNSIGNED, SIZED | {"x-amz-checksum-": "AAAAAA=="}, "InvalidRequest", 400),
        (
            UNSIGNED,
            SIZED | {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-crc32c": "AAAAAA=="},
            "InvalidRequest",
            400,
        ),
        (
            CHUNKS,
            DECODED | {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-trailer": "x-amz-checksum-crc32"},
            "InvalidRequest",
            400,
        ),
        (CHUNKS, DECODED | {"x-amz-trailer": ""}, "InvalidRequest", 400),
        (CHUNKS, DECODED | {"x-amz-trailer": "crc32"}, "InvalidRequest", 400),
        (CHUNKS, DECODED | {"x-amz-trailer": "x-amz-checksum-"}, "InvalidRequest", 400),
        (CHUNKS, DECODED | {"x-amz-trailer": "x-amz-checksum-crc32,x-amz-checksum-sha1"}, "InvalidRequest", 400),
        (UNSIGNED, SIZED | {"x-amz-trailer": "x-amz-checksum-crc32"}, "InvalidRequest", 400),
        (
            PayloadMode.SIGNED_CHUNKS.value,
            DECODED | {"x-amz-trailer": "x-amz-checksum-crc32"},
            "InvalidRequest",
            400,
        ),
        (
            UNSIGNED,
            SIZED | {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-sdk-checksum-algorithm": "SHA1"},
            "InvalidRequest",
            400,
        ),
        (
            CHUNKS,
            DECODED | {"x-amz-trailer": "x-amz-checksum-crc32", "x-amz-sdk-checksum-algorithm": "SHA1"},
            "InvalidRequest",
            400,
        ),
    ],
)
def test_heads_that_are_refused(payload_hash: str, headers: dict[str, str], code: str, status: int) -> None:
    """A head whose promises cannot be kept is refused before any body byte is read."""
    with pytest.raises(S3Error) as fault:
        payload_spec(Headers(headers.items()), payload_hash)
    assert (fault.value.code, fault.value.status) == (code, status)


@pytest.mark.parametrize("name", ["content-length", "x-amz-trailer", "x-amz-checksum-crc32"])
def test_fields_that_come_twice(name: str) -> None:
    """A field that must be single is refused when it is repeated, even with the same value."""
    fields = {**DECODED, "x-amz-trailer": "x-amz-checksum-crc32"}
    if name == "x-amz-checksum-crc32":
        fields = {**DECODED, name: "AAAAAA=="}
    with pytest.raises(S3Error) as fault:
        payload_spec(Headers([*fields.items(), (name, fields[name])]), CHUNKS)
    assert fault.value.code == "InvalidRequest"


def test_the_largest_payload() -> None:
    """5 GiB is still one PUT."""
    assert read(UNSIGNED, content_length=str(5 * 2**30)).length == 5 * 2**30


@pytest.mark.parametrize("mode", [PayloadMode.SIGNED_HASH, PayloadMode.UNSIGNED, PayloadMode.SIGNED_CHUNKS])
@pytest.mark.parametrize(
    "header",
    [
        {"content-md5": b64encode(bytes(16)).decode()},
        {"x-amz-checksum-sha1": b64encode(bytes(20)).decode()},
        {"x-amz-checksum-sha256": b64encode(bytes(32)).decode()},
    ],
)
def test_each_broken_digest(mode: PayloadMode, header: dict[str, str]) -> None:
    """One digest wrong, all other promises kept: BadDigest, and the payload's end is never given."""
    sent = upload(mode, HELLO, header)
    for cuts in ([sent.body], split(sent.body, 1)):
        passage = pass_through(sent, cuts)
        assert passage.fault is not None
        assert passage.fault.code == "BadDigest"
        assert passage.tail == b""
        assert len(passage.staged) < len(HELLO)


@pytest.mark.parametrize("mode", [PayloadMode.SIGNED_HASH, PayloadMode.UNSIGNED])
@pytest.mark.parametrize("body", [b"", HELLO[:-1], HELLO + b"!"])
def test_a_length_that_is_not_what_comes(mode: PayloadMode, body: bytes) -> None:
    """A body shorter or longer than announced is incomplete, and its end is never given."""
    sent = upload(mode, HELLO, SIZED, body=body)
    for cuts in ([sent.body], split(sent.body, 1)):
        passage = pass_through(sent, cuts)
        assert passage.fault is not None
        assert passage.fault.code == "IncompleteBody"
        assert passage.tail == b""
        assert len(passage.staged) < len(HELLO)


def test_another_body_than_was_hashed() -> None:
    """The signed SHA-256 is compared with the body's, and the answer names both."""
    sent = upload(PayloadMode.SIGNED_HASH, HELLO, body=b"Hello world")
    passage = pass_through(sent, [sent.body])
    assert passage.fault is not None
    assert passage.fault.code == "XAmzContentSHA256Mismatch"
    assert passage.fault.elements == {
        "ClientComputedContentSHA256": hashlib.sha256(HELLO).hexdigest(),
        "S3ComputedContentSHA256": hashlib.sha256(b"Hello world").hexdigest(),
    }
    assert passage.staged + passage.tail == b""


def test_a_hash_in_upper_case() -> None:
    """The signed SHA-256 may be written in either case."""
    decoder = PayloadDecoder(read(hashlib.sha256(HELLO).hexdigest().upper(), content_length="11"), None)
    assert decoder.feed(HELLO) == [HELLO]
    decoder.finish()


def test_promises_that_are_kept_together() -> None:
    """Signed hash, Content-MD5 and checksum all at once: verified, without a trailing checksum."""
    sent = upload(PayloadMode.SIGNED_HASH, HELLO, {"content-md5": MD5, "x-amz-checksum-sha256": SHA256})
    passage = pass_through(sent, [sent.body])
    assert (passage.fault, passage.tail) == (None, HELLO)
    decoder = sent.decoder()
    decoder.feed(HELLO)
    decoder.finish()
    assert decoder.trailing_checksum is None


def test_each_hash_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SHA-256 or MD5 that two headers promise is computed for both."""
    started: list[str] = []
    start = checksums.start

    def count(algorithm: str) -> checksums.Running:
        started.append(algorithm)
        return start(algorithm)

    monkeypatch.setattr(checksums, "start", count)
    upload(PayloadMode.SIGNED_HASH, HELLO, {"x-amz-checksum-sha256": SHA256}).decoder()
    assert started == ["sha256"]
    upload(PayloadMode.UNSIGNED, HELLO, {"content-md5": MD5, "x-amz-checksum-md5": MD5}).decoder()
    assert started == ["sha256", "md5"]
    upload(PayloadMode.SIGNED_CHUNKS, HELLO).decoder()
    assert started == ["sha256", "md5"]


def test_unframed_payload_is_the_object_that_came() -> None:
    """Without frames nothing is copied, and an empty read gives nothing."""
    decoder = upload(PayloadMode.UNSIGNED, HELLO).decoder()
    (piece,) = decoder.feed(HELLO)
    assert piece is HELLO
    assert decoder.feed(b"") == []


def test_complete_is_known_before_the_proof() -> None:
    """`complete` says that the payload is there while the closing frame is still to come."""
    sent = upload(PayloadMode.UNSIGNED_CHUNKS_TRAILER, HELLO, chunk=11)
    decoder = sent.decoder()
    known = []
    for byte in split(sent.body, 1):
        decoder.feed(byte)
        known.append(decoder.complete)
    assert known.index(True) == sent.body.index(b"world") + 4
    assert all(known[known.index(True) :])
    before = decoder.trailing_checksum
    decoder.finish()
    assert (before, decoder.trailing_checksum) == (None, ("crc32", crc32(HELLO)))
    assert upload(PayloadMode.UNSIGNED, b"").decoder().complete


def test_a_fault_at_the_end_is_final() -> None:
    """After `finish` has failed, nothing that comes later can mend it."""
    decoder = upload(PayloadMode.UNSIGNED, HELLO).decoder()
    for again in (decoder.finish, lambda: decoder.feed(HELLO), decoder.finish):
        with pytest.raises(S3Error) as fault:
            again()
        assert fault.value.code == "IncompleteBody"


def test_a_signer_belongs_to_signed_chunks() -> None:
    """Signed chunks cannot be decoded without verifying them; other bodies have nothing to sign."""
    signer = ChunkSigner(key(), AMZ_DATE, SCOPE, SEED)
    for mode in PayloadMode:
        with pytest.raises(ValueError, match="chunk signer"):
            PayloadDecoder(PayloadSpec(mode, 1), None if mode.signed_chunks else signer)


@given(payload=st.binary(max_size=40), places=st.lists(st.integers(0, 40)), batch=st.integers(1, 5))
def test_the_tail_completes_nothing_before_its_release(payload: bytes, places: list[int], batch: int) -> None:
    """Whatever pieces come, also empty ones, all but the last byte's piece passes, and nothing is lost."""
    tail, pieces, passed = Tail(len(payload)), cut(payload, places), b""
    for at in range(0, len(pieces), batch):
        passed += b"".join(tail.push(pieces[at : at + batch]))
        assert len(passed) < max(len(payload), 1)
    assert passed + tail.release() == payload


def test_the_tail_keeps_the_last_piece_whole() -> None:
    """The piece with the last byte is kept as the object it is, and an empty one behind it changes nothing."""
    first, last = os.urandom(1000), os.urandom(500)
    tail = Tail(1500)
    (passed,) = tail.push([first, last, b""])
    assert passed is first
    assert tail.push([b""]) == []
    assert tail.release() is last


def test_the_tail_is_released_once_and_not_early() -> None:
    """Before the last byte, or a second time, there is no tail; more than the payload is an error."""
    tail = Tail(3)
    tail.push([b"ab"])
    with pytest.raises(ValueError, match="1 bytes of payload"):
        tail.release()
    with pytest.raises(ValueError, match="more payload"):
        tail.push([b"cd"])
    assert tail.push([b"c"]) == []
    assert tail.release() == b"c"
    with pytest.raises(ValueError, match="released"):
        tail.release()


def test_an_empty_payload_has_no_tail() -> None:
    """Nothing is withheld where nothing comes."""
    assert Tail(0).release() == b""
