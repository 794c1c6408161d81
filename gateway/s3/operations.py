"""The one table of S3 operations (R8): how each is recognised, what it does, and what the fence makes of it.

Routing, authorisation, metrics, documentation and fence all read this table. Names are those of the S3 API reference;
the recognising parts come from its request syntax.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

KIB = 1024
MIB = 1024 * KIB


class Level(StrEnum):
    """What an operation is addressed to."""

    SERVICE = "service"
    BUCKET = "bucket"
    OBJECT = "object"


class Effect(StrEnum):
    """What an operation does to objects."""

    READ = "reads"
    STAGE = "stages"
    """Prepares what a later commit makes visible; nothing can be seen yet."""
    COMMIT = "commits"
    DISCARD = "discards"
    """Throws away what was staged."""
    CONFIGURE = "configures"
    """Changes the bucket's settings; no object."""
    NEVER = "never passed"
    """Acts on objects in a way the fence cannot follow, or hands out a way around it: 501."""


class Fences(StrEnum):
    """Which objects an operation's effect falls on."""

    NOTHING = "-"
    OBJECT = "the object"
    UPLOAD = "the upload's object"
    BATCH = "each listed object"


class Body(StrEnum):
    """What the request's body is."""

    PAYLOAD = "payload"
    """An object's bytes: streamed, the tail withheld."""
    DOCUMENT = "document"
    """XML or JSON of bounded size, read whole."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row."""

    name: str
    method: str
    level: Level
    effect: Effect
    subresource: str | None = None
    """The query parameter that selects the operation."""
    requires: tuple[str, ...] = ()
    """Further query parameters that must be there."""
    parameters: tuple[str, ...] = ()
    """Query parameters that a write may bear besides, with its own and `x-amz-…` ones; reads may bear any."""
    header: str | None = None
    """A header that must be there."""
    fences: Fences = Fences.NOTHING
    body: Body = Body.DOCUMENT
    conditional: bool = False
    """A fenced send bears a precondition on the object's state (R4)."""
    assembles: bool = False
    """May take the upstream minutes: the longer time-outs apply (R5)."""
    max_body_bytes: int = 1 * MIB
    """The bound of a DOCUMENT."""
    aliases: tuple[str, ...] = ()
    """Older or other names of the very same request in the S3 API."""
    instead: str = ""
    """What to do instead of an operation that is never passed."""
    overlooked: bool = False
    """Stores that do not know the subresource may overlook it and do the plain operation instead (SeaweedFS 4.48: to
    put an annotation replaces the object, to delete the website deletes the bucket). Passed to stores that do not."""


_O, _B = Level.OBJECT, Level.BUCKET
_OVERLOOKED_OF_BUCKETS = frozenset(
    """
    abac accelerate analytics intelligent-tiering inventory logging metadataAnnotationTable metadataConfiguration
    metadataInventoryTable metadataJournalTable metadataTable metrics notification replication website
    """.split()
)
_OBJECT, _UPLOAD = Fences.OBJECT, Fences.UPLOAD


def _write(
    name: str, method: str, subresource: str, requires: tuple[str, ...] = (), *, overlooked: bool = False
) -> Operation:
    """A write of an object's metadata: no payload, no condition that servers would honour."""
    return Operation(
        name, method, _O, Effect.COMMIT, subresource, requires, ("versionId",), fences=_OBJECT, overlooked=overlooked
    )


def _setting(
    name: str,
    method: str,
    subresource: str,
    requires: tuple[str, ...] = (),
    parameters: tuple[str, ...] = (),
    *,
    aliases: tuple[str, ...] = (),
) -> Operation:
    """A bucket's setting: read by GET, changed by every other method."""
    effect = Effect.READ if method == "GET" else Effect.CONFIGURE
    overlooked = method in ("PUT", "DELETE") and subresource in _OVERLOOKED_OF_BUCKETS
    return Operation(
        name, method, _B, effect, subresource, requires, parameters, overlooked=overlooked, aliases=aliases
    )


def _read(name: str, subresource: str | None = None, requires: tuple[str, ...] = (), method: str = "GET") -> Operation:
    return Operation(name, method, _O, Effect.READ, subresource, requires)


