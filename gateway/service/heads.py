"""What an object's head means to a write: whose the object is, and whether the write itself has made it (R4)."""

from __future__ import annotations

from urllib.parse import unquote

from gateway.core.errors import Malformed
from gateway.core.write import ObjectState, Verdict, judge
from gateway.s3.xml import render_copy_result
from gateway.service.fences import Fences
from gateway.service.objects import ObjectEntry
from gateway.service.ownership import Owners
from gateway.service.passages import LiveGate
from gateway.service.refusals import another_key
from gateway.service.sending import look
from gateway.service.values import Result, Write
from gateway.upstream.base import Upstream


class Heads:
    """Looks at objects and judges them."""

    def __init__(self, fences: Fences, owners: Owners, upstream: Upstream) -> None:
        self._fences = fences
        self._owners = owners
        self._upstream = upstream

    async def look(
        self, write: Write, live: LiveGate, entry: ObjectEntry, nonce: str | None = None
    ) -> tuple[ObjectState, Verdict, list[tuple[str, str]]]:
        """Look at the object and judge it. A higher token than ours raises the floor to itself; then ours is stale.
        Raises `FenceError`."""
        state, headers = await look(self._upstream, write)
        entry.state = state
        try:
            verdict = _judged(write, state, nonce)
        except Malformed:
            await self._owners.give_back(write, entry, state)
            raise
        if verdict is Verdict.HIGHER_TOKEN:
            await self._fences.learn(live, state.token, f"found on {write.bucket}/{write.object_key}", write.request_id)
            live.gate.refuse_overtaken(write.token)
        return state, verdict, headers

    async def bears(self, write: Write, nonce: str) -> bool:
        """Whether the object bears this very nonce now. Raises `FenceError` or `S3Error` where nobody can tell."""
        state, _ = await look(self._upstream, write)
        return judge(state, write.key, write.token, nonce) is Verdict.OURS


def _judged(write: Write, state: ObjectState, nonce: str | None) -> Verdict:
    """Raises `Malformed` (KeyMismatch) where the object belongs to another key."""
    verdict = judge(state, write.key, write.token, nonce)
    if verdict is Verdict.OTHER_KEY:
        if not write.ruled and not write.rule.rekey:
            raise another_key(write, unquote(state.key or ""))
        return Verdict.MOVED
    return verdict


def vouched(write: Write, state: ObjectState, headers: list[tuple[str, str]]) -> Result:
    """The answer to a write whose own answer was lost and whose nonce the object bears."""
    named = dict(headers)
    kept = [(n, named[n]) for n in ("x-amz-version-id", "x-amz-server-side-encryption") if n in named]
    if write.operation.name == "CopyObject":
        body = render_copy_result(state.etag or "", named.get("last-modified", ""))
        return Result(200, [*kept, ("content-type", "application/xml")], body)
    return Result(200, [*kept, ("etag", state.etag or "")], b"")
