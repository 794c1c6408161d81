"""What the store behind the gateway would take for something else, past the fence: refused in every mode, until the
store has been seen to know better (`Capabilities`).
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

from gateway.core.errors import Reason, Refused
from gateway.core.names import climbs, filed_name, is_path, lies_among_versions, names_folder, names_own_file
from gateway.s3.errors import S3Error
from gateway.s3.operations import Effect, Level, Operation
from gateway.s3.request import RequestHead
from gateway.s3.xml import BatchObject, find_text
from gateway.service.copies import SOURCE, copy_source
from gateway.service.sending import head_of, versioning
from gateway.service.values import Write
from gateway.upstream.base import EMPTY_SHA256, CapabilitySource, Upstream, UpstreamRequest

_OF_FOLDERS = frozenset({"DeleteObject", "DeleteObjects", "AbortMultipartUpload"})
"""Beside a PutObject without bytes, what a folder takes as an object would."""
_PAGES = frozenset({"status", "healthz", "readyz"})
"""Buckets in whose place SeaweedFS 4.48 answers for its own health, to a GET or HEAD whatever its query. PUT: so that
nobody makes one."""
_OF_PAGES = frozenset({"GET", "HEAD", "PUT"})
_IDS = ("uploadId", "versionId")
"""Query parameters that the store makes a file's name of, reads included."""
_BACKSLASH = "means a slash by its backslash, but not in a batch, where it would be said to be gone and still be there"
_DOUBLED = "means one slash by two, but not in a batch where versions are kept: said to be gone, it would be there"
_CLIMBS = "leads elsewhere: a part of it is . or .."
_AMONG_VERSIONS = "would count as a version of another object, or as the folder of its versions"
_OVER_OBJECT = "would make a folder of an object that is there, and empty it"
_OWN_FILE = "names a file that the store keeps for itself: a part of an upload under way, or a version of an object"


async def refuse_misread(
    upstream: Upstream, capabilities: CapabilitySource, operation: Operation, head: RequestHead
) -> None:
    """Raises `Refused` (OperationNotFenced) for an operation that the store may overlook and do another instead, and
    for a key, the copy source's included, that names no object where keys are filed as paths, or an id that is one;
    `TryAgain`."""
    if operation.overlooked and await _overlooks(capabilities, operation, head.bucket or ""):
        raise Refused(
            Reason.OPERATION_NOT_FENCED,
            f"The object store behind the gateway does not know {operation.name}, or has not been seen to: such stores "
            f"overlook ?{operation.subresource} and do a plain {operation.method} of the {operation.level} instead.",
        )
    if head.bucket in _PAGES and operation.level is Level.BUCKET and operation.method in _OF_PAGES:
        await _refuse_page(capabilities, head.bucket)
    if head.bucket is not None and head.key is not None:
        length = head.headers.get("x-amz-decoded-content-length") or head.headers.get("content-length")
        await refuse_misfiled(capabilities, operation, head.bucket, head.key, empty=length == "0")
        if operation.name == "PutObject" and names_folder(head.key):
            await _refuse_over_object(upstream, capabilities, head.bucket, head.key)
        if operation.effect is not Effect.READ and lies_among_versions(head.key):
            await _refuse_among_versions(upstream, capabilities, operation, head.bucket, head.key)
    for name, value in head.query:
        if name in _IDS:
            await _refuse_id(capabilities, head.bucket or "", value)
    if operation.header == SOURCE:
        source = head.headers.get(SOURCE) or ""
        bucket, raw_key, _ = copy_source(source)
        if names_own_file(unquote(raw_key)):
            await _refuse(capabilities, bucket, _OWN_FILE)
        # Its version too, which may as well be a part of the key.
        if climbs(unquote(source).replace("?", "/").replace("=", "/")):
            await _refuse(capabilities, bucket, _CLIMBS)


async def doubles_lead_astray(
    upstream: Upstream, capabilities: CapabilitySource, bucket: str, asked: Iterable[BatchObject]
) -> bool:
    """Whether two slashes in a row, if a key of a batch has them, are not one there. Raises `TryAgain`."""
    if not any("//" in one.key for one in asked) or not (await capabilities.of_bucket(bucket)).files_paths:
        return False
    return await versioning(upstream, bucket) == "Enabled"


async def refuse_unrouted(capabilities: CapabilitySource, bucket: str, one: BatchObject, *, astray: bool) -> None:
    """Raises `Refused` (OperationNotFenced) for an object of a batch whose key or version would lead to another file,
    or to none; `astray`: whether `doubles_lead_astray`. In a request's own path the store refuses such keys by itself,
    and takes a backslash, or two slashes, for a slash."""
    object_key, version_id = one.key, one.version_id
    if "\\" in object_key:
        await _refuse(capabilities, bucket, _BACKSLASH)
    if astray and "//" in object_key and version_id is None:
        await _refuse(capabilities, bucket, _DOUBLED)
    if climbs(object_key):
        await _refuse(capabilities, bucket, _CLIMBS)
    await _refuse_id(capabilities, bucket, version_id or "")