def _bucket_settings() -> list[Operation]:
    """Bucket settings come in GET, PUT and DELETE of one subresource."""
    rows = []
    for subresource, noun, methods in (
        ("abac", "Abac", "GET PUT"),
        ("accelerate", "AccelerateConfiguration", "GET PUT"),
        ("acl", "Acl", "GET PUT"),
        ("cors", "Cors", "GET PUT DELETE"),
        ("encryption", "Encryption", "GET PUT DELETE"),
        ("location", "Location", "GET"),
        ("logging", "Logging", "GET PUT"),
        ("ownershipControls", "OwnershipControls", "GET PUT DELETE"),
        ("policy", "Policy", "GET PUT DELETE"),
        ("policyStatus", "PolicyStatus", "GET"),
        ("replication", "Replication", "GET PUT DELETE"),
        ("requestPayment", "RequestPayment", "GET PUT"),
        ("tagging", "Tagging", "GET PUT DELETE"),
        ("versioning", "Versioning", "GET PUT"),
        ("website", "Website", "GET PUT DELETE"),
    ):
        for method in methods.split():
            rows.append(_setting(f"{method.capitalize()}Bucket{noun}", method, subresource))
    for subresource, noun in (
        ("analytics", "AnalyticsConfiguration"),
        ("intelligent-tiering", "IntelligentTieringConfiguration"),
        ("inventory", "InventoryConfiguration"),
        ("metrics", "MetricsConfiguration"),
    ):
        rows += [
            _setting(f"GetBucket{noun}", "GET", subresource, ("id",)),
            _setting(f"ListBucket{noun}s", "GET", subresource),
            _setting(f"PutBucket{noun}", "PUT", subresource, parameters=("id",)),
            _setting(f"DeleteBucket{noun}", "DELETE", subresource, parameters=("id",)),
        ]
    return rows


