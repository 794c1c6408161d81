"""Under which condition a write is sent (R4): on the state last seen, where the upstream honours that; the client's own
conditions keep S3's meaning."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.write import ABSENT, Condition, ObjectState, Verdict, condition_on, judge
from gateway.s3.errors import S3Error
from gateway.s3.forward import own_conditions
from gateway.service.heads import Heads
from gateway.service.objects import ObjectEntry
from gateway.service.passages import LiveGate
from gateway.service.refusals import condition_failed, unavailable
from gateway.service.sending import versioning
from gateway.service.values import Result, Write
from gateway.upstream.base import Capabilities, CapabilitySource, Upstream


@dataclass(slots=True)
class Admitted:
    """A write that has been admitted: its gate, its object, and how it is to be sent."""

    write: Write
    live: LiveGate
    entry: ObjectEntry
    honoured: bool = False
    """The upstream honours conditions for this operation."""
    condition: Condition | None = None
    """None: unconditionally."""
    own: bool = False
    """The condition is the client's own: a failure is its answer, nothing is sent again."""
    bare_etag: bool = False

    def on(self, state: ObjectState | None) -> Admitted:
        """Conditioned on the state last seen."""
        self.condition = condition_on(state, bare_etag=self.bare_etag)
        return self

    def refresh(self) -> None:
        """Conditioned on what whoever was before has left."""
        write, entry = self.write, self.entry
        forget_unless_ours(write, entry)
        # No DELETE can demand absence: S3 answers 501 to `If-None-Match` there, which would leave it in doubt.
        demands = entry.state is not None and (entry.state.etag is not None or write.operation.name != "DeleteObject")
        if self.honoured and not self.own and demands:
            self.on(entry.state)


class Conditions:
    """Finds the condition of each write."""

    def __init__(
        self,
        heads: Heads,
        upstream: Upstream,
        capabilities: CapabilitySource,
        *,
        small_body_bytes: int,
        require: bool,
    ) -> None:
        """`require`: nothing fenced is sent that cannot be sent on a condition."""
        self._heads = heads
        self._upstream = upstream
        self._capabilities = capabilities
        self._small_body_bytes = small_body_bytes
        self._require = require

    async def of(self, write: Write, live: LiveGate, entry: ObjectEntry) -> Admitted | Result:
        """The condition of the send, or an answer that needs none. Raises `FenceError` or `S3Error`."""
        operation, admitted = write.operation, Admitted(write, live, entry)
        if not write.token:
            return admitted
        forget_unless_ours(write, entry)
        if not operation.conditional or write.head.param("versionId") is not None:
            if not write.ruled and entry.state is None:
                await self._heads.look(write, live, entry)
            return admitted
        capabilities = await self._capabilities.of_bucket(write.bucket)
        admitted.bare_etag = capabilities.bare_etag
        honoured = _honours(capabilities, operation.name)
        if self._require and not honoured:
            raise unavailable(f"it has not proved conditional {operation.name}, which the configuration requires")
        admitted.honoured = honoured
        if own := own_conditions(write.head):
            await self._check_own(write, live, entry, own)
            admitted.own = True
        elif operation.name == "DeleteObject":
            if (answer := await self._before_delete(write, live, entry)) is not None:
                return answer
            if entry.state is ABSENT:
                return admitted
        else:
            belied = entry.refuses_itself and operation.name == "PutObject"
            streams = write.streams(self._small_body_bytes)
            if entry.state is None and (streams or belied or not (honoured or write.ruled)):
                await self._heads.look(write, live, entry)
            if belied and entry.state is not None and (entry.state is ABSENT or entry.state.versioned):
                admitted.honoured = honoured = False
        return admitted.on(entry.state) if honoured else admitted

    async def _before_delete(self, write: Write, live: LiveGate, entry: ObjectEntry) -> Result | None:
        """What is already gone is answered without a send, but only if it is seen gone now: memory proves nothing. With
        versions a delete leaves its mark even there."""
        if entry.state is None or entry.state.etag is None:
            state, _, _ = await self._heads.look(write, live, entry)
            if state is ABSENT and await self.in_plain_bucket(write):
                return Result(204, [], b"")
        return None

    async def in_plain_bucket(self, write: Write) -> bool:
        """Whether the bucket exists and keeps no versions."""
        return await versioning(self._upstream, write.bucket) == ""

    async def in_suspended_bucket(self, write: Write) -> bool:
        """Whether the bucket has kept versions, and keeps none now."""
        return await versioning(self._upstream, write.bucket) == "Suspended"

    async def _check_own(self, write: Write, live: LiveGate, entry: ObjectEntry, own: frozenset[str]) -> None:
        """The client's own conditions keep S3's meaning; the head is still judged first. Raises S3's own answers."""
        if_match, if_none_match = (write.head.headers.get(n) for n in ("if-match", "if-none-match"))
        deleting = write.operation.name == "DeleteObject"
        known = if_none_match is None if deleting else if_none_match in (None, "*") and if_match != "*"
        if len(own) > 1 or not known:
            raise S3Error(
                "NotImplemented",
                "A header you provided implies functionality that is not implemented",
                Header="If-None-Match" if if_none_match else "If-Match",
            )
        state, _, _ = await self._heads.look(write, live, entry)
        if if_match is not None and state.etag is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.", Key=write.object_key)
        # RFC 9110, 13.1.1: one of several ETags is enough, a weak one never is.
        listed = [_bare(etag) for etag in (if_match or "").split(",") if not etag.strip().startswith("W/")]
        matches = if_match in (None, "*") or _bare(state.etag or "") in listed
        if not matches or (if_none_match is not None and state.etag is not None):
            raise condition_failed("If-Match" if if_match else "If-None-Match")


def forget_unless_ours(write: Write, entry: ObjectEntry) -> None:
    """What is remembered is judged like a head: a condition on what another key or a higher token has left would let
    the write replace it."""
    if entry.state is not None and judge(entry.state, write.key, write.token, None) is not Verdict.MOVED:
        entry.state = None


def _honours(capabilities: Capabilities, operation: str) -> bool:
    return {
        "PutObject": capabilities.conditional_put,
        "CopyObject": capabilities.conditional_copy,
        "DeleteObject": capabilities.conditional_delete,
    }[operation]


def _bare(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')
