"""Which row of the table of operations a request is (R8), in the one reading that leaves a store no other.

What a store could take for another operation, or for one on other objects, is refused here, whatever the fence says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from gateway.core.errors import Reason, Refused
from gateway.s3.errors import S3Error
from gateway.s3.operations import OPERATIONS, Effect, Level, Operation
from gateway.s3.request import RequestHead

MAX_PART_NUMBER = 10_000
"""S3 user guide, "Amazon S3 multipart upload limits"."""

_Index = dict[tuple[str, Level, str | None], list[Operation]]


def _index() -> _Index:
    index: _Index = defaultdict(list)
    for row in OPERATIONS:
        index[row.method, row.level, row.subresource].append(row)
    for rows in index.values():
        rows.sort(key=lambda row: (row.header is not None) + len(row.requires), reverse=True)
    return dict(index)


_INDEX = _index()
SUBRESOURCES: dict[Level, frozenset[str]] = {
    level: frozenset(row.subresource for row in OPERATIONS if row.level is level and row.subresource) for level in Level
}
_MARKING_HEADERS: dict[tuple[str, Level], frozenset[str]] = {
    (method, level): frozenset(
        row.header for row in OPERATIONS if (row.method, row.level) == (method, level) and row.header
    )
    for method, level in {(row.method, row.level) for row in OPERATIONS if row.header}
}
# `partNumber` selects UploadPart, but on GET and HEAD it picks a part of the object to read.
_PLAIN_ON_READ = frozenset({"partNumber"})
MAX_KEPT_NAMES = 32
_ANY_MAY_BEAR = frozenset({"x-id"})
"""The name of the operation, which SDKs add."""
_OF_WRITES = frozenset(
    name for row in OPERATIONS if row.method not in ("GET", "HEAD") for name in (*row.requires, *row.parameters)
)
# Extensions that make a write reach objects which it does not name: MinIO's recursive delete, and archives that the
# server unpacks (MinIO's, Snowball's).
_REACHING_FURTHER = ("x-minio-force-delete", "x-minio-extract", "x-amz-meta-snowball-auto-extract")


def recognise(head: RequestHead) -> Operation:
    """The row of a request. Raises `S3Error`: MethodNotAllowed; InvalidArgument for two subresources at once, for one
    that the upstream might overlook, or for a query parameter twice, of which it might read the other, unless an object
    is read; `Refused` (OperationNotFenced) for a write with a query parameter that no row knows, since nobody can tell
    what it would do, or that would reach other objects."""
    level = Level.SERVICE if head.bucket is None else Level.BUCKET if head.key is None else Level.OBJECT
    names = tuple([name for name, _ in head.query]) if head.query else ()
    if head.method == "POST":
        _refuse_form(head, level, names)
    # What is sent by nobody who is known must not fill the cache with long rows of names.
    find = _row if len(names) <= MAX_KEPT_NAMES else _row.__wrapped__
    row = find(head.method, level, names, head.headers.names)
    if row.subresource is not None and "%0" in head.raw_query:
        _refuse_line_feed(head, row)
    if "partNumber" in names and row.subresource == "partNumber":
        _refuse_no_part_number(head.param("partNumber") or "")
    if "versionId" in names and row.effect is not Effect.READ:
        _refuse_no_version(head.param("versionId"))
    return row


@lru_cache(maxsize=1024)
def _row(method: str, level: Level, names: tuple[str, ...], headers: tuple[str, ...]) -> Operation:
    """The row for these names of query parameters and headers. Clients send the same in request after request."""
    reading = method in ("GET", "HEAD", "OPTIONS")
    subresource = _subresource(method, level, names)
    if not reading or level is Level.BUCKET:
        _refuse_doubled_parameters(names)
    if not reading:
        _refuse_unknown_parameters(names, subresource)
        _refuse_reaching_further(headers)
    for row in _INDEX.get((method, level, subresource), ()):
        if all(name in names for name in row.requires) and (row.header is None or row.header in headers):
            _refuse_marks_of_others(headers, row)
            if not reading:
                _refuse_parameters_of_others(names, row)
            return row
    raise S3Error(
        "MethodNotAllowed",
        "The specified method is not allowed against this resource.",
        Method=method,
        ResourceType=(subresource or level.value).upper(),
    )


def _subresource(method: str, level: Level, names: Sequence[str]) -> str | None:
    """Raises `S3Error` (InvalidArgument) for two at once."""
    selecting = SUBRESOURCES[level].intersection(names)
    if method == "OPTIONS":
        return None  # A preflight asks about the target of the request that will follow.
    if method in ("GET", "HEAD"):
        selecting -= _PLAIN_ON_READ
    elif "partNumber" in selecting:
        selecting -= {"uploadId"}
    if len(selecting) > 1:
        one, other = sorted(selecting)[:2]
        raise S3Error(
            "InvalidArgument",
            f"Conflicting query string parameters: {one}, {other}",
            ArgumentName="ResourceType",
            ArgumentValue=one,
        )
    return next(iter(selecting), None)


def _refuse_marks_of_others(headers: Sequence[str], row: Operation) -> None:
    """Raises `S3Error` (InvalidArgument) for a header that makes another operation of the request, or that stands there
    twice: what the store would see is for nobody to guess."""
    for name in _MARKING_HEADERS.get((row.method, row.level), ()):
        if headers.count(name) > (name == row.header):
            raise S3Error(
                "InvalidArgument",
                f"The header {name} does not go with {row.name}, or not twice.",
                ArgumentName=name,
                ArgumentValue="",
            )


def _refuse_parameters_of_others(names: Sequence[str], row: Operation) -> None:
    """Raises `S3Error` (InvalidArgument) for a parameter that has a meaning for other writes alone: what the store
    would make of it here is for nobody to guess. S3 says the same of a PutObject with a version."""
    for name in names:
        if name in _OF_WRITES and name not in (row.subresource, *row.requires, *row.parameters):
            raise S3Error(
                "InvalidArgument",
                f"The query parameter {name} does not go with {row.name}.",
                ArgumentName=name,
                ArgumentValue="",
            )


def _refuse_line_feed(head: RequestHead, row: Operation) -> None:
    """Raises `S3Error` (InvalidArgument). SeaweedFS 4.48 finds a subresource by a pattern that no line feed matches:
    `DELETE /b?cors=%0A` deletes the bucket, a `PUT` with one replaces the object."""
    for name in filter(None, (row.subresource, *row.requires)):
        if "\n" in (head.param(name) or ""):
            raise S3Error(
                "InvalidArgument",
                f"The query parameter {name} holds a line feed.",
                ArgumentName=name,
                ArgumentValue="",
            )


def _refuse_no_part_number(text: str) -> None:
    """Raises `S3Error` (InvalidArgument). SeaweedFS 4.48 takes a part without a number in digits for a plain PUT of the
    object, which would make it visible past the upload."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_PART_NUMBER):
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {MAX_PART_NUMBER}, inclusive",
            ArgumentName="partNumber",
            ArgumentValue=text[:64],
        )


