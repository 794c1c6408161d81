"""aws-chunked: frames that S3 takes and refuses, and the frames that the gateway writes."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from botocore.httpchecksum import _CHECKSUM_CLS, AwsChunkedWrapper
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3 import checksums
from gateway.s3.chunked import length_fault
from gateway.s3.errors import S3Error
from gateway.s3.payload import PayloadMode, TrailerEncoder
from tests.s3.bodies import crc32, cut, pass_through, signed_chunks, split, unsigned_chunks, upload

HELLO = b"hello world"
CRC = f"x-amz-checksum-crc32:{crc32(HELLO)}"
UNSIGNED = PayloadMode.UNSIGNED_CHUNKS_TRAILER
SIGNED = PayloadMode.SIGNED_CHUNKS
SIGNED_TRAILER = PayloadMode.SIGNED_CHUNKS_TRAILER
SIGNED_BODY = signed_chunks(split(HELLO, 6))
SIGNED_TRAILER_BODY = signed_chunks(split(HELLO, 6), CRC)


def code_of(mode: PayloadMode, body: bytes, payload: bytes = HELLO) -> str | None:
    """The fault of a body, the same whole and byte by byte, and never with the payload's end released."""
    sent = upload(mode, payload, body=body)
    whole, bytewise = pass_through(sent, [body]), pass_through(sent, split(body, 1))
    codes = [passage.fault.code if passage.fault else None for passage in (whole, bytewise)]
    assert codes[0] == codes[1]
    for passage in (whole, bytewise):
        assert len(passage.staged) < len(payload)
        assert (passage.staged + passage.tail == payload) == (passage.fault is None)
    return codes[0]


def test_the_published_streaming_example() -> None:
    """The body of S3's "sigv4-streaming" page: 66,560 bytes in two chunks."""
    body = b"".join(
        (
            b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n",
            b"a" * 65536 + b"\r\n",
            b"400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
            b"a" * 1024 + b"\r\n",
            b"0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
        )
    )
    assert len(body) == 66_824  # the page's Content-Length
    passage = pass_through(upload(SIGNED, b"a" * 66_560, chunk=65_536, body=body), [body])
    assert passage.fault is None
    assert passage.staged + passage.tail == b"a" * 66_560


def test_the_published_trailer_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks and the signed trailer of S3's "sigv4-streaming-trailers" page."""
    monkeypatch.setattr("tests.s3.bodies.SEED", "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e")
    body = b"".join(
        (
            b"10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n",
            b"a" * 65536 + b"\r\n",
            b"400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n",
            b"a" * 1024 + b"\r\n",
            b"0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n",
            b"x-amz-checksum-crc32c:sOO8/Q==\n\r\n",
            b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n",
        )
    )
    sent = upload(SIGNED_TRAILER, b"a" * 66_560, {"x-amz-trailer": "x-amz-checksum-crc32c"}, chunk=65_536, body=body)
    passage = pass_through(sent, [body])
    assert passage.fault is None
    assert passage.staged + passage.tail == b"a" * 66_560


@pytest.mark.parametrize("algorithm", sorted(checksums.ALGORITHMS - {"md5"}))
@pytest.mark.parametrize("size", [0, 1, 4999, 5000, 12_345])
def test_what_botocore_frames(algorithm: str, size: int) -> None:
    """Bodies out of botocore's own framing come through, for each of its algorithms."""
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    name = f"x-amz-checksum-{algorithm}"
    body = AwsChunkedWrapper(io.BytesIO(payload), _CHECKSUM_CLS[algorithm], name, chunk_size=5000).read()
    sent = upload(UNSIGNED, payload, {"x-amz-trailer": name}, body=body)
    decoder = sent.decoder()
    assert b"".join(decoder.feed(body)) == payload
    decoder.finish()
    assert decoder.trailing_checksum == (algorithm, _CHECKSUM_CLS[algorithm]().handle(payload))


@pytest.mark.parametrize(
    "body",
    [
        unsigned_chunks([HELLO], CRC),
        unsigned_chunks([HELLO], CRC).replace(b"==\r\n", b"==\n\r\n"),
        unsigned_chunks([HELLO], CRC).replace(b"crc32:", b"CRC32 : "),
        unsigned_chunks([HELLO], CRC).replace(b"b\r\n", b"B\r\n"),
        unsigned_chunks([HELLO], CRC).replace(b"b\r\n", b"000b\r\n"),
        unsigned_chunks([HELLO], CRC).replace(b"b\r\n", b'b;name="value"\r\n'),
        unsigned_chunks([HELLO], CRC).replace(b"b\r\n", b"b;chunk-signature=1\r\n"),
    ],
    ids=["crlf", "lf-crlf", "spaces", "upper-case", "zeros", "extension", "signature"],
)
def test_ways_to_write_unsigned_frames(body: bytes) -> None:
    """The variations that clients are known to send, or that HTTP's chunks allow, are taken."""
    assert code_of(UNSIGNED, body) is None


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n\r\n", b"\n"])
def test_ways_to_end_a_signed_trailer_line(line_end: bytes) -> None:
    """The signature covers a line that ends with LF; clients send it with CRLF, LF CRLF or LF."""
    assert code_of(SIGNED_TRAILER, signed_chunks([HELLO], CRC, line_end)) is None


