"""aws-chunked bodies, right and spoilt, in any pieces: always the same payload, or the same fault."""

# ruff: noqa: PT017

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.payload import PayloadMode
from tests.fuzz.settings import short
from tests.s3.bodies import Passage, Upload, cut, pass_through, upload

SPOILT = (
    b"\r\n", b"\n", b"\r", b"0\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b";", b";chunk-signature=", b"f" * 17, b"0" * 30,
    b"x-amz-checksum-crc32:AAAAAA==\r\n", b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n", b"a:b\r\n", b":\r\n", b" ",
    b"\0", b"-1", b"0x5", b"x" * 1025,
)  # fmt: skip
places = st.lists(st.integers(0, 2000), max_size=6)


@st.composite
def sendings(draw: st.DrawFn) -> Upload:
    """An upload; its body changed in a few places, perhaps."""
    payload = draw(st.binary(max_size=40)) * draw(st.sampled_from((1, 1, 20)))
    sent = upload(draw(st.sampled_from(PayloadMode)), payload, chunk=draw(st.sampled_from((1, 3, 16, 1000))))
    body = sent.body
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        taken = draw(st.sampled_from((0, 0, 1, 2, 40)))
        body = body[:at] + draw(st.one_of(st.sampled_from(SPOILT), st.binary(max_size=2))) + body[at + taken :]
    return replace(sent, body=body)


def unframed(body: bytes) -> bytes | None:
    """The payload of unsigned or signed frames, read by another hand; None where they are broken."""
    payload, at = b"", 0
    while head := re.compile(rb"([0-9A-Fa-f]+)(?:;[^\r\n]*)?\r\n").match(body, at):
        size, at = int(head[1], 16), head.end()
        if size == 0:
            return payload
        payload += body[at : at + size]
        at += size + 2
    return None


def told(passage: Passage) -> tuple[str, dict[str, str]] | None:
    """The fault, but for how much of a body that is too long had come by then."""
    if passage.fault is None:
        return None
    return passage.fault.code, {n: v for n, v in passage.fault.elements.items() if n != "NumberBytesProvided"}


@short(500)
@given(sent=sendings(), one=places, other=places)
def test_any_body_in_any_pieces(sent: Upload, one: list[int], other: list[int]) -> None:
    """Where a body is cut changes neither what comes of it nor which fault it has. What is taken is what stands in the
    frames; of what is refused the end has been withheld."""
    size = len(sent.body) + 1
    first, second, whole = (
        pass_through(sent, cut(sent.body, [place % size for place in cuts])) for cuts in (one, other, [])
    )
    assert told(first) == told(second) == told(whole)
    length = sent.decoder().spec.length
    for passage in (first, second, whole):
        if passage.fault is not None:
            assert len(passage.staged) < max(length, 1)
            continue
        payload = passage.staged + passage.tail
        assert len(payload) == length
        assert payload == (unframed(sent.body) if sent.decoder().spec.mode.chunked else sent.body)


@short(200)
@given(sent=sendings(), cuts=places)
def test_after_a_fault_nothing_more_is_given(sent: Upload, cuts: list[int]) -> None:
    """A fault is final, whatever follows."""
    decoder = sent.decoder()
    fault: S3Error | None = None
    for piece in cut(sent.body, [place % (len(sent.body) + 1) for place in cuts]):
        try:
            decoder.feed(piece)
            assert fault is None
        except S3Error as error:
            assert fault in (None, error)
            fault = error
