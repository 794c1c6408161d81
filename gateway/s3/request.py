"""A request's head as values: target, bucket, object key, query and headers, exactly as they were sent.

Nothing here re-encodes: signatures cover the bytes of the wire, and the upstream gets them back unchanged. What readers
would decode differently is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from urllib.parse import unquote_to_bytes

from gateway.s3.errors import S3Error

MAX_KEY_BYTES = 1024
"""S3 API reference, "Object key naming guidelines": 1,024 bytes of UTF-8."""
_NAME = itemgetter(0)
BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""S3's rules, and the wider ones that old buckets follow."""
_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


MAX_KEPT_BYTES = 2048
"""Of longer lists of names than clients send nothing is kept: they come before any proof."""


@lru_cache(maxsize=256)
def _names(lines: bytes) -> tuple[str, ...]:
    """The names of fields, lower-cased, from a line each. Of equal lines always the same tuple: what is looked up by
    it, or by one of its names, compares identities, not texts."""
    return tuple(lines.decode("latin-1").lower().split("\n"))


class Headers:
    """Header fields in their order; names lower-cased, values as text (UTF-8, else surrogate escapes).

    One client sends the same names in request after request. What depends on `names` alone is therefore worth
    finding out once, in a bounded cache."""

    __slots__ = ("first", "get", "names", "pairs", "repeats")

    def __init__(self, pairs: Iterable[tuple[str, str]], names: tuple[str, ...] | None = None) -> None:
        """`names`: those of `pairs`, if they are at hand."""
        self.pairs = tuple(pairs)
        self.names = tuple(map(_NAME, self.pairs)) if names is None else names
        """The name of each field, in order."""
        self.first = dict(self.pairs)
        """The first value of each name."""
        self.repeats = len(self.first) < len(self.pairs)
        """Whether some name comes more than once."""
        if self.repeats:
            self.first.update(reversed(self.pairs))
        self.get: Callable[[str], str | None] = self.first.get
        """The first value of that (lower-case) name."""

    @classmethod
    def of_raw(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """From the wire's bytes, in which no line feed stands."""
        names, values = _names_and_values(raw)
        return cls(zip(names, values, strict=True), names)

    def all(self, name: str) -> list[str]:
        """Every field of that name, in order."""
        if self.repeats:
            return [v for n, v in self.pairs if n == name]
        return [self.first[name]] if name in self.first else []

    def __contains__(self, name: str) -> bool:
        return name in self.first


def decoded(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Fields of the wire as text: names lower-cased, values as UTF-8 with surrogate escapes, without the white space
    that may follow them (RFC 9110, 5.5). Raises ValueError for a line feed in one of them."""
    return list(zip(*_names_and_values(raw), strict=True))


def _names_and_values(raw: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, ...], list[str]]:
    # All at once, since each field by itself costs several times as much.
    fields = tuple(zip(*raw, strict=True))
    if not fields:
        return (), []
    names, lines = map(b"\n".join, fields)
    named = _names if len(names) <= MAX_KEPT_BYTES else _names.__wrapped__
    text = lines.decode("utf-8", "surrogateescape")
    values = text.split("\n")
    if " \n" in text or "\t\n" in text or text.endswith((" ", "\t")):
        values = [value.rstrip(" \t") for value in values]
    return named(names), values


@dataclass(slots=True)
class RequestHead:
    """One S3 request up to its body.

    `raw_path` and `raw_query` are the target as sent (percent-encoded, query without its `?`), which the signature
    covers in virtual-host style and path style alike. `bucket` and `key` are decoded; `key` is None where the target
    names none."""

    method: str
    raw_path: str
    raw_query: str
    headers: Headers
    query: tuple[tuple[str, str], ...]
    bucket: str | None
    key: str | None
    raw_key: str
    """The object key as sent, still percent-encoded; empty where there is none."""

    def param(self, name: str) -> str | None:
        """The first value of a query parameter, decoded; None where it is absent."""
        for n, v in self.query:
            if n == name:
                return v
        return None


def parse_head(method: str, target: str, headers: Headers, virtual_host_suffixes: tuple[str, ...] = ()) -> RequestHead:
    """Split a request's target into bucket, key and query.

    `target` is the request line's, in origin form (`/b/k?q`) or absolute form. A host that ends in one of
    `virtual_host_suffixes` (without leading dot) names the bucket by what stands before it. Raises `S3Error`
    for a target that S3 would refuse."""
    host = headers.get("host") or ""
    if not target.startswith("/"):
        scheme, separator, rest = target.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise _invalid_uri()
        slash = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
        field, host, target = host, rest[:slash], rest[slash:]
        # RFC 9112, 3.2.2 lets the target's host override the field; the signature covers the field alone.
        if _bucket_of_host(field, virtual_host_suffixes) != _bucket_of_host(host, virtual_host_suffixes):
            raise _invalid_uri()
        if not target.startswith("/"):
            target = "/" + target
    raw_path, _, raw_query = target.partition("?")
    bucket, raw_key = _bucket_of_host(host, virtual_host_suffixes), raw_path[1:]
    if bucket is None:
        raw_bucket, _, raw_key = raw_path[1:].partition("/")
        bucket = _decode(raw_bucket) or ("" if raw_key else None)
    # A slash in it, escaped in a path or plain in a host, would move the border between bucket and key.
    if bucket is not None and not BUCKET_NAME.fullmatch(bucket):
        raise S3Error("InvalidBucketName", "The specified bucket is not valid.", BucketName=bucket)
    key = _decode(raw_key) if raw_key else None
    if key is not None:
        refuse_long_key(key)
    return RequestHead(method, raw_path, raw_query, headers, parse_query(raw_query), bucket, key, raw_key)


def refuse_long_key(key: str) -> None:
    """Raises `S3Error` (KeyTooLongError) for what has more than `MAX_KEY_BYTES`."""
    size_bytes = len(key.encode())
    if size_bytes > MAX_KEY_BYTES:
        raise S3Error(
            "KeyTooLongError", "Your key is too long", Size=str(size_bytes), MaxSizeAllowed=str(MAX_KEY_BYTES)
        )


def parse_query(raw_query: str) -> tuple[tuple[str, str], ...]:
    """Decoded pairs in their order; a name without `=` has the empty value. `+` is a plus sign, as on S3's paths,
    only where it is percent-encoded: a bare one in a query means a space."""
    if not raw_query:
        return ()
    pairs = []
    for item in raw_query.split("&"):
        if item:
            name, _, value = item.partition("=")
            pairs.append((_decode(name.replace("+", " ")), _decode(value.replace("+", " "))))
    return tuple(pairs)


def _bucket_of_host(host: str, suffixes: tuple[str, ...]) -> str | None:
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    for suffix in suffixes:
        if name.lower().endswith("." + suffix):
            return name[: -len(suffix) - 1].lower()
    return None


def _decode(raw: str) -> str:
    if "%" not in raw and raw.isascii():
        return raw
    # What is no escape some servers refuse, some take as it stands; some drop the whole parameter.
    if _NO_ESCAPE.search(raw):
        raise _invalid_uri()
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeError as error:
        raise _invalid_uri() from error


def _invalid_uri() -> S3Error:
    return S3Error("InvalidURI", "Couldn't parse the specified URI.")