def test_a_trailer_need_not_be_announced() -> None:
    """Without `x-amz-trailer` an unsigned chunked body may end without a checksum, as on S3."""
    body = unsigned_chunks([HELLO])
    sent = upload(UNSIGNED, HELLO, body=body)
    headers = tuple(field for field in sent.headers if field[0] != "x-amz-trailer")
    passage = pass_through(type(sent)(headers, sent.payload_hash, body), [body])
    assert passage.fault is None
    body = unsigned_chunks([HELLO], CRC)
    passage = pass_through(type(sent)(headers, sent.payload_hash, body), [body])
    assert passage.fault is not None
    assert passage.fault.code == "MalformedTrailerError"


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"-b", b"+b", b"0xb", b"b_", b" b", b"b ", b"g", b"a", b"c"),
        *(b"b;x=\ny", b"b;x=\ry", b"b\r", b"1" * 17, b"f" * 16, b"b;" + b"x" * 1100),
    ],
)
def test_frame_heads_that_are_none(head: bytes) -> None:
    """A size that is not plain hexadecimal digits, or not the data's, is a broken body."""
    assert code_of(UNSIGNED, unsigned_chunks([HELLO], CRC).replace(b"b\r\n", head + b"\r\n", 1)) == "IncompleteBody"


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"b\r\n", b"b\n"), (b"world\r\n", b"world"), (b"world\r\n", b"worldXX"), (b"world\r\n", b"world\n")],
)
def test_line_ends_that_are_none(old: bytes, new: bytes) -> None:
    """Frames end with CRLF and nothing else."""
    assert code_of(UNSIGNED, unsigned_chunks([HELLO], CRC).replace(old, new, 1)) == "IncompleteBody"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b";chunk-signature=", b""),
        (b";chunk-signature=", b";chunk-signature:"),
        (b";chunk-signature=", b";chunk-signature=0"),
        (b";chunk-signature=", b";chunk-signature=\n"),
        (b";chunk-signature=", b";signature="),
        (b"=", b"=A"),
    ],
)
def test_signatures_that_are_none(old: bytes, new: bytes) -> None:
    """A signed frame without a well-formed signature is a broken body."""
    assert code_of(SIGNED, SIGNED_BODY.replace(old, new, 1)) == "IncompleteBody"


def test_a_line_without_end() -> None:
    """What never ends its line is refused when its 1,024 bytes are over, not when the body ends."""
    for start in (b"", b"b\r\nhello world\r\n0\r\n"):
        whole, bytewise = (upload(UNSIGNED, HELLO).decoder() for _ in range(2))
        whole.feed(start)
        bytewise.feed(start)
        for byte in split(b"1" * 1023, 1):
            bytewise.feed(byte)
        for feed, data in ((whole.feed, b"1" * 1024), (bytewise.feed, b"1")):
            with pytest.raises(S3Error) as fault:
                feed(data)
            assert fault.value.code == "IncompleteBody"


def forge(body: bytes, at: int) -> bytes:
    """With one bit of the hexadecimal digit or letter at that place changed."""
    digit = b"0" if body[at : at + 1] != b"0" else b"1"
    return body[:at] + digit + body[at + 1 :]


@pytest.mark.parametrize("mode", [SIGNED, SIGNED_TRAILER])
def test_every_signature_and_every_signed_byte_counts(mode: PayloadMode) -> None:
    """A change of one character of any chunk's signature, data or trailer signature is found."""
    body = SIGNED_BODY if mode is SIGNED else SIGNED_TRAILER_BODY
    places = [body.index(b"hello"), body.index(b"world")]
    at = -1
    while (at := body.find(b"signature", at + 1)) >= 0:
        places.append(at + len(b"signature=") + 7)
    assert len(places) == (5 if mode is SIGNED else 6)
    for place in places:
        assert code_of(mode, forge(body, place)) == "SignatureDoesNotMatch"


