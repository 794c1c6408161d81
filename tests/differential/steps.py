"""One generated request, and what it takes from the answers before it.

A step says what is sent, not to whom: `Memory` holds what one side has answered so far (upload ids, version ids,
ETags), and turns the step into that side's bytes. Both sides get the same bytes wherever they have said the same.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from gateway.s3.sigv4 import presign
from tests.differential.memory import Memory
from tests.differential.sides import CREDENTIALS, HOST
from tests.end_to_end import wire

TOKEN = 7
EXPIRES_S = 600


class Late(Protocol):
    """A value that only a side's memory can tell."""

    def of(self, memory: Memory) -> str: ...


Value = str | Late


@dataclass(frozen=True)
class Bytes:
    """A payload that is printed shorter than it is."""

    size: int
    seed: int = 0

    @property
    def data(self) -> bytes:
        """Not compressible to nothing, and with all byte values."""
        block = hashlib.sha512(str(self.seed).encode()).digest() + bytes(range(256))
        return (block * (self.size // len(block) + 1))[: self.size]


@dataclass(frozen=True)
class UploadId:
    number: int

    def of(self, memory: Memory) -> str:
        return memory.upload(self.number)[1]


@dataclass(frozen=True)
class UploadKey:
    """The object key of an upload; a plain one while there is none."""

    number: int

    def of(self, memory: Memory) -> str:
        return memory.upload(self.number)[0]


@dataclass(frozen=True)
class VersionId:
    number: int

    def of(self, memory: Memory) -> str:
        return memory.version(self.number)[1]


@dataclass(frozen=True)
class VersionKey:
    """The object key of the answer that named the version."""

    number: int

    def of(self, memory: Memory) -> str:
        return memory.version(self.number)[0]


@dataclass(frozen=True)
class ETagOf:
    """What a key's ETag was when it was last told; `form` holds it."""

    key: str
    form: str = "{}"

    def of(self, memory: Memory) -> str:
        return self.form.replace("{}", memory.etags.get(self.key, '"00000000000000000000000000000000"'))


@dataclass(frozen=True)
class ModifiedOf:
    """What a key's Last-Modified was when it was last told."""

    key: str

    def of(self, memory: Memory) -> str:
        return memory.modified.get(self.key, "Thu, 01 Jan 2026 00:00:00 GMT")


@dataclass(frozen=True)
class Told:
    """The text of an element that an answer held last: a continuation token, a marker."""

    element: str

    def of(self, memory: Memory) -> str:
        return memory.told.get(self.element, "bm90aGluZw==")


@dataclass(frozen=True)
class Parts:
    """The body of a CompleteMultipartUpload: the upload's parts as they were answered."""

    upload: int
    form: str = "right"
    """`right`, `reversed`, `wrong etag`, `bare etags`, `one more`, `none`."""

    def of(self, memory: Memory) -> str:
        parts = sorted(memory.parts_of(self.upload).items(), reverse=self.form == "reversed")
        if self.form == "wrong etag":
            parts = [(number, '"0123456789abcdef0123456789abcdef"') for number, _ in parts]
        elif self.form == "bare etags":
            parts = [(number, etag.strip('"')) for number, etag in parts]
        elif self.form == "one more":
            parts.append((9, '"0123456789abcdef0123456789abcdef"'))
        elif self.form == "none":
            parts = []
        listed = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts)
        return f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"


@dataclass(frozen=True)
class Deleted:
    """The body of a DeleteObjects; a number names a version."""

    objects: tuple[tuple[str, int | None], ...]
    quiet: bool | None = None

    def of(self, memory: Memory) -> str:
        quiet = "" if self.quiet is None else f"<Quiet>{str(self.quiet).lower()}</Quiet>"
        parts = []
        for key, number in self.objects:
            version = "" if number is None else f"<VersionId>{VersionId(number).of(memory)}</VersionId>"
            name = key if number is None else VersionKey(number).of(memory)
            parts.append(f"<Object><Key>{_xml(name)}</Key>{version}</Object>")
        return f"<Delete>{quiet}{''.join(parts)}</Delete>"


def _xml(text: str) -> str:
    plain = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}
    return "".join(plain.get(character, character) for character in text)


