"""The differences that may be: all of them, each with its reason.

A rule takes one kind of difference out of both answers, and says whether there was anything to take. What is not
explained here is a fault of the gateway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.s3.listing import LISTS
from gateway.s3.operations import OPERATIONS
from gateway.s3.request import MAX_KEY_BYTES
from tests.differential.compare import OWN_FIELDS, Exchange, undated
from tests.differential.memory import RECORD
from tests.differential.steps import Bytes, ETagOf

ROWS = {row.name: row for row in OPERATIONS}


@dataclass(frozen=True)
class Allowed:
    """One kind of difference."""

    reason: str
    take_out: Callable[[Exchange], bool]


def _dates(exchange: Exchange) -> bool:
    changed = exchange.both("without", b"date")
    changed |= exchange.both("without", b"seaweed-x-amz-noncurrent-since-ns")
    changed |= exchange.both("dated", b"last-modified")
    before = exchange.direct, exchange.through
    exchange.direct = replace(exchange.direct, body=undated(exchange.direct.body))
    exchange.through = replace(exchange.through, body=undated(exchange.through.body))
    return changed or before != (exchange.direct, exchange.through)


def _request_ids(exchange: Exchange) -> bool:
    changed = exchange.both("without", b"x-amz-request-id", b"x-amz-id-2")
    changed |= exchange.both("with_body", rb"<RequestId>[^<]*</RequestId>", b"")
    return exchange.both("with_body", rb"<HostId>[^<]*</HostId>", b"") or changed


def _framing(exchange: Exchange) -> bool:
    if exchange.step.method == "HEAD" and exchange.direct.status < 300:
        return False
    return exchange.both("without", b"content-length", b"transfer-encoding")


def _fence_on_answers(exchange: Exchange) -> bool:
    if not exchange.fence.headers:
        return False
    before = exchange.through
    exchange.through = exchange.through.without(*_OF_THE_FENCE)
    return before != exchange.through


def _fence_on_objects(exchange: Exchange) -> bool:
    if not exchange.behind:
        return False
    before = exchange.through
    exchange.through = exchange.through.without(b"x-amz-meta-fencing-")
    return before != exchange.through


def _record(exchange: Exchange) -> bool:
    if exchange.step.operation not in LISTS:
        return False
    if exchange.behind:
        exchange.both("with_body", rb"<KeyCount>\d+</KeyCount>", b"")
        return exchange.both("with_body", RECORD.pattern, b"")
    paged = "max-keys" in dict(exchange.step.query) and exchange.direct.status == exchange.through.status == 200
    return paged and exchange.direct.body != exchange.through.body and exchange.part()


def _locations(exchange: Exchange) -> bool:
    return exchange.both("with_body", rb"<Location>[^<]*", b"<Location>")


def _own_error(exchange: Exchange) -> bool:
    same = exchange.own_error and exchange.direct.status == exchange.through.status
    return same and exchange.direct.code == exchange.through.code and exchange.agree()


def _several_faults(exchange: Exchange) -> bool:
    code, copying = exchange.through.code, "x-amz-copy-source" in dict(exchange.step.headers)
    found = code in _FOUND_FIRST or (copying and code == b"NoSuchBucket") or exchange.step.mode == "anonymous"
    return found and exchange.own_error and exchange.direct.status >= 400 and exchange.agree()


def _long_key(exchange: Exchange) -> bool:
    return any(len(key.encode()) > MAX_KEY_BYTES for key in exchange.keys) and exchange.own_error and exchange.agree()


def _misread(exchange: Exchange) -> bool:
    if exchange.step.operation == "DeleteObjects" and exchange.through.status == 200:
        misnamed = exchange.names_no_object or any("\\" in key or "//" in key for key in exchange.keys)
        return misnamed and b"<Code>NotImplemented</Code>" in exchange.through.body and exchange.part()
    refused = exchange.through.status == 501 and exchange.through.get(b"x-fencing-reason") == b"OperationNotFenced"
    return refused and (ROWS[exchange.step.operation].overlooked or exchange.names_no_object) and exchange.agree()


def _folder_in_place(exchange: Exchange) -> bool:
    uploading = exchange.step.operation in ("CreateMultipartUpload", "CompleteMultipartUpload")
    refused = exchange.through.status == 501 and b"and has a folder at " in exchange.through.body
    return uploading and refused and exchange.agree()


def _versions_again(exchange: Exchange) -> bool:
    refused = exchange.through.status == 501 and b"Once versioning is enabled again" in exchange.through.body
    return exchange.step.operation == "PutBucketVersioning" and refused and exchange.agree()


def _long_versions(exchange: Exchange) -> bool:
    longest = max((len(part.encode()) for key in exchange.keys for part in key.split("/")), default=0)
    kept = exchange.direct.get(b"x-amz-version-id") is not None and longest + len(".versions") > MAX_FILE_NAME_BYTES
    return kept and exchange.through.get(b"x-fencing-reason") == b"InDoubt" and exchange.agree()


def _in_doubt(exchange: Exchange) -> bool:
    reason = exchange.through.get(b"x-fencing-reason")
    writing = exchange.direct.status >= 500 and exchange.through.status == 503
    return writing and reason in (b"InDoubt", b"UpstreamUnavailable") and exchange.agree()


def _leave_to_send_nothing(exchange: Exchange) -> bool:
    body = exchange.step.body
    empty = not (body.data if isinstance(body, Bytes) else body)
    if not (exchange.step.expects and empty and exchange.through.interim == (100,) and not exchange.direct.interim):
        return False
    exchange.through = replace(exchange.through, interim=())
    return True


def _preflight(exchange: Exchange) -> bool:
    broken_off = exchange.step.operation == "PreflightBucket" and exchange.direct.status == 0
    return broken_off and exchange.through.status in (200, 403) and exchange.agree()


def _verified(exchange: Exchange) -> bool:
    lax = exchange.direct.status < 300 and exchange.own_error and exchange.through.code in _VERIFIED
    return lax and exchange.step.digest is None and exchange.agree()


def _unbound(exchange: Exchange) -> bool:
    aborting = exchange.step.operation == "AbortMultipartUpload" and exchange.direct.status == 204
    again = exchange.step.operation == "CompleteMultipartUpload" and "aborted" in exchange.upload
    return (aborting or again) and exchange.through.code == b"NoSuchUpload" and exchange.agree()


def _self_copy(exchange: Exchange) -> bool:
    said = dict(exchange.step.headers)
    refused = exchange.step.operation == "CopyObject" and exchange.direct.code == b"InvalidRequest"
    source, itself = said.get("x-amz-copy-source"), len(set(exchange.keys)) == 1
    changes = not _CHANGES.isdisjoint(said) or (isinstance(source, str) and source.endswith("?versionId=null"))
    demands = any(name.startswith("x-amz-copy-source-if-") for name in said)
    taken = _passed_on(exchange) or (demands and exchange.through.code == b"PreconditionFailed")
    return refused and itself and changes and taken and exchange.agree()


def _passed_on(exchange: Exchange) -> bool:
    """The store has taken it from the gateway, or answered 500: to an encryption that it has no key for, say."""
    return exchange.through.status == 200 or exchange.through.get(b"x-fencing-reason") == b"InDoubt"


def _several_etags(exchange: Exchange) -> bool:
    asked = dict(exchange.step.headers).get("x-amz-copy-source-if-match")
    several = isinstance(asked, ETagOf) and "," in asked.form
    return several and exchange.direct.status == 412 and _passed_on(exchange) and exchange.agree()


def _etag_of_copy(exchange: Exchange) -> bool:
    copied = exchange.step.operation == "CopyObject" and exchange.direct.status == 200
    return copied and exchange.both("with_body", rb"<ETag>(?:&#34;)?(\w+)(?:&#34;)?</ETag>", rb"<ETag>\1</ETag>")


def _white_space(exchange: Exchange) -> bool:
    odd = any(isinstance(v, str) and any(c.isspace() and not c.isascii() for c in v) for _, v in exchange.step.headers)
    refused = exchange.direct.code == b"SignatureDoesNotMatch" and exchange.through.status == 503
    return odd and refused and exchange.agree()


def _part_number(exchange: Exchange) -> bool:
    number = dict(exchange.step.query).get("partNumber")
    refused = exchange.step.method == "PUT" and exchange.through.code == b"InvalidArgument"
    return refused and isinstance(number, str) and not number.isdecimal() and exchange.agree()


def _batch_document(exchange: Exchange) -> bool:
    batch = exchange.step.operation == "DeleteObjects"
    if batch and exchange.through.code == b"MalformedXML" and isinstance(exchange.step.body, str):
        return exchange.agree()
    return batch and exchange.through.status == 200 and exchange.both("rewritten")


def _conditions(exchange: Exchange) -> bool:
    row = exchange.step.operation
    asked = {name for name, _ in exchange.step.headers} & {"if-match", "if-none-match"}
    if not (exchange.fence.headers and asked and row in _CONDITIONAL and exchange.own_error):
        return False
    absent = exchange.direct.status == 412 and exchange.through.code == b"NoSuchKey" and "if-match" in asked
    return (absent or exchange.through.status == 501) and exchange.agree()


def _completed_already(exchange: Exchange) -> bool:
    again = exchange.step.operation == "CompleteMultipartUpload" and "completed" in exchange.upload
    if not (again and exchange.through.status == 200 and {name for name, _ in exchange.through.fields} <= OWN_FIELDS):
        return False
    if exchange.direct.code in (b"PreconditionFailed", b"NoSuchUpload"):
        return exchange.agree()
    exchange.direct = exchange.direct.without(b"server", b"vary", b"accept-ranges", b"x-amz-version-id")
    exchange.both("rewritten")
    return exchange.both("with_body", rb"<Location>[^<]*</Location>", b"")


def _deleted_already(exchange: Exchange) -> bool:
    both = exchange.direct.status == exchange.through.status == 204
    bare = exchange.step.operation == "DeleteObject" and exchange.fence.headers and not exchange.through.fields
    return bool(both and bare) and exchange.agree()


def _resent_parts(exchange: Exchange) -> bool:
    if not (exchange.step.operation == "ListParts" and "resent" in exchange.upload):
        return False
    if "max-parts" in dict(exchange.step.query):
        return exchange.both("with_body", rb"<Part>.*?</Part>", b"")
    return exchange.both("sorted", rb"<Part>.*?</Part>")


def _aws_chunked(exchange: Exchange) -> bool:
    before = exchange.direct
    fields = [(n, _unchunked(v) if n == b"content-encoding" else v) for n, v in exchange.direct.fields]
    exchange.direct = replace(before, fields=tuple((n, v) for n, v in fields if n != b"content-encoding" or v))
    return before != exchange.direct


def _unchunked(coding: bytes) -> bytes:
    return (
        coding
        if b"aws-chunked" not in coding
        else b",".join(part for part in (p.strip() for p in coding.split(b",")) if part != b"aws-chunked")
    )


def _order_of_uploads(exchange: Exchange) -> bool:
    return exchange.step.operation == "ListMultipartUploads" and exchange.both("sorted", rb"<Upload>.*?</Upload>")


_OF_THE_FENCE = (b"x-fencing-token", b"x-fencing-key", b"x-fencing-floor", b"x-fencing-object-")
MAX_FILE_NAME_BYTES = 255
_CHANGES = {"x-amz-storage-class", "x-amz-server-side-encryption", "x-amz-website-redirect-location"}
_CONDITIONAL = frozenset({"PutObject", "CopyObject", "DeleteObject"})
_VERIFIED = frozenset({b"BadDigest", b"InvalidDigest", b"InvalidRequest"})
_FOUND_FIRST = _VERIFIED | {b"MalformedXML", b"InvalidArgument", b"NoSuchKey", b"NoSuchUpload", b"PreconditionFailed"}


ALLOWED: dict[str, Allowed] = {
    "dates": Allowed("the sides are asked one after the other", _dates),
    "request ids": Allowed("each server numbers its own requests", _request_ids),
    "record": Allowed(
        "the gateway's record of a bucket is hidden from its clients' lists, whose pages it may leave shorter",
        _record,
    ),
    "locations": Allowed("a Complete's Location is the object's address as each was asked for it", _locations),
    "framing": Allowed("bodies are compared without it; HEAD's Content-Length stays", _framing),
    "fence on answers": Allowed(
        "docs/interface.md: a fenced answer tells token, key and floor, a fenced object its token and key",
        _fence_on_answers,
    ),
    "fence on objects": Allowed(
        "docs/interface.md: what the gateway keeps on a fenced object is hidden from its clients, not from the store's",
        _fence_on_objects,
    ),
    "aws-chunked": Allowed(
        "SeaweedFS keeps a framing's name as the object's Content-Encoding; on S3 it goes with the framing",
        _aws_chunked,
    ),
    "order of uploads": Allowed(
        "SeaweedFS lists the uploads of a key by their ids, which are random",
        _order_of_uploads,
    ),
    "resent parts": Allowed(
        "SeaweedFS lists a part that was sent twice twice, in an order which is random",
        _resent_parts,
    ),
    "own errors": Allowed(
        "an error that the gateway writes has S3's status and code, its own words and fields", _own_error
    ),
    "several faults": Allowed(
        "of several faults of a request the gateway tells the one that it finds first: its signature's, its body's, "
        "its upload's, its copy's source's",
        _several_faults,
    ),
    "long keys": Allowed("more than 1,024 bytes are KeyTooLongError on S3, for HEAD 400", _long_key),
    "misread": Allowed(
        "what SeaweedFS would take for another request, or a key for one of its own files, is 501 (R8)", _misread
    ),
    "folder in place": Allowed(
        "SeaweedFS answers 500 to an upload's Complete where a folder is; it is 501 before it is sent", _folder_in_place
    ),
    "versions again": Allowed(
        "SeaweedFS hides what is written over an object that was deleted while versioning was suspended",
        _versions_again,
    ),
    "long versions": Allowed(
        "where versions are kept, SeaweedFS answers 500 to a condition on a name that leaves no room for '.versions'",
        _long_versions,
    ),
    "sent again": Allowed(
        "R4: where versions are kept, a write to an object of unknown state is 503 StateMoved, and SDKs send it again",
        lambda exchange: exchange.again,
    ),
    "in doubt": Allowed("R5: the store's 500 to a write says nothing of its effect", _in_doubt),
    "leave to send nothing": Allowed(
        "AWS's clients, which ask for it, are confused by its lack (`RequestBody`); SeaweedFS gives none",
        _leave_to_send_nothing,
    ),
    "preflight": Allowed(
        "SeaweedFS breaks off some preflights of a bucket, but not where a slash follows it, as the gateway asks",
        _preflight,
    ),
    "verified": Allowed("SeaweedFS does not verify every digest; a digest that is wrong is 400 on S3", _verified),
    "unbound": Allowed(
        "an upload that is gone is NoSuchUpload on S3 and under R6; SeaweedFS aborts or completes it again", _unbound
    ),
    "self-copy": Allowed(
        "a copy onto itself may name a version, a storage class, an encryption or a redirect on S3; SeaweedFS wants "
        "its metadata spelt out, as the fence does",
        _self_copy,
    ),
    "several etags": Allowed(
        "SeaweedFS lets a copy's source have none of several ETags, and any for the HEAD that the gateway makes",
        _several_etags,
    ),
    "etag of a copy": Allowed(
        "SeaweedFS quotes the ETag of a copy onto itself unless its metadata is spelt out, as the gateway does (R7)",
        _etag_of_copy,
    ),
    "white space": Allowed(
        "SeaweedFS takes a no-break space in a header for white space and so refuses every signature over it",
        _white_space,
    ),
    "part numbers": Allowed("SeaweedFS takes a part without a number for an object; on S3 it is 400", _part_number),
    "batch documents": Allowed(
        "a batch that names no object is 400 on S3, not on SeaweedFS; the answer to a quiet one is written anew (R7)",
        _batch_document,
    ),
    "conditions": Allowed(
        "under the fence a client's conditions have S3's answers: 404 for If-Match of an absent object (SeaweedFS: "
        "412), 501 for what S3 does not know",
        _conditions,
    ),
    "completed already": Allowed(
        "R6: a Complete that has succeeded before is answered success without the store", _completed_already
    ),
    "deleted already": Allowed(
        "R4: the DELETE of an object seen absent is answered without the store", _deleted_already
    ),
}


def explain(exchange: Exchange) -> None:
    """Take out all that is allowed, and note in `used` which rules it took."""
    for name, rule in ALLOWED.items():
        if rule.take_out(exchange):
            exchange.used.append(name)
