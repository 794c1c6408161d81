"""Fenced writes of one object: PUT, copy, delete, and the writes of its metadata (R2 to R5, R9).

A write is admitted, finds out to whom the object belongs, and is sent: under a condition on the state last seen where
the upstream honours conditions, withheld until the gate lets it pass. What comes back decides: applied, refused, in
doubt, or moved, which means to look at the object and judge it.
"""

from __future__ import annotations

import asyncio

from gateway.clock import Clock
from gateway.core.errors import Outcome, Reason, TryAgain
from gateway.core.keys import FencingKey, key_in_metadata
from gateway.core.names import filed_name
from gateway.core.write import ABSENT, CONDITION_FAILED_STATUS, Answer, ObjectState, Verdict, condition_on
from gateway.s3.fencing import object_metadata
from gateway.s3.xml import find_text
from gateway.service.conditions import Admitted, Conditions
from gateway.service.copies import CopyMarks, prepare_copy
from gateway.service.doubts import Doubts
from gateway.service.fences import Fences
from gateway.service.heads import Heads, vouched
from gateway.service.objects import ObjectEntry, Objects
from gateway.service.ownership import Admission, Door
from gateway.service.passages import Passage
from gateway.service.records import Records
from gateway.service.refusals import condition_failed, state_moved, unavailable
from gateway.service.sending import deliver, read_body, request_of, send_at_hand, stream, with_etag
from gateway.service.values import Result, Write
from gateway.upstream.base import CapabilitySource, Upstream, UpstreamLost, UpstreamNotReached, UpstreamRequest

_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})
"""What stands beside the gateway's own condition no more. Dates are none on S3's writes (S3 API reference, PutObject),
though some stores know them."""
MAX_RESENDS = 8
"""How often a body at hand is sent again because the object's state had moved."""