OPERATIONS: tuple[Operation, ...] = (
    # --- the service
    Operation("ListBuckets", "GET", Level.SERVICE, Effect.READ, aliases=("ListDirectoryBuckets",)),
    # --- objects: what the fence is for
    Operation(
        "PutObject", "PUT", _O, Effect.COMMIT, fences=_OBJECT, body=Body.PAYLOAD, conditional=True
    ),
    Operation(
        "CopyObject", "PUT", _O, Effect.COMMIT, header="x-amz-copy-source", fences=_OBJECT,
        conditional=True, assembles=True,
    ),
    Operation(
        "DeleteObject", "DELETE", _O, Effect.COMMIT, parameters=("versionId",), fences=_OBJECT, conditional=True
    ),
    Operation(
        "DeleteObjects", "POST", _B, Effect.COMMIT, "delete", fences=Fences.BATCH, max_body_bytes=2 * MIB - 1
    ),
    Operation("CreateMultipartUpload", "POST", _O, Effect.STAGE, "uploads", fences=_OBJECT),
    Operation(
        "UploadPart", "PUT", _O, Effect.STAGE, "partNumber", ("uploadId",), fences=_UPLOAD, body=Body.PAYLOAD
    ),
    Operation(
        "UploadPartCopy", "PUT", _O, Effect.STAGE, "partNumber", ("uploadId",), header="x-amz-copy-source",
        fences=_UPLOAD, assembles=True,
    ),
    Operation(
        "CompleteMultipartUpload", "POST", _O, Effect.COMMIT, "uploadId",
        fences=_UPLOAD, assembles=True, max_body_bytes=4 * MIB,
    ),
    Operation("AbortMultipartUpload", "DELETE", _O, Effect.DISCARD, "uploadId", fences=_UPLOAD),
    _write("PutObjectAcl", "PUT", "acl"),
    _write("PutObjectTagging", "PUT", "tagging"),
    _write("DeleteObjectTagging", "DELETE", "tagging"),
    _write("PutObjectLegalHold", "PUT", "legal-hold"),
    _write("PutObjectRetention", "PUT", "retention"),
    _write("PutObjectAnnotation", "PUT", "annotation", ("annotationName",), overlooked=True),
    _write("DeleteObjectAnnotation", "DELETE", "annotation", ("annotationName",), overlooked=True),
    _write("UpdateObjectEncryption", "PUT", "encryption", overlooked=True),
    _write("RestoreObject", "POST", "restore"),
    Operation(
        "RenameObject", "PUT", _O, Effect.NEVER, "renameObject", fences=_OBJECT,
        instead="Copy the object and delete its source, each under the token of its own job.",
    ),
    # --- objects: reads
    _read("GetObject"),
    _read("HeadObject", method="HEAD"),
    _read("GetObjectAcl", "acl"),
    _read("GetObjectAnnotation", "annotation", ("annotationName",)),
    _read("ListObjectAnnotations", "annotation"),
    _read("GetObjectAttributes", "attributes"),
    _read("GetObjectLegalHold", "legal-hold"),
    _read("GetObjectRetention", "retention"),
    _read("GetObjectTagging", "tagging"),
    _read("GetObjectTorrent", "torrent"),
    _read("ListParts", "uploadId"),
    Operation("SelectObjectContent", "POST", _O, Effect.READ, "select", parameters=("select-type",)),
    # --- buckets
    Operation("ListObjects", "GET", _B, Effect.READ),
    Operation("ListObjectsV2", "GET", _B, Effect.READ, "list-type"),
    Operation("ListObjectVersions", "GET", _B, Effect.READ, "versions"),
    Operation("ListMultipartUploads", "GET", _B, Effect.READ, "uploads"),
    Operation("HeadBucket", "HEAD", _B, Effect.READ),
    Operation("CreateBucket", "PUT", _B, Effect.CONFIGURE),
    # Passed only for an empty bucket (gateway.service.buckets), so this removes no object.
    Operation("DeleteBucket", "DELETE", _B, Effect.CONFIGURE),
    _setting("GetBucketLifecycleConfiguration", "GET", "lifecycle", aliases=("GetBucketLifecycle",)),
    _setting("PutBucketLifecycleConfiguration", "PUT", "lifecycle", aliases=("PutBucketLifecycle",)),
    _setting("DeleteBucketLifecycle", "DELETE", "lifecycle"),
    _setting("GetBucketNotificationConfiguration", "GET", "notification", aliases=("GetBucketNotification",)),
    _setting("PutBucketNotificationConfiguration", "PUT", "notification", aliases=("PutBucketNotification",)),
    _setting("GetObjectLockConfiguration", "GET", "object-lock"),
    _setting("PutObjectLockConfiguration", "PUT", "object-lock"),
    _setting("GetPublicAccessBlock", "GET", "publicAccessBlock"),
    _setting("PutPublicAccessBlock", "PUT", "publicAccessBlock"),
    _setting("DeletePublicAccessBlock", "DELETE", "publicAccessBlock"),
    _setting("GetBucketMetadataConfiguration", "GET", "metadataConfiguration"),
    _setting("CreateBucketMetadataConfiguration", "POST", "metadataConfiguration"),
    _setting("DeleteBucketMetadataConfiguration", "DELETE", "metadataConfiguration"),
    _setting("GetBucketMetadataTableConfiguration", "GET", "metadataTable"),
    _setting("CreateBucketMetadataTableConfiguration", "POST", "metadataTable"),
    _setting("DeleteBucketMetadataTableConfiguration", "DELETE", "metadataTable"),
    _setting("UpdateBucketMetadataAnnotationTableConfiguration", "PUT", "metadataAnnotationTable"),
    _setting("UpdateBucketMetadataInventoryTableConfiguration", "PUT", "metadataInventoryTable"),
    _setting("UpdateBucketMetadataJournalTableConfiguration", "PUT", "metadataJournalTable"),
    *_bucket_settings(),
    # --- what would lead around the fence
    # The browser form (docs/decisions/0009-browser-forms-are-refused.md).
    Operation(
        "PostObject", "POST", _B, Effect.NEVER, body=Body.PAYLOAD,
        instead="Have the page PUT to a presigned URL, which may bear a fencing token among its signed headers.",
    ),
    # Hands out the upstream's own credentials.
    Operation(
        "CreateSession", "GET", _B, Effect.NEVER, "session",
        instead="Use the bucket without sessions, with the gateway's own credentials.",
    ),
    Operation(
        "WriteGetObjectResponse", "POST", _B, Effect.NEVER, header="x-amz-request-route",
        instead="Answer the Object Lambda at the store itself.",
    ),
    # --- CORS: asked by browsers before they sign anything
    Operation("PreflightObject", "OPTIONS", _O, Effect.READ),
    Operation("PreflightBucket", "OPTIONS", _B, Effect.READ),
)  # fmt: skip