@dataclass(frozen=True)
class Step:
    """One request."""

    operation: str
    """The row of the operation table that it is meant for."""
    method: str
    key: Value | None = None
    """Decoded."""
    query: tuple[tuple[str, Value], ...] = ()
    """Decoded."""
    headers: tuple[tuple[str, Value], ...] = ()
    """Lower-case names."""
    body: Bytes | Value | None = None
    mode: str = "hex"
    """How the payload is sent: `tests.end_to_end.wire.MODES`, `presigned`, or `anonymous`."""
    safe: str = "/-._~"
    """What is not escaped in the path."""
    bucket: str | None = ""
    """The empty name is the sequence's own bucket; None the service."""
    digest: str | None = None
    """A header that tells the body's digest: `content-md5` or `x-amz-checksum-…`."""
    expects: bool = False
    """The body waits for `100 Continue`."""


@dataclass(frozen=True)
class Fence:
    """How a sequence speaks to the fence."""

    name: str = "none"
    prefix: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    on_parts: bool = True
    """Parts and Complete bear the token too; else Create alone does."""


def fence(name: str, *, on_parts: bool = True) -> Fence:
    """`none`; `rule`, which derives the key; `header`, which names it; `object`, where it is the object's own."""
    token = ("x-fencing-token", str(TOKEN))
    if name == "rule":
        return Fence(name, "renders/job/", (token,), on_parts)
    if name == "header":
        return Fence(name, "", (token, ("x-fencing-key", "differential")), on_parts)
    if name == "object":
        return Fence(name, "", (token,), on_parts)
    return Fence()


def rendered(step: Step, bucket: str, memory: Memory, extra: tuple[tuple[str, str], ...] = ()) -> wire.Request:
    """The step's bytes for one side; `extra` are the headers that speak to the fence."""
    path = "/" if step.bucket is None else f"/{step.bucket or bucket}"
    if step.key is not None:
        path += "/" + quote(_text(step.key, memory), safe=step.safe)
    query = "&".join(
        quote(name, safe="")
        + ("=" + quote(text, safe="") if (text := _text(value, memory)) or name == "prefix" else "")
        for name, value in step.query
    )
    headers = [(name, _text(value, memory).replace("{bucket}", bucket)) for name, value in step.headers]
    payload = step.body.data if isinstance(step.body, Bytes) else _text(step.body or "", memory).encode()
    if step.digest is not None:
        headers.append((step.digest, _digest(step.digest, payload)))
    if step.expects:
        headers.append(("expect", "100-continue"))
    headers += extra
    if step.mode in ("presigned", "anonymous"):
        return _bare(step, path, query, tuple(headers), payload)
    return wire.request(
        step.method, HOST, path, payload, CREDENTIALS, mode=step.mode, query=query, headers=tuple(headers)
    )


def _bare(step: Step, path: str, query: str, headers: tuple[tuple[str, str], ...], payload: bytes) -> wire.Request:
    """Without an Authorization header: signed in the query, or not at all."""
    if step.mode == "presigned":
        signed = [pair for pair in headers if pair[0] != "expect"]
        query = presign(
            step.method, HOST, path, query, signed, expires_s=EXPIRES_S, credentials=CREDENTIALS,
            region=wire.REGION, now=time.time(),
        )  # fmt: skip
    lines = [f"{step.method} {path}{'?' + query if query else ''} HTTP/1.1", f"host: {HOST}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if payload or step.method in ("PUT", "POST"):
        lines.append(f"content-length: {len(payload)}")
    return wire.Request(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape"), payload)


def _text(value: Value, memory: Memory) -> str:
    return value if isinstance(value, str) else value.of(memory)


def _digest(header: str, payload: bytes) -> str:
    if header == "content-md5":
        raw = hashlib.md5(payload, usedforsecurity=False).digest()
    elif header == "x-amz-checksum-sha256":
        raw = hashlib.sha256(payload).digest()
    elif header == "x-amz-checksum-sha1":
        raw = hashlib.sha1(payload, usedforsecurity=False).digest()
    else:
        raw = zlib.crc32(payload).to_bytes(4, "big")
    return b64encode(raw).decode()
