"""A small body as one signed chunk, to see whether a store understands that (S3 API reference, "Signature calculations:
transferring payload in multiple chunks"). The gateway takes such bodies from its clients, and sends none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

from gateway.s3.claim import STREAMING_SIGNED
from gateway.s3.sigv4 import ChunkSigner, Credentials, signing_key
from gateway.upstream.base import UpstreamRequest

_DATE = re.compile(rb"\r\nx-amz-date: (\S+)")
_SCOPE = re.compile(rb"Credential=[^/]+/(\S+),")
_SIGNATURE = re.compile(rb"Signature=([0-9a-f]{64})")


def announced(request: UpstreamRequest, payload: bytes) -> UpstreamRequest:
    """The request, to be signed as one whose body comes in signed chunks."""
    headers = (*request.headers, ("x-amz-decoded-content-length", str(len(payload))))
    return replace(request, headers=headers, payload_sha256=STREAMING_SIGNED)


def framed_length(payload: bytes) -> int:
    """The length of the body on the wire."""
    return len(_framed(payload, lambda _: "0" * 64))


def framed(payload: bytes, head: bytes, credentials: Credentials, region: str) -> bytes:
    """The body that goes with the signed `head`."""
    date, scope, seed = (_found(pattern, head) for pattern in (_DATE, _SCOPE, _SIGNATURE))
    signer = ChunkSigner(signing_key(credentials.secret_key, date[:8], region, "s3"), date, scope, seed)
    return _framed(payload, signer.chunk_signature)


def _found(pattern: re.Pattern[bytes], head: bytes) -> str:
    match = pattern.search(head)
    assert match is not None, "the head has been signed"
    return match[1].decode()


def _framed(payload: bytes, sign: Callable[[str], str]) -> bytes:
    """The payload as one chunk, and the empty one that ends it."""
    return b"".join(
        b"%x;chunk-signature=%b\r\n%b\r\n" % (len(piece), sign(sha256(piece).hexdigest()).encode(), piece)
        for piece in (payload, b"")
    )
