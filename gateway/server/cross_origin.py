"""Answers that the gateway gives alone, to pages of another origin.

A browser shows such a page nothing of an answer without the fields of CORS (Fetch Standard, "CORS check"): a refusal
would look like a broken network. What a bucket allows is the store's to say, so it is asked, by the request a browser
would ask with; answers that come from the store bear these fields already. Whoever is refused because the gateway is
overloaded or stops is refused before that: it must cost nothing.
"""

from __future__ import annotations

import asyncio

from gateway.s3.request import RequestHead
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamLost, UpstreamNotReached, UpstreamRequest

TIMEOUT_S = 2.0
ALLOWED = "access-control-allow-origin"
_FIELDS = frozenset({ALLOWED, "access-control-allow-credentials", "access-control-expose-headers", "vary"})


async def cross_origin(upstream: Upstream, head: RequestHead) -> list[tuple[str, str]]:
    """The fields that let the request's page read our answer; none where the store allows none, does not answer within
    2 s, or no page of another origin asks."""
    origin = head.headers.get("origin")
    if origin is None or head.bucket is None or head.method == "OPTIONS":
        return []
    asked = (("origin", origin), ("access-control-request-method", head.method))
    request = UpstreamRequest("OPTIONS", head.bucket, head.raw_key, "", asked, EMPTY_SHA256)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            response = await upstream.read(request)
    except (UpstreamNotReached, UpstreamLost, TimeoutError):
        return []
    response.close()
    # Some stores answer 200 to a method that they do not allow, and leave it out here.
    methods = (response.header("access-control-allow-methods") or "").replace(" ", "").split(",")
    return [(name, value) for name, value in response.headers if name in _FIELDS] if head.method in methods else []
