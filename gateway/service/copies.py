"""What a copy takes along (R7): the source's metadata, without the source's fence.

A copy whose metadata the client has not replaced goes upstream with the source's own metadata spelt out, under the
condition that the source is still the object whose metadata that is. Until it is settled, it is marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote, unquote, unquote_to_bytes

from gateway.s3.errors import S3Error
from gateway.s3.fencing import META
from gateway.s3.request import BUCKET_NAME, Headers
from gateway.service.beside import Beside
from gateway.service.refusals import store_unavailable
from gateway.service.sending import head_of
from gateway.service.values import Write
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import Upload, UploadState
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamRequest

SOURCE = "x-amz-copy-source"
_IN_TARGETS = "%/!$&'()*+,;=:@~-._"
"""What stays as it is in a path or a query: escapes, and what RFC 3986 lets stand there."""
_PLAIN_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_SOURCE_CUSTOMER_KEY = "x-amz-copy-source-server-side-encryption-customer-"
_CUSTOMER_KEY = "x-amz-server-side-encryption-customer-"
# What CopyObject takes over from the source unless it is replaced (S3 API reference, CopyObject, "Metadata").
_SYSTEM_METADATA = frozenset(
    {"cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires"}
)
# A copy of an object onto itself must change one of these (the same page).
_CHANGES = (
    "x-amz-storage-class",
    "x-amz-server-side-encryption",
    "x-amz-website-redirect-location",
    "x-amz-checksum-algorithm",
)
_TAGGING = "x-amz-tagging-directive"


def copy_source(value: str) -> tuple[str, str, str]:
    """Bucket, object key as sent (percent-encoded) and query of an `x-amz-copy-source`. Raises `S3Error`."""
    path, _, query = value.removeprefix("/").partition("?")
    # The separating slash itself may come encoded.
    if "/" not in path:
        path = path.replace("%2F", "/", 1).replace("%2f", "/", 1)
    bucket, _, raw_key = path.partition("/")
    if not bucket or not raw_key:
        raise _invalid_source(value, "Copy Source must mention the source bucket and key: sourcebucket/sourcekey")
    try:
        unquote_to_bytes(value.encode("utf-8", "surrogateescape")).decode()
    except UnicodeError as error:  # the store would find the gateway's signature of it wrong, not the name
        raise _invalid_source(value, "Copy Source must be URL-encoded UTF-8") from error
    named = unquote(bucket)
    if BUCKET_NAME.fullmatch(named) is None:
        raise S3Error("NoSuchBucket", "The specified bucket does not exist", BucketName=named)
    return named, raw_key, query


def _invalid_source(value: str, message: str) -> S3Error:
    return S3Error("InvalidArgument", message, ArgumentName=SOURCE, ArgumentValue=value)


async def prepare_copy(upstream: Upstream, write: Write) -> None:
    """Make `write`, a CopyObject, carry the source's metadata without its fence.

    Raises `S3Error` as S3 would for a bad or absent source; `TryAgain` if it cannot be looked at."""
    headers = write.head.headers
    if _directive(headers) == "REPLACE":
        return
    source = headers.get(SOURCE) or ""
    bucket, raw_key, query = copy_source(source)
    found = await _head_source(upstream, write, bucket, raw_key, query)
    same = bucket == write.bucket and unquote(raw_key) == write.object_key and not query
    if same and not any(name in headers for name in _CHANGES) and headers.get(_TAGGING) != "REPLACE":
        raise S3Error(
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself without changing the "
            "object's metadata, storage class, website redirect location or encryption attributes.",
        )
    unchanged = (f"{SOURCE}-if-match", dict(found).get("etag", ""))
    # Spelt out also where the source bears no fence now: equal bytes may bear one by the time they are copied.
    kept = [(name, value) for name, value in found if _is_metadata(name) and not name.startswith(META)]
    write.dropped = frozenset(name for name, _ in headers.pairs if _is_metadata(name))
    write.replaced = (
        *kept,
        ("x-amz-metadata-directive", "REPLACE"),
        unchanged,
    )


def _is_metadata(name: str) -> bool:
    return name in _SYSTEM_METADATA or name.startswith("x-amz-meta-")


def _directive(headers: Headers) -> str:
    """COPY or REPLACE. A store might take another spelling for either, and then copy the source's fence. Raises
    `S3Error` as S3 does."""
    given = headers.all("x-amz-metadata-directive") or ["COPY"]
    if len(given) > 1 or given[0] not in ("COPY", "REPLACE"):
        raise S3Error(
            "InvalidArgument",
            "Unknown metadata directive.",
            ArgumentName="x-amz-metadata-directive",
            ArgumentValue=",".join(given),
        )
    return given[0]


async def _head_source(
    upstream: Upstream, write: Write, bucket: str, raw_key: str, query: str
) -> list[tuple[str, str]]:
    headers = tuple(
        (_CUSTOMER_KEY + name.removeprefix(_SOURCE_CUSTOMER_KEY), value)
        for name, value in write.head.headers.pairs
        if name.startswith(_SOURCE_CUSTOMER_KEY)
    )
    # The gateway's own If-Match takes the place of the client's, and S3 overlooks the date where an If-Match holds.
    demands = ((name, write.head.headers.get(f"{SOURCE}-{name}")) for name in ("if-match", "if-unmodified-since"))
    headers += tuple((name, value) for name, value in demands if value is not None)
    # A header may hold plainly what a request's target has to escape, also a percent sign that begins no escape.
    spelt = (_PLAIN_PERCENT.sub("%25", text) for text in (raw_key, query))
    target, parameters = (quote(text, safe=_IN_TARGETS, errors="surrogateescape") for text in spelt)
    request = UpstreamRequest("HEAD", bucket, target, parameters, headers, EMPTY_SHA256)
    response = await head_of(upstream, request, "the copy's source", demands=True)
    if response.status == 404:
        raise S3Error("NoSuchKey", "The specified key does not exist.", Key=unquote(raw_key))
    if response.status == 412:
        raise S3Error("PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
    return response.headers


class CopyMarks:
    """Copies that may be under way, recorded durably: after a crash the key of one has to wait for it as long as for a
    Complete (R5)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unmarking = Beside()

    async def mark(self, write: Write, nonce: str) -> Callable[[], None]:
        """Record the copy; answers what takes the mark away. Raises `TryAgain` (StoreUnavailable)."""
        mark = Upload(nonce, write.bucket, write.object_key, write.key, write.token, nonce, UploadState.COPYING)

        def unmark() -> None:
            self._unmarking.run(self._unmark(mark))

        try:
            await self._store.uploads.bind(mark)
        except BaseException as error:
            unmark()  # it may have been recorded all the same
            if isinstance(error, StoreUnavailable):
                raise store_unavailable(error) from error
            raise
        return unmark

    async def _unmark(self, mark: Upload) -> None:
        # A mark that stays costs waiting after the next unclean start, no safety.
        with suppress(StoreUnavailable):
            await self._store.uploads.close(mark)

    @property
    def idle(self) -> bool:
        """Whether no mark is being taken away."""
        return self._unmarking.idle

    async def close(self) -> None:
        """Let the marks of settled copies be taken away."""
        await self._unmarking.ended()