class Writes:
    """Sends writes through their gates."""

    def __init__(
        self,
        fences: Fences,
        objects: Objects,
        upstream: Upstream,
        capabilities: CapabilitySource,
        clock: Clock,
        *,
        small_body_bytes: int = 65536,
        require_conditional: bool = False,
        records: Records | None = None,
    ) -> None:
        """Without `records` no bucket's record is looked at."""
        self.fences = fences
        self.records = records or Records(fences.store, upstream, capabilities, clock, fenced_before=False)
        fences.before_commit = self.records.before_commit
        self.records.on_lapse = fences.cut_off
        self.objects = objects
        self.upstream = upstream
        self.capabilities = capabilities
        self.clock = clock
        self.small_body_bytes = small_body_bytes
        self.door = Door(fences, self.records, objects)
        self.heads = Heads(fences, self.door.owners, upstream)
        self.conditions = Conditions(
            self.heads, upstream, capabilities, small_body_bytes=small_body_bytes, require=require_conditional
        )
        self.doubts = Doubts(self.heads)
        self.marks = CopyMarks(fences.store)

    async def name(self, bucket: str, object_key: str) -> str:
        """The one name by which the fence knows an object. A store that files objects as paths takes several keys for
        one; until it has been seen not to, a stray slash must not lead around a fence."""
        filed = filed_name(object_key)
        if filed == object_key or not (await self.capabilities.of_bucket(bucket)).files_paths:
            return object_key
        return filed or object_key

    async def keeps_trailer(self, write: Write) -> bool:
        """Whether the checksum that trails a body that streams can be kept on the object (R2)."""
        if write.body is None or write.body.trailer is None or not write.streams(self.small_body_bytes):
            return False
        return write.body.trailer in (await self.capabilities.of_bucket(write.bucket)).trailers

    # --- the way of a write

    async def unfenced(self, write: Write) -> Result:
        """A write that no fence covers: as it came. Raises `S3Error`, `TryAgain`."""
        if write.operation.name == "CopyObject":
            await prepare_copy(self.upstream, write)
        entry = self.objects.pin(write.bucket, write.object_key)
        entry.state = None
        try:
            return await deliver(
                self.upstream,
                write,
                lambda: None,
                self._commit_timeout_s(write),
                self.small_body_bytes,
                keep_trailer=await self.keeps_trailer(write),
            )
        finally:
            entry.state = None
            self.objects.unpin(entry)

    async def fenced(self, write: Write) -> Result:
        """A write through its gate. Raises `FenceError` or `S3Error`."""
        async with self.admitted(write) as (live, entry):
            if write.operation.name == "CopyObject":
                await prepare_copy(self.upstream, write)
            admitted = await self.conditions.of(write, live, entry)
            if isinstance(admitted, Result):
                return admitted
            if write.streams(self.small_body_bytes):
                return await self._streamed(admitted)
            data = await read_body(write)
            return await self._at_hand(admitted, data)

    def admitted(self, write: Write) -> Admission:
        """Admission and ownership, as a context in which gate and object stay pinned."""
        return Admission(self.door, write)

    # --- sending

    async def _at_hand(self, admitted: Admitted, data: bytes) -> Result:
        """Send a body that is at hand, again with the fresh condition while the state moves under it."""
        write, entry = admitted.write, admitted.entry
        for _ in range(MAX_RESENDS):
            nonce = self.clock.nonce()
            result: Result | None = None
            await self._take_turn(entry, write.key)
            try:
                admitted.refresh()
                request = self._request(admitted, nonce)
                with self._passage(admitted) as passage:
                    if write.operation.name == "CopyObject":
                        passage.on_settled = await self.marks.mark(write, nonce)
                    passage.commit()
                    try:
                        result = await send_at_hand(self.upstream, request, data, self._commit_timeout_s(write))
                        if write.operation.name == "CopyObject":
                            result, _ = with_etag(result)
                    except UpstreamNotReached as error:
                        passage.refused()
                        raise unavailable(str(error)) from error
                    except UpstreamLost:
                        passage.lost()
                    else:
                        self._heard(admitted, passage, result, nonce)
            finally:
                entry.turn.release()
            if result is None or result.answer is Answer.LOST:
                return await self.doubts.answer(admitted, passage, nonce, result)
            if not self._condition_failed(admitted, result):
                return result
            if (answer := await self._moved(admitted, nonce, result)) is not None:
                return answer
        raise state_moved(write)

    async def _streamed(self, admitted: Admitted) -> Result:
        """Stream the body; what has moved meanwhile can only be sent again by the client."""
        write = admitted.write
        assert write.body is not None
        nonce = self.clock.nonce()
        request = self._request(admitted, nonce)
        keep_trailer = await self.keeps_trailer(write)
        result: Result | None = None
        with self._passage(admitted) as passage:
            try:
                result = await stream(
                    self.upstream,
                    request,
                    write.body,
                    passage.commit,
                    self._commit_timeout_s(write),
                    keep_trailer=keep_trailer,
                )
            except UpstreamNotReached as error:
                passage.not_sent()
                raise unavailable(str(error)) from error
            except UpstreamLost:
                passage.lost()
            else:
                if passage.committed:
                    self._heard(admitted, passage, result, nonce)
        if result is None or result.answer is Answer.LOST:
            return await self.doubts.answer(admitted, passage, nonce, result)
        if self._condition_failed(admitted, result):
            if (answer := await self._moved(admitted, nonce, result, at_hand=False)) is not None:
                return answer
            raise state_moved(write)
        return result

    def _heard(self, admitted: Admitted, passage: Passage, result: Result, nonce: str) -> None:
        """Settle the send by its answer, and remember the state that it left."""
        if result.answer is Answer.APPLIED:
            passage.applied()
            admitted.entry.state = _state_after(admitted.write, admitted.entry, result, nonce)
            admitted.entry.refuses_itself = False
        elif result.answer is Answer.REFUSED:
            passage.refused()
        else:
            passage.lost()

    def _condition_failed(self, admitted: Admitted, result: Result) -> bool:
        """Whether the upstream refused because the object was not in the state last seen."""
        if result.answer is not Answer.REFUSED or admitted.condition is None:
            return False
        if result.status not in CONDITION_FAILED_STATUS:
            return False
        return result.code in (None, "PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")

    async def _moved(self, admitted: Admitted, nonce: str, refusal: Result, *, at_hand: bool = True) -> Result | None:
        """The state has moved: look, judge, and be admitted anew with the fresh condition (R4). Answers a result if the
        send turns out to have been applied, or to have been refused for its copy's source. Raises `FenceError`, or S3's
        412 where the condition was the client's."""
        write, live, entry = admitted.write, admitted.live, admitted.entry
        try:
            state, verdict, headers = await self.heads.look(write, live, entry, nonce)
        except TryAgain as error:
            # A server that tries twice may refuse what it has applied; only the nonce would tell.
            error.outcome = Outcome.UNKNOWN
            raise
        if verdict is Verdict.OURS:
            return vouched(write, state, headers)
        refuted = condition_on(state, bare_etag=admitted.bare_etag)
        if admitted.condition == refuted and _of_source(write, refusal):
            return refusal
        if admitted.own:
            raise condition_failed("If-Match" if "if-match" in write.head.headers else "If-None-Match")
        may_be_folder = state is ABSENT or (write.head.key or "").endswith("/")
        folder = may_be_folder and admitted.condition == refuted
        putting = write.operation.name == "PutObject" and (admitted.condition == refuted or state.versioned)
        if putting or (folder and write.operation.name == "DeleteObject"):
            # SeaweedFS keeps a folder when its last object goes, and tells an ETag of it that it refuses itself; and of
            # what it kept a version of, once it keeps none. The gate orders (decision 0016).
            belied = folder or (state.versioned and await self.conditions.in_suspended_bucket(write))
            entry.refuses_itself = belied and (await self.capabilities.of_bucket(write.bucket)).files_paths
        # An object that is absent does not tell whether its bucket keeps versions.
        if not at_hand or state.versioned or (state is ABSENT and not await self.conditions.in_plain_bucket(write)):
            raise state_moved(write)
        self.fences.unpin(await self.fences.admit(write.key, write.token, cause=write.cause))
        if write.operation.name == "DeleteObject" and state is ABSENT:
            return Result(204, [], b"")
        admitted.on(state)
        if entry.refuses_itself and may_be_folder:
            admitted.honoured, admitted.condition = False, None
        return None

    async def close(self) -> None:
        """End what looks for nonces; let the marks of settled copies be taken away."""
        await self.doubts.close()
        await self.marks.close()
        await self.records.close()

    # --- small parts

    def _request(self, admitted: Admitted, nonce: str) -> UpstreamRequest:
        write, body = admitted.write, admitted.write.body
        extra: tuple[tuple[str, str], ...] = ()
        without: frozenset[str] = frozenset()
        if write.token:
            if write.operation.name in ("PutObject", "CopyObject"):
                extra += object_metadata(write.key, write.token, nonce)
            if admitted.condition is not None:
                extra += (admitted.condition.header(),)
                without = _CONDITIONS
        if body is not None:
            extra += body.checksum_headers()
        return request_of(write, extra=extra, without=without, payload_sha256=body.sha256 if body else None)

    def _passage(self, admitted: Admitted) -> Passage:
        write = admitted.write
        return Passage(
            self.fences,
            admitted.live,
            admitted.entry,
            write.token,
            assembles=write.operation.assembles,
            request_id=write.request_id,
        )

    def _commit_timeout_s(self, write: Write) -> float:
        return self.fences.timing.commit_s(assembles=write.operation.assembles)

    async def _take_turn(self, entry: ObjectEntry, key: FencingKey) -> None:
        """One body at hand at a time for each object, from commit point to answer."""
        if entry.turn.locked():
            try:
                async with asyncio.timeout(self.fences.timing.handover_wait_s):
                    await entry.turn.acquire()
            except TimeoutError:
                raise TryAgain(
                    Reason.STATE_MOVED,
                    "Other writes of this object are still on their way. Send the request again.",
                    key=key,
                    retry_after_s=1,
                ) from None
        else:
            await entry.turn.acquire()


def _of_source(write: Write, refusal: Result) -> bool:
    """Whether a copy whose own object has not moved was refused for its source: absent, or not as was demanded."""
    if write.operation.name != "CopyObject":
        return False
    demanded = any(name.startswith("x-amz-copy-source-if-") for name, _ in write.head.headers.pairs)
    return refusal.status == 404 or (refusal.status == 412 and demanded)


def _state_after(write: Write, entry: ObjectEntry, result: Result, nonce: str) -> ObjectState | None:
    """What is known of the object after an applied write; None if nothing is."""
    version = result.header("x-amz-version-id")
    versioned = version is not None and version != "null"
    if write.operation.name == "DeleteObject":
        return None if versioned or write.head.param("versionId") is not None else ABSENT
    if write.operation.name == "PutObject":
        etag = result.header("etag")
    elif write.operation.name == "CopyObject":
        etag = find_text(result.body, "ETag")
    else:
        return entry.state
    if not etag:
        return None
    key = key_in_metadata(write.key) if write.token else None
    return ObjectState(etag, key, write.token, nonce if write.token else "", versioned)
