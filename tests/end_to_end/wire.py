"""Uploads byte by byte, in every payload mode: what goes over the wire, and when, is the test's to say."""

from __future__ import annotations

import asyncio
import hashlib
import time
import zlib
from base64 import b64encode
from dataclasses import dataclass, field

from gateway.s3.claim import STREAMING_SIGNED, STREAMING_SIGNED_TRAILER, STREAMING_UNSIGNED_TRAILER, UNSIGNED_PAYLOAD
from gateway.s3.sigv4 import ChunkSigner, Credentials, sign_headers, signing_key

REGION = "us-east-1"
CHUNK = 65536
MODES = ("hex", UNSIGNED_PAYLOAD, STREAMING_SIGNED, STREAMING_SIGNED_TRAILER, STREAMING_UNSIGNED_TRAILER)


@dataclass(frozen=True)
class Request:
    """A signed request: its head and its body as they go over the wire."""

    head: bytes
    body: bytes
    last: int = 1
    """How many of the last wire bytes hold back the last payload byte."""


def request(
    method: str,
    host: str,
    path: str,
    payload: bytes,
    credentials: Credentials,
    *,
    mode: str = "hex",
    query: str = "",
    headers: tuple[tuple[str, str], ...] = (),
) -> Request:
    """Sign a request whose body is sent in `mode`."""
    fields = list(headers)
    trailer = f"x-amz-checksum-crc32:{b64encode(zlib.crc32(payload).to_bytes(4, 'big')).decode()}"
    if mode.startswith("STREAMING"):
        fields += [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", str(len(payload)))]
        if mode != STREAMING_SIGNED:
            fields.append(("x-amz-trailer", "x-amz-checksum-crc32"))
    payload_hash = hashlib.sha256(payload).hexdigest() if mode == "hex" else mode
    added = sign_headers(
        method,
        host,
        path,
        query,
        fields,
        payload_hash=payload_hash,
        credentials=credentials,
        region=REGION,
        now=time.time(),
    )
    named = dict(added)
    body = payload
    if mode.startswith("STREAMING"):
        signer = None
        if mode != STREAMING_UNSIGNED_TRAILER:
            signature = named["authorization"].rpartition("Signature=")[2]
            day = named["x-amz-date"][:8]
            key = signing_key(credentials.secret_key, day, REGION, "s3")
            signer = ChunkSigner(key, named["x-amz-date"], f"{day}/{REGION}/s3/aws4_request", signature)
        body = _framed(payload, signer, trailer if mode != STREAMING_SIGNED else None)
    lines = [f"{method} {path}{'?' + query if query else ''} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in (*fields, *added)]
    lines.append(f"content-length: {len(body)}")
    return Request(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape"), body)


def _framed(payload: bytes, signer: ChunkSigner | None, trailer: str | None) -> bytes:
    parts = []
    for at in [*range(0, len(payload), CHUNK), len(payload)]:
        chunk = payload[at : at + CHUNK]
        extension = b""
        if signer is not None:
            signature = signer.chunk_signature(hashlib.sha256(chunk).hexdigest())
            extension = b";chunk-signature=" + signature.encode()
        parts.append(b"%x%b\r\n" % (len(chunk), extension) + (chunk + b"\r\n" if chunk else b""))
    if trailer is not None:
        parts.append(trailer.encode() + b"\r\n")
        if signer is not None:
            signature = signer.trailer_signature(hashlib.sha256(trailer.encode() + b"\n").hexdigest())
            parts.append(f"x-amz-trailer-signature:{signature}\r\n".encode())
    return b"".join(parts) + b"\r\n"


@dataclass
class Answer:
    """A response: status, lower-case headers, body."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Conversation:
    """One connection on which a request is sent in pieces."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Conversation:
        return cls(*await asyncio.open_connection(*address))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, bound_s: float = 30.0, *, bodiless: bool = False) -> Answer:
        """The next answer; `bodiless`: to a HEAD."""
        async with asyncio.timeout(bound_s):
            head = await self._reader.readuntil(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:] if line)}
            length = 0 if bodiless else int(headers.get("content-length", "0"))
            body = await self._reader.readexactly(length)
        return Answer(int(lines[0].split()[1]), headers, body)

    def close(self) -> None:
        self._writer.close()


async def exchange(address: tuple[str, int], sent: Request) -> Answer:
    """Send a whole request and read its answer."""
    conversation = await Conversation.open(address)
    await conversation.send(sent.head + sent.body)
    try:
        return await conversation.answer()
    finally:
        conversation.close()
