"""The request that goes upstream for one that came in: the same, less what is the gateway's, plus the fence's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from urllib.parse import unquote_plus

from gateway.s3.fencing import META, SPOKEN, shown_name
from gateway.s3.request import RequestHead

# Hop-by-hop (RFC 9110, 7.6.1), the signature that is made anew, the framing of a body that the gateway unpacks, and
# what proxies say of the way to the gateway (RFC 7239), which servers take for the host that was signed.
_NOT_FORWARDED = frozenset(
    """
    authorization connection content-length content-md5 expect forwarded host keep-alive proxy-authenticate
    proxy-authorization proxy-connection te trailer transfer-encoding upgrade x-amz-content-sha256 x-amz-date
    x-amz-decoded-content-length x-amz-security-token x-amz-trailer
    """.split()
)
# What S3 reads is the whole way's: a signature covers it, and none the Connection that may name it.
_END_TO_END = ("x-amz-", "if-", "content-", "range", "cache-control", "expires")
_METADATA = "x-amz-meta-"
# Of the way to the gateway; and what SeaweedFS says to itself: 4.30 took a version's id from such a field, as a path.
# And what makes a copy of a write in other dialects of S3 (Google's, Alibaba's, Huawei's, Tencent's).
_NOT_FORWARDED_BEGINNINGS = (
    "x-forwarded-",
    "seaweed-",
    "x-seaweedfs-",
    "s3-",
    *(f"x-{dialect}-copy-source" for dialect in ("goog", "oss", "obs", "cos")),
)
_CONDITIONS = frozenset({"if-match", "if-none-match"})
_SIGNING_PARAMETERS = frozenset(
    """
    x-amz-algorithm x-amz-credential x-amz-date x-amz-expires x-amz-signedheaders x-amz-signature x-amz-security-token
    x-amz-content-sha256
    """.split()
)
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"})
_NOT_RETURNED = _HOP_BY_HOP | {"x-amz-request-id", "x-amz-id-2"}
_NAME, _VALUE = itemgetter(0), itemgetter(1)


def forwarded_headers(
    head: RequestHead, *, keep_md5: bool = True, without: frozenset[str] = frozenset()
) -> list[tuple[str, str]]:
    """The fields of a request as the upstream gets them, in their order. Fields of one name are joined by commas, as
    S3 reads them; `aws-chunked` leaves Content-Encoding with the framing that it names."""
    headers = head.headers
    if "connection" in headers:
        named = [n.strip().lower() for v in headers.all("connection") for n in v.split(",")]
        without |= {name for name in named if not name.startswith(_END_TO_END)}
    passing = compress(headers.pairs, _passing(headers.names, keep_md5, without))
    joined: dict[str, str] = {}
    if headers.repeats:
        for name, value in passing:
            joined[name] = f"{joined[name]},{value}" if name in joined else value
    else:
        joined = dict(passing)
    encoding = joined.get("content-encoding")
    if encoding is not None and "aws-chunked" in encoding.lower():
        kept = [part for part in encoding.split(",") if part.strip().lower() not in ("", "aws-chunked")]
        if kept:
            joined["content-encoding"] = ",".join(kept).strip()
        else:
            del joined["content-encoding"]
    return list(joined.items())


@lru_cache(maxsize=256)
def _passing(names: tuple[str, ...], keep_md5: bool, without: frozenset[str]) -> tuple[bool, ...]:
    """Which of the fields go upstream. None with an underscore does but user metadata: servers that keep fields as CGI
    and WSGI do take it for a hyphen, and would find a condition or a copy's source that nobody has looked at."""
    stay = _NOT_FORWARDED - {"content-md5"} if keep_md5 else _NOT_FORWARDED
    stay |= SPOKEN | without
    if "x-amz-trailer" in names:
        stay |= {"x-amz-sdk-checksum-algorithm"}  # it names a trailer; S3 refuses the one without the other
    return tuple(
        name not in stay
        and not name.startswith((META, *_NOT_FORWARDED_BEGINNINGS))
        and ("_" not in name or name.startswith(_METADATA))
        for name in names
    )


def forwarded_query(head: RequestHead) -> str:
    """The query as sent, without the parameters of a presigned signature. A semicolon goes escaped: some servers split
    the query at it (SeaweedFS 4.48), and would find parameters there that nobody has looked at."""
    if not head.raw_query:
        return ""
    query = "&".join(
        item
        for item in head.raw_query.split("&")
        if unquote_plus(item.partition("=")[0]).lower() not in _SIGNING_PARAMETERS
    )
    return query.replace(";", "%3B")


def own_conditions(head: RequestHead) -> frozenset[str]:
    """The client's own If-Match and If-None-Match, which keep S3's meaning."""
    return _CONDITIONS & head.headers.first.keys()


def returned_headers(headers: Sequence[tuple[str, str]], *, of_object: bool) -> list[tuple[str, str]]:
    """The fields of an upstream's answer as the client sees them; `of_object`: with what the fence keeps on an object
    put into words of its own. The request's ids are left out, since the gateway gives its own."""
    names = _returned(tuple(map(_NAME, headers)), of_object)
    return list(compress(zip(names, map(_VALUE, headers), strict=True), names))


@lru_cache(maxsize=256)
def _returned(names: tuple[str, ...], of_object: bool) -> tuple[str, ...]:
    """The names under which fields are returned, empty for those that are not."""
    return tuple("" if name in _NOT_RETURNED else shown_name(name) if of_object else name for name in names)