def test_a_forged_chunk_stops_at_its_end() -> None:
    """The second of three chunks is forged: its last byte, and all after it, is given to nobody."""
    payload = b"first second third"
    body = signed_chunks([b"first ", b"second ", b"third"]).replace(b"second", b"sEcond")
    decoder = upload(SIGNED, payload, body=body).decoder()
    end_of_second = body.index(b"sEcond ") + len(b"sEcond ")
    given = b"".join(piece for byte in split(body[: end_of_second - 1], 1) for piece in decoder.feed(byte))
    assert given == b"first sEcond"
    with pytest.raises(S3Error) as first:
        decoder.feed(body[end_of_second - 1 :])
    assert first.value.code == "SignatureDoesNotMatch"
    for again in (lambda: decoder.feed(b"third"), decoder.finish):
        with pytest.raises(S3Error) as fault:
            again()
        assert fault.value is first.value


def test_chunks_in_another_order() -> None:
    """Whole chunks, each with its right signature, cannot change places."""
    first, second, end = SIGNED_BODY.split(b"\r\n", 2)[0], SIGNED_BODY.split(b"\r\n")[2], SIGNED_BODY[-92:]
    swapped = second + b"\r\nworld\r\n" + first + b"\r\nhello \r\n" + end
    assert code_of(SIGNED, swapped) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "trailer",
    [
        b"",
        b":" + crc32(HELLO).encode() + b"\r\n",
        CRC.replace(":", "").encode() + b"\r\n",
        CRC.replace("crc32", "crc32c").encode() + b"\r\n",
        (CRC + "\r\n").encode() * 2,
        b"x-other:1\r\n",
        (CRC + "\r\n").encode() + b"x-other:1\r\n",
        (CRC + "\r\n").encode() + b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n",
        b"\n" + (CRC + "\r\n").encode(),
        b"\r\n0\r\n" + (CRC + "\r\n").encode(),
        b"0\r\n" + (CRC + "\r\n").encode(),
        (CRC + "\r\n").encode() + b"\r\nGET / HTTP/1.1\r\n",
    ],
    ids=[
        *("missing", "no-name", "no-colon", "other", "twice", "unknown", "and-unknown", "signed", "lf"),
        *("zero-twice", "zero-twice-tight", "bytes-after"),
    ],
)
def test_trailers_that_were_not_announced(trailer: bytes) -> None:
    """A trailer that is not exactly the announced one, and whatever follows it, is refused."""
    body = unsigned_chunks([HELLO])[:-2] + trailer + b"\r\n"
    assert code_of(UNSIGNED, body) == "MalformedTrailerError"


def test_signed_trailers_that_were_not_announced() -> None:
    """A signed trailer needs checksum and signature in this order and nothing more; without `-TRAILER` none."""
    head, checksum, signature, _, _ = SIGNED_TRAILER_BODY.rsplit(b"\r\n", 4)
    for lines, code in (
        ((checksum,), "MalformedTrailerError"),
        ((signature,), "SignatureDoesNotMatch"),
        ((checksum, signature, signature), "MalformedTrailerError"),
        ((checksum, signature, checksum), "MalformedTrailerError"),
        ((checksum, signature, b"x:y"), "MalformedTrailerError"),
    ):
        assert code_of(SIGNED_TRAILER, b"\r\n".join((head, *lines, b"", b""))) == code
    assert code_of(SIGNED, SIGNED_TRAILER_BODY) == "MalformedTrailerError"
    doubled = SIGNED_BODY + SIGNED_BODY[-86:]
    assert code_of(SIGNED, doubled) == "MalformedTrailerError"


def test_trailing_checksums_that_are_wrong() -> None:
    """A checksum of other bytes is a wrong digest; one that is none at all is an invalid value."""
    for mode, frame in ((UNSIGNED, unsigned_chunks), (SIGNED_TRAILER, signed_chunks)):
        assert code_of(mode, frame([HELLO], f"x-amz-checksum-crc32:{crc32(b'x')}")) == "BadDigest"
        for value in ("", "AAAA", "????????", "AAAAAA=", "é"):
            assert code_of(mode, frame([HELLO], f"x-amz-checksum-crc32:{value}")) == "InvalidRequest"


@pytest.mark.parametrize("mode", [SIGNED, SIGNED_TRAILER, UNSIGNED])
def test_a_body_cut_short(mode: PayloadMode) -> None:
    """A framed body that ends before its end, wherever, is incomplete, and its payload's end unreleased."""
    whole = upload(mode, HELLO)
    for end in range(len(whole.body)):
        passage = pass_through(whole, [whole.body[:end]])
        assert passage.fault is not None
        assert passage.fault.code == "IncompleteBody"
        assert len(passage.staged) < len(HELLO)


