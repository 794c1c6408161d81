"""Lists of objects as clients see them: without the bucket's record."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from gateway.core.names import RECORD_KEY
from gateway.s3.listing import (
    as_if_asked,
    goes_on_empty,
    names_common_prefix,
    next_page,
    page_of,
    record_prefixes,
    versions_beside,
    versions_of,
    without_record,
)
from gateway.service.refusals import refuse_our_own_fault, unavailable
from gateway.service.sending import result_of
from gateway.service.values import Result
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamLost, UpstreamNotReached, UpstreamRequest

MAX_LIST_BYTES = 16 * 2**20
"""1,000 keys of 1,024 bytes, each escaped, with all that may be told of them."""


async def listed(upstream: Upstream, request: UpstreamRequest) -> Result:
    """The answer to a list, with the record taken out of it. Raises `TryAgain` (UpstreamUnavailable), `S3Error`."""
    first = await ask(upstream, request)
    result = first
    if result.status != 200:
        return result
    rolled_up: str | None = None
    assert request.bucket is not None
    for shown_as, under in record_prefixes(request.raw_query):
        if names_common_prefix(result.body, shown_as) and await _is_alone_under(
            upstream, request.bucket, {shown_as, under}
        ):
            rolled_up = shown_as
    query = request.raw_query
    shown = without_record(result.body, rolled_up)
    while shown != result.body and goes_on_empty(shown):
        query = next_page(query, result.body)
        result = await ask(upstream, replace(request, raw_query=query))
        if result.status != 200:
            return result
        shown = without_record(result.body, rolled_up)
    return replace(result, body=shown if result is first else as_if_asked(shown, first.body))


async def ask(upstream: Upstream, request: UpstreamRequest) -> Result:
    """The whole answer to a request that only reads. Raises `TryAgain` (UpstreamUnavailable)."""
    try:
        result = await result_of(await upstream.read(request), MAX_LIST_BYTES)
    except (UpstreamNotReached, UpstreamLost) as error:
        raise unavailable(str(error)) from error
    refuse_our_own_fault(result.code)
    return result


async def keys_after(upstream: Upstream, bucket: str, prefix: str, after: str, limit: int) -> tuple[list[str], bool]:
    """The bucket's keys under `prefix` that come after `after`, at most `limit`, and whether more may follow. Raises
    `TryAgain` (UpstreamUnavailable), `S3Error`."""
    query = f"encoding-type=url&list-type=2&max-keys={limit}"
    if prefix:
        query += f"&prefix={quote(prefix, safe='')}"
    if after:
        query += f"&start-after={quote(after, safe='')}"
    result = await ask(upstream, UpstreamRequest("GET", bucket, "", query, (), EMPTY_SHA256))
    if result.status != 200:
        raise unavailable(f"it answers {result.status} {result.code or ''} to a list of bucket {bucket}")
    page = page_of(result.body)
    return list(page.keys), page.truncated


async def record_versions(upstream: Upstream, bucket: str) -> list[str]:
    """The ids of all versions of the record that the bucket keeps; none where it keeps none. Raises `TryAgain`."""
    query = f"prefix={RECORD_KEY}&versions="
    result = await ask(upstream, UpstreamRequest("GET", bucket, "", query, (), EMPTY_SHA256))
    return versions_of(result.body, RECORD_KEY) if result.status == 200 else []


async def holds_more(upstream: Upstream, bucket: str) -> bool:
    """Whether the bucket holds an object besides the record, or an old version of one. Raises `TryAgain`, `S3Error`."""
    keys, _ = await keys_after(upstream, bucket, "", "", 2)
    if any(key != RECORD_KEY for key in keys):
        return True
    request = UpstreamRequest("GET", bucket, "", "encoding-type=url&versions=", (), EMPTY_SHA256)
    result = await ask(upstream, request)
    return result.status == 200 and versions_beside(result.body, RECORD_KEY)


async def _is_alone_under(upstream: Upstream, bucket: str, prefixes: set[str]) -> bool:
    """Whether the record's key, and no other, begins with one of these."""
    found: set[str] = set()
    for prefix in sorted(prefixes):
        keys, _ = await keys_after(upstream, bucket, prefix, "", 2)
        found.update(keys)
    return found == {RECORD_KEY}
