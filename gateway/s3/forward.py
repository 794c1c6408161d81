"""The request that goes upstream for one that came in: the same, less what is the gateway's, plus the fence's."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_plus

from gateway.s3.fencing import META, SPOKEN
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
_CONDITIONS = frozenset({"if-match", "if-none-match"})
_SIGNING_PARAMETERS = frozenset(
    """
    x-amz-algorithm x-amz-credential x-amz-date x-amz-expires x-amz-signedheaders x-amz-signature x-amz-security-token
    x-amz-content-sha256
    """.split()
)
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"})


def forwarded_headers(
    head: RequestHead, *, keep_md5: bool = True, without: frozenset[str] = frozenset()
) -> list[tuple[str, str]]:
    """The fields of a request as the upstream gets them, in their order. Fields of one name are joined by commas, as
    S3 reads them; `aws-chunked` leaves Content-Encoding with the framing that it names."""
    named_by_connection = {n.strip().lower() for v in head.headers.all("connection") for n in v.split(",")}
    joined: dict[str, str] = {}
    for name, value in head.headers.pairs:
        if name in _NOT_FORWARDED and not (keep_md5 and name == "content-md5"):
            continue
        if name == "x-amz-sdk-checksum-algorithm" and "x-amz-trailer" in head.headers:
            continue  # it names a trailer that goes no further; S3 refuses the one without the other
        if name in without or name in SPOKEN or name in named_by_connection:
            continue
        if name.startswith((META, "x-forwarded-")):
            continue
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    encoding = joined.get("content-encoding")
    if encoding is not None and "aws-chunked" in encoding.lower():
        kept = [part.strip() for part in encoding.split(",") if part.strip().lower() != "aws-chunked"]
        if kept:
            joined["content-encoding"] = ",".join(kept)
        else:
            del joined["content-encoding"]
    return list(joined.items())


def forwarded_query(head: RequestHead) -> str:
    """The query as sent, without the parameters of a presigned signature."""
    return "&".join(
        item
        for item in head.raw_query.split("&")
        if unquote_plus(item.partition("=")[0]).lower() not in _SIGNING_PARAMETERS
    )


def own_conditions(head: RequestHead) -> frozenset[str]:
    """The client's own If-Match and If-None-Match, which keep S3's meaning."""
    return _CONDITIONS & set(head.headers.names())


def returned_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The fields of an upstream's answer that belong to the client."""
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP]