@pytest.mark.parametrize("mode", [SIGNED, SIGNED_TRAILER, UNSIGNED])
def test_a_decoded_length_that_is_not_what_comes(mode: PayloadMode) -> None:
    """`x-amz-decoded-content-length` one larger, one smaller, or zero: incomplete, nothing completed."""
    for length in (12, 10, 0):
        sent = upload(mode, HELLO, {"x-amz-decoded-content-length": str(length)})
        for cuts in ([sent.body], split(sent.body, 1)):
            passage = pass_through(sent, cuts)
            assert passage.fault is not None
            assert passage.fault.code == "IncompleteBody"
            assert passage.fault.elements["NumberBytesExpected"] == str(length)
            assert passage.tail == b""
            assert len(passage.staged) < max(length, 1)


@pytest.mark.parametrize("mode", [SIGNED, SIGNED_TRAILER, UNSIGNED])
def test_a_frame_beyond_the_decoded_length_is_the_first_fault(mode: PayloadMode) -> None:
    """Whatever else is wrong behind its head, and wherever the body is cut, a frame that is too long is the fault."""
    sent = upload(mode, HELLO, {"x-amz-decoded-content-length": "10"})
    spoilt = replace(sent, body=sent.body.replace(b"d\r\n0", b"no frame"))
    faults = [pass_through(spoilt, split(spoilt.body, size)).fault for size in (1, 7, 1000)]
    assert [fault and fault.elements for fault in faults] == [length_fault(10, 11).elements] * 3
    assert spoilt != sent


def test_a_chunk_of_any_size_is_not_held() -> None:
    """Data inside a 5 GiB chunk is handed on as the very object that came."""
    for mode, extension in ((UNSIGNED, b""), (SIGNED, b";chunk-signature=" + b"0" * 64)):
        decoder = upload(mode, b"", {"x-amz-decoded-content-length": str(5 * 2**30)}, body=b"").decoder()
        assert decoder.feed(b"140000000" + extension + b"\r\n") == []
        data = bytes(65536)
        for _ in range(3):
            (piece,) = decoder.feed(data)
            assert piece is data


class SmallFrames(TrailerEncoder):
    FRAME_BYTES = 16


@given(payload=st.binary(max_size=100), places=st.lists(st.integers(0, 100)))
def test_the_encoder_frames_what_its_length_says(payload: bytes, places: list[int]) -> None:
    """Whatever pieces the payload comes in, its frames are those of botocore and as long as foretold."""
    name = "x-amz-checksum-crc32"
    encoder = SmallFrames(len(payload), name)
    body = b"".join(part for piece in cut(payload, places) for part in encoder.encode(piece))
    body += encoder.closing(crc32(payload))
    assert body == AwsChunkedWrapper(io.BytesIO(payload), _CHECKSUM_CLS["crc32"], name, chunk_size=16).read()
    assert len(body) == SmallFrames.encoded_length(len(payload), name, checksums.value_length("crc32"))


def test_the_encoder_writes_each_frame_part_with_its_byte() -> None:
    """A head comes with its frame's first byte, the frame's end with its last; full pieces stay the same object."""
    encoder = TrailerEncoder(65537, "x-amz-checksum-crc32")
    piece = bytes(65535)
    head, same = encoder.encode(piece)
    assert (head, same is piece) == (b"10000\r\n", True)
    assert encoder.encode(b"ab") == [b"a", b"\r\n", b"1\r\n", b"b", b"\r\n"]
    assert encoder.encode(b"") == []


def test_the_encoder_refuses_another_length() -> None:
    """More payload than announced, or a closing before its end, is an error and changes nothing."""
    encoder = TrailerEncoder(2, "x-amz-checksum-crc32")
    with pytest.raises(ValueError, match="more payload"):
        encoder.encode(b"abc")
    encoder.encode(b"a")
    with pytest.raises(ValueError, match="1 bytes of payload"):
        encoder.closing("AAAAAA==")
    assert b"".join(encoder.encode(b"b")) == b"b\r\n"


@given(
    payload=st.binary(max_size=60),
    chunk=st.integers(1, 70),
    mode=st.sampled_from([SIGNED, SIGNED_TRAILER, UNSIGNED]),
    places=st.lists(st.integers(0, 500)),
)
def test_any_split_gives_the_same_payload(payload: bytes, chunk: int, mode: PayloadMode, places: list[int]) -> None:
    """However chunks are sized and the wire is cut, the payload is the same and its end comes last."""
    sent = upload(mode, payload, chunk=chunk)
    passage = pass_through(sent, cut(sent.body, places))
    assert passage.fault is None
    assert passage.staged + passage.tail == payload
    assert bool(passage.tail) == bool(payload)