async def refuse_misfiled(
    capabilities: CapabilitySource, operation: Operation, bucket: str, object_key: str, *, empty: bool = False
) -> None:
    """Raises `Refused` (OperationNotFenced) for a key that names no object where keys are filed as paths. `empty` says
    that the operation brings no bytes."""
    if fault := _fault(operation, object_key, empty):
        await _refuse(capabilities, bucket, fault)


async def refuse_versions_again(
    upstream: Upstream, capabilities: CapabilitySource, bucket: str, document: bytes
) -> None:
    """Raises `Refused` (OperationNotFenced) for a PutBucketVersioning that would have versions kept again. What was
    deleted while they were not, SeaweedFS 4.48 goes on hiding then: what is copied, assembled or written without a
    condition in its place is acknowledged, and invisible. `TryAgain`."""
    if find_text(document, "Status") != "Enabled" or not (await capabilities.of_bucket(bucket)).files_paths:
        return
    if await versioning(upstream, bucket) == "Suspended":
        raise Refused(
            Reason.OPERATION_NOT_FENCED,
            "Once versioning is enabled again, the object store behind the gateway hides what is copied or uploaded to "
            "where an object was deleted while it was suspended. Leave it suspended, or use another bucket.",
        )


async def folder_stands(upstream: Upstream, capabilities: CapabilitySource, write: Write) -> bool:
    """Whether a folder is where `write` would assemble its object. SeaweedFS 4.48 answers 500 to such a Complete,
    unless it keeps versions: sent, it would be in doubt, and each further one again. Raises `TryAgain`."""
    if not (await capabilities.of_bucket(write.bucket)).files_paths:
        return False
    return await _stands(upstream, write.bucket, write.head.raw_key + "/")


async def _stands(upstream: Upstream, bucket: str, raw_key: str) -> bool:
    """Whether that object, or folder, is there, in a bucket that keeps no versions. Raises `TryAgain`."""
    try:
        head = await head_of(upstream, UpstreamRequest("HEAD", bucket, raw_key, "", (), EMPTY_SHA256), "the object")
        there = head.status == 200
    except S3Error as error:
        there = error.code == "InvalidRequest"  # its client's key is wanted, without which nobody can look
    return there and await versioning(upstream, bucket) != "Enabled"


async def _refuse_over_object(upstream: Upstream, capabilities: CapabilitySource, bucket: str, object_key: str) -> None:
    """An object and what is below it may share a path; to make a folder of it then empties the object."""
    filed = (await capabilities.of_bucket(bucket)).files_paths
    if filed and await _stands(upstream, bucket, quote(filed_name(object_key))):
        await _refuse(capabilities, bucket, _OVER_OBJECT)


async def _refuse_among_versions(
    upstream: Upstream, capabilities: CapabilitySource, operation: Operation, bucket: str, object_key: str
) -> None:
    """Where versions are kept, a file gets a folder of its own for its versions, is taken for none and stands in no
    other's place; the folder of another's holds which of them is the latest."""
    if operation.name in _OF_FOLDERS or not (await capabilities.of_bucket(bucket)).files_paths:
        return
    kept = await versioning(upstream, bucket)
    if kept == "Suspended" or (kept and names_folder(object_key)):
        await _refuse(capabilities, bucket, _AMONG_VERSIONS)


async def _refuse_page(capabilities: CapabilitySource, bucket: str) -> None:
    if (await capabilities.of_bucket(bucket)).overlooks_settings:
        raise Refused(
            Reason.OPERATION_NOT_FENCED,
            f"The object store behind the gateway answers for its own health at /{bucket}, where the bucket would be. "
            "Choose another name.",
        )


async def _refuse_id(capabilities: CapabilitySource, bucket: str, text: str) -> None:
    if is_path(text):
        await _refuse(capabilities, bucket, "is a path, where an upload's or a version's names one file", "id")


async def _overlooks(capabilities: CapabilitySource, operation: Operation, bucket: str) -> bool:
    proved = await capabilities.of_bucket(bucket)
    return proved.overlooks if operation.level is Level.OBJECT else proved.overlooks_settings


async def _refuse(capabilities: CapabilitySource, bucket: str, fault: str, what: str = "key") -> None:
    if (await capabilities.of_bucket(bucket)).files_paths:
        raise Refused(
            Reason.OPERATION_NOT_FENCED,
            f"The object store behind the gateway files objects as paths, and there this {what} {fault}. Choose "
            "another.",
        )


def _fault(operation: Operation, object_key: str, empty: bool) -> str | None:
    if names_own_file(object_key):
        return _OWN_FILE
    if operation.effect is Effect.READ or not names_folder(object_key):
        return None
    if not filed_name(object_key):
        return "is made of separators alone and names nothing"
    if operation.name in _OF_FOLDERS or (operation.name == "PutObject" and empty):
        return None
    return "names a folder, which holds no bytes, tags or grants of its own"