def _refuse_no_version(text: str | None) -> None:
    """Raises `S3Error` (InvalidArgument), as S3 does. SeaweedFS 4.48 takes an empty version for none, and deletes the
    object itself."""
    if not text:
        raise S3Error(
            "InvalidArgument",
            "Version id cannot be the empty string",
            ArgumentName="versionId",
            ArgumentValue="",
        )


def _refuse_form(head: RequestHead, level: Level, names: Sequence[str]) -> None:
    """A form is a form whatever the query says: stores that know the subresource not take it for PostObject. The one
    other request with such a content type is an upload's creation, which names with it the type of the object."""
    # SeaweedFS 4.48 looks for the type anywhere in the field, by a pattern that does without its last letter.
    if not any("multipart/form-dat" in value.lower() for value in head.headers.all("content-type")):
        return
    subresource = _subresource(head.method, level, names)
    if subresource != "uploads" and (level is not Level.BUCKET or subresource is not None):
        raise Refused(
            Reason.OPERATION_NOT_FENCED,
            "The gateway takes a form (Content-Type: multipart/form-data) only as a POST to a bucket without a query.",
        )


def _refuse_reaching_further(headers: Sequence[str]) -> None:
    for name in _REACHING_FURTHER:
        if name in headers:
            raise Refused(Reason.OPERATION_NOT_FENCED, f"The gateway does not pass {name}: no fence could follow it.")


def _refuse_doubled_parameters(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise S3Error(
            "InvalidArgument",
            f"The query parameter {twice!r} is given more than once.",
            ArgumentName=twice,
            ArgumentValue="",
        )


def _refuse_unknown_parameters(names: Sequence[str], subresource: str | None) -> None:
    for name in names:
        if name == subresource or name in _OF_WRITES or name in _ANY_MAY_BEAR:
            continue
        lower = name.lower()
        if not lower.startswith("x-amz-") or lower.startswith(
            ("x-amz-copy-source", "x-amz-meta-fencing", "x-amz-rename")
        ):
            raise Refused(
                Reason.OPERATION_NOT_FENCED,
                f"The gateway does not know the query parameter {name!r} on a write, nor what it would change.",
            )
