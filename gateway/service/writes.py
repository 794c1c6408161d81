"""Fenced writes of one object: PUT, copy, delete, and the writes of its metadata (R2 to R5, R9).

A write is admitted, finds out to whom the object belongs, and is sent: under a condition on the state last seen where
the upstream honours conditions, withheld until the gate lets it pass. What comes back decides: applied, refused, in
doubt, or moved, which means to look at the object and judge it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from gateway.clock import Clock
from gateway.core.errors import FenceError, Outcome, Reason, TryAgain
from gateway.core.keys import NO_TOKEN, FencingKey, key_in_metadata, key_of_metadata, stand_in_of
from gateway.core.names import filed_name
from gateway.core.write import (
    ABSENT,
    CONDITION_FAILED_STATUS,
    Answer,
    Condition,
    ObjectState,
    Verdict,
    condition_on,
    judge,
)
from gateway.s3.errors import S3Error
from gateway.s3.fencing import object_metadata
from gateway.s3.forward import own_conditions
from gateway.s3.xml import find_text, render_copy_result
from gateway.service.copies import prepare_copy
from gateway.service.fences import Fences
from gateway.service.objects import ObjectEntry, Objects
from gateway.service.passages import LiveGate, Passage
from gateway.service.records import Records
from gateway.service.refusals import (
    another_key,
    condition_failed,
    contested,
    in_doubt,
    state_moved,
    store_unavailable,
    unavailable,
)
from gateway.service.sending import (
    deliver,
    keeps_versions,
    look,
    read_body,
    request_of,
    send_at_hand,
    stream,
    with_etag,
)
from gateway.service.values import Result, Write
from gateway.stores.base import StoreUnavailable, Upload, UploadState
from gateway.upstream.base import (
    Capabilities,
    CapabilitySource,
    Upstream,
    UpstreamLost,
    UpstreamNotReached,
    UpstreamRequest,
)

MAX_RESENDS = 8
"""How often a body at hand is sent again because the object's state had moved."""
CHASE_S = (0.5, 1, 2, 4, 8, 16)
"""When the object is looked at for the nonce of a send in doubt, seconds after one another."""


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


class Admission:
    """Admission and ownership of one write (R1, R9): gate and object stay pinned inside.

    A class of its own, since `asynccontextmanager` costs each request a generator that the event loop keeps book of."""

    __slots__ = ("_entry", "_live", "_write", "_writes")

    _live: LiveGate
    _entry: ObjectEntry

    def __init__(self, writes: Writes, write: Write) -> None:
        self._writes = writes
        self._write = write

    async def __aenter__(self) -> tuple[LiveGate, ObjectEntry]:
        """Raises `FenceError`."""
        writes, write = self._writes, self._write
        await writes.records.enter(write.bucket, token=write.token != NO_TOKEN)
        try:
            live = await writes.fences.admit(
                write.key, write.token, cause=write.cause, request_id=write.request_id, limits=write.rule.limits
            )
        except BaseException:
            writes.records.leave(write.bucket)
            raise
        entry = writes.objects.pin(write.bucket, write.object_key)
        self._live, self._entry = live, entry
        try:
            if entry.unsettled_of_another(write.key):
                await self._uncontested()
            if not write.ruled:
                await writes.own(write, entry)
        except BaseException:
            self._unpin()
            raise
        return live, entry

    async def __aexit__(self, *_: object) -> None:
        self._unpin()

    async def _uncontested(self) -> None:
        """Wait until no send of another key may land on the object any more. Raises `TryAgain` (HandoverPending)."""
        timing = self._writes.fences.timing
        if not await self._entry.uncontested(self._write.key, timing.handover_wait_s):
            raise contested(self._write.key, timing.settle_timeout_s, self._entry.rivals(self._write.key))

    def _unpin(self) -> None:
        self._writes.objects.unpin(self._entry)
        self._writes.fences.unpin(self._live)
        self._writes.records.leave(self._write.bucket)


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
        self.objects = objects
        self.upstream = upstream
        self.capabilities = capabilities
        self.clock = clock
        self.small_body_bytes = small_body_bytes
        self._require_conditional = require_conditional
        self._chases: set[asyncio.Task[None]] = set()
        self._unmarking: set[asyncio.Task[None]] = set()

    async def name(self, bucket: str, object_key: str) -> str:
        """The one name by which the fence knows an object. A store that files objects as paths takes several keys for
        one; until it has been seen not to, a stray slash must not lead around a fence."""
        filed = filed_name(object_key)
        if filed == object_key or not (await self.capabilities.of_bucket(bucket)).files_paths:
            return object_key
        return filed or object_key

    async def keeps_trailer(self, write: Write) -> bool:
        """Whether the checksum that trails a body that streams can be kept on the object (R2)."""
        if write.body is None or write.body.trailer is None or write.body.length <= self.small_body_bytes:
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
            admitted = await self._conditioned(write, live, entry)
            if isinstance(admitted, Result):
                return admitted
            if write.body is not None and write.body.length > self.small_body_bytes:
                return await self._streamed(admitted)
            data = await read_body(write)
            return await self._at_hand(admitted, data)

    def admitted(self, write: Write) -> Admission:
        """Admission and ownership, as a context in which gate and object stay pinned."""
        return Admission(self, write)

    # --- to whom the object belongs

    async def own(self, write: Write, entry: ObjectEntry) -> None:
        """Without a rule an object belongs to the key that last wrote it; the store remembers which (R9).

        From before the claim on, no send of another key passes its commit point: neither one that waits for its body
        since it found the object unowned, nor one that an unclean start would forget.
        Raises `FenceError` where the object belongs to another key, or where one's send may still land."""
        store, place = self.fences.store, (write.bucket, write.object_key)
        try:
            async with entry.owning:
                recorded = await store.owner(*place)
                by_hash = recorded not in (None, write.key) and recorded == stand_in_of(write.key)
                owner = write.key if by_hash else recorded
                entry.owner = None if owner is None else FencingKey(owner)
                if owner not in (None, write.key) and not (write.token and write.rule.rekey):
                    raise another_key(write, str(owner))
                if not write.token or recorded == write.key:
                    return
                if owner != write.key:
                    self._refuse_move_after_crash(write)
                if entry.unsettled_of_another(write.key):
                    raise contested(write.key, self.fences.timing.settle_timeout_s, entry.rivals(write.key))
                entry.owner = write.key
                claimed = await store.claim(*place, write.key, instead_of=recorded)
                entry.owner = FencingKey(claimed)
                if claimed != write.key:
                    raise another_key(write, claimed)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error

    def _refuse_move_after_crash(self, write: Write) -> None:
        """What an earlier run sent under one key, or none, is not known to another that takes the object over.
        Raises `TryAgain` (HandoverPending)."""
        left_s = self.fences.object_settles_in_s(write.bucket, write.object_key)
        if left_s is not None:
            raise contested(write.key, left_s)

    async def _give_back(self, write: Write, entry: ObjectEntry, state: ObjectState) -> None:
        """The object says that it is another key's, and its claim by the write's key has come to nothing: it is
        recorded as the object says. A database that is new does not know so (R9).

        Not while something of the claim's key may still land: who owned the object then would not wait for it."""
        store, place = self.fences.store, (write.bucket, write.object_key)
        with suppress(StoreUnavailable):  # then the next write of either key is refused, and tries it again
            async with entry.owning:
                settled = not entry.unsettled and self.fences.object_settles_in_s(*place) is None
                if settled and entry.state is state:
                    owner = key_of_metadata(state.key or "")
                    entry.owner = FencingKey(await store.claim(*place, owner, instead_of=write.key))

    def _judge(self, write: Write, live: LiveGate, state: ObjectState, nonce: str | None = None) -> Verdict:
        """Judge a head. Raises `Malformed` (KeyMismatch) where the object belongs to another key."""
        verdict = judge(state, write.key, write.token, nonce)
        if verdict is Verdict.OTHER_KEY:
            if not write.ruled and not write.rule.rekey:
                raise another_key(write, unquote(state.key or ""))
            return Verdict.MOVED
        return verdict

    async def _look(
        self, write: Write, live: LiveGate, entry: ObjectEntry, nonce: str | None = None
    ) -> tuple[ObjectState, Verdict, list[tuple[str, str]]]:
        """Look at the object and judge it. A higher token than ours raises the floor to itself; then ours is stale.
        Raises `FenceError`."""
        state, headers = await look(self.upstream, write)
        entry.state = state
        try:
            verdict = self._judge(write, live, state, nonce)
        except FenceError:
            await self._give_back(write, entry, state)
            raise
        if verdict is Verdict.HIGHER_TOKEN:
            await self.fences.learn(live, state.token, f"found on {write.bucket}/{write.object_key}", write.request_id)
            live.gate.refuse_overtaken(write.token)
        return state, verdict, headers

    # --- under which condition it is sent

    async def _conditioned(self, write: Write, live: LiveGate, entry: ObjectEntry) -> Admitted | Result:
        """The condition of the send, or an answer that needs none. Raises `FenceError` or `S3Error`."""
        operation, admitted = write.operation, Admitted(write, live, entry)
        if not write.token:
            return admitted
        _forget_unless_ours(write, entry)
        if not operation.conditional or write.head.param("versionId") is not None:
            if not write.ruled and entry.state is None:
                await self._look(write, live, entry)
            return admitted
        capabilities = await self.capabilities.of_bucket(write.bucket)
        admitted.bare_etag = capabilities.bare_etag
        honoured = _honours(capabilities, operation.name)
        if self._require_conditional and not honoured:
            raise unavailable(f"it has not proved conditional {operation.name}, which the configuration requires")
        admitted.honoured = honoured
        if own := own_conditions(write.head):
            await self._check_own_conditions(write, live, entry, own)
            admitted.own = True
        elif operation.name == "DeleteObject":
            if (answer := await self._before_delete(write, live, entry)) is not None:
                return answer
            if entry.state is ABSENT:
                return admitted
        else:
            streams = write.body is not None and write.body.length > self.small_body_bytes
            if entry.state is None and (streams or not (honoured or write.ruled)):
                await self._look(write, live, entry)
        if entry.folder and entry.state is ABSENT:
            admitted.honoured = honoured = False
        return admitted.on(entry.state) if honoured else admitted

    async def _before_delete(self, write: Write, live: LiveGate, entry: ObjectEntry) -> Result | None:
        """What is already gone is answered without a send, but only if it is seen gone now: memory proves nothing. With
        versions a delete leaves its mark even there."""
        if entry.state is None or entry.state.etag is None:
            state, _, _ = await self._look(write, live, entry)
            if state is ABSENT and await self._is_plain_bucket(write):
                return Result(204, [], b"")
        return None

    async def _is_plain_bucket(self, write: Write) -> bool:
        """Whether the bucket exists and keeps no versions."""
        return await keeps_versions(self.upstream, write.bucket) is False

    async def _check_own_conditions(
        self, write: Write, live: LiveGate, entry: ObjectEntry, own: frozenset[str]
    ) -> None:
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
        state, _, _ = await self._look(write, live, entry)
        if if_match is not None and state.etag is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.", Key=write.object_key)
        # RFC 9110, 13.1.1: one of several ETags is enough, a weak one never is.
        listed = [_bare(etag) for etag in (if_match or "").split(",") if not etag.strip().startswith("W/")]
        matches = if_match in (None, "*") or _bare(state.etag or "") in listed
        if not matches or (if_none_match is not None and state.etag is not None):
            raise condition_failed("If-Match" if if_match else "If-None-Match")

    # --- sending

    async def _at_hand(self, admitted: Admitted, data: bytes) -> Result:
        """Send a body that is at hand, again with the fresh condition while the state moves under it."""
        write, entry = admitted.write, admitted.entry
        for _ in range(MAX_RESENDS):
            nonce = self.clock.nonce()
            result: Result | None = None
            await self._take_turn(entry, write.key)
            try:
                _forget_unless_ours(write, entry)
                if admitted.honoured and not admitted.own and _conditional_on(write, entry.state):
                    admitted.on(entry.state)  # whoever was before has left a new state
                request = self._request(admitted, nonce)
                mark = await self._mark_copy(write, nonce) if write.operation.name == "CopyObject" else None
                with self._passage(admitted) as passage:
                    if mark is not None:
                        passage.on_settled = partial(self._unmark_copy, mark)
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
                return await self._in_doubt(admitted, passage, nonce, result)
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
            return await self._in_doubt(admitted, passage, nonce, result)
        if self._condition_failed(admitted, result):
            if (answer := await self._moved(admitted, nonce, result, at_hand=False)) is not None:
                return answer
            raise state_moved(write)
        return result

    def _heard(self, admitted: Admitted, passage: Passage, result: Result, nonce: str) -> None:
        """Settle the send by its answer, and remember the state that it left."""
        if result.answer is Answer.LOST:
            passage.lost()
        elif result.answer is Answer.REFUSED:
            passage.refused()
        else:
            passage.applied()
            admitted.entry.state = _state_after(admitted.write, admitted.entry, result, nonce)
            admitted.entry.folder = False

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
            state, verdict, headers = await self._look(write, live, entry, nonce)
        except TryAgain as error:
            # A server that tries twice may refuse what it has applied; only the nonce would tell.
            error.outcome = Outcome.UNKNOWN
            raise
        if verdict is Verdict.OURS:
            return _vouched(write, state, headers)
        if admitted.condition == condition_on(state, bare_etag=admitted.bare_etag) and _of_source(write, refusal):
            return refusal
        if admitted.own:
            raise condition_failed("If-Match" if "if-match" in write.head.headers else "If-None-Match")
        if admitted.condition == condition_on(ABSENT) and state is ABSENT and write.operation.name == "PutObject":
            # SeaweedFS keeps a folder when its last object goes. The gate orders (decision 0016).
            entry.folder = (await self.capabilities.of_bucket(write.bucket)).files_paths
        # An object that is absent does not tell whether its bucket keeps versions.
        if not at_hand or state.versioned or (state is ABSENT and not await self._is_plain_bucket(write)):
            raise state_moved(write)
        self.fences.unpin(await self.fences.admit(write.key, write.token, cause=write.cause))
        if write.operation.name == "DeleteObject" and state is ABSENT:
            return Result(204, [], b"")
        admitted.on(state)
        if entry.folder and state is ABSENT:
            admitted.honoured, admitted.condition = False, None
        return None

    async def _in_doubt(self, admitted: Admitted, passage: Passage, nonce: str, result: Result | None) -> Result:
        """The answer is lost. If the object bears this very send's nonce, it was applied; nothing else is known."""
        write, entry = admitted.write, admitted.entry
        entry.state = None
        bears_nonce = bool(write.token) and write.operation.name in ("PutObject", "CopyObject")
        if bears_nonce:
            try:
                state, verdict, headers = await self._look(write, admitted.live, entry, nonce)
            except (FenceError, S3Error):
                pass
            else:
                if verdict is Verdict.OURS:
                    passage.nonce_seen()
                    return _vouched(write, state, headers)
            self._chase(admitted, passage, nonce)
        seen = "no answer" if result is None else f"status {result.status} {result.code or ''}".strip()
        raise in_doubt(write, admitted.live.gate.floor, seen)

    async def _mark_copy(self, write: Write, nonce: str) -> Upload:
        """Record durably that a copy may be under way: after a crash its key has to wait for it as long as for a
        Complete (R5). Raises `TryAgain` (StoreUnavailable)."""
        mark = Upload(nonce, write.bucket, write.object_key, write.key, write.token, nonce, UploadState.COPYING)
        try:
            await self.fences.store.bind_upload(mark)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error
        return mark

    def _unmark_copy(self, mark: Upload) -> None:
        async def unmark() -> None:
            # A mark that stays costs waiting after the next unclean start, no safety.
            with suppress(StoreUnavailable):
                await self.fences.store.close_upload(mark)

        _run_in(self._unmarking, unmark())

    def _chase(self, admitted: Admitted, passage: Passage, nonce: str) -> None:
        """Go on looking for the nonce, so that a hand-over need not wait for the whole settle time-out."""

        async def chase() -> None:
            for pause_s in CHASE_S:
                await asyncio.sleep(pause_s)
                if not passage.doubtful:
                    return
                try:
                    state, _ = await look(self.upstream, admitted.write)
                except (FenceError, S3Error):
                    continue
                if judge(state, admitted.write.key, admitted.write.token, nonce) is Verdict.OURS:
                    passage.nonce_seen()
                    return

        _run_in(self._chases, chase())

    async def close(self) -> None:
        """End what looks for nonces; let the marks of settled copies be taken away."""
        for task in self._chases:
            task.cancel()
        await asyncio.gather(*self._chases, *self._unmarking, return_exceptions=True)
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
                without = frozenset({"if-match", "if-none-match"})
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


def _run_in(tasks: set[asyncio.Task[None]], what: Coroutine[Any, Any, None]) -> None:
    """Run something beside the request, held by `tasks` until it ends."""
    task = asyncio.create_task(what)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _honours(capabilities: Capabilities, operation: str) -> bool:
    return {
        "PutObject": capabilities.conditional_put,
        "CopyObject": capabilities.conditional_copy,
        "DeleteObject": capabilities.conditional_delete,
    }[operation]


def _forget_unless_ours(write: Write, entry: ObjectEntry) -> None:
    """What is remembered is judged like a head: a condition on what another key or a higher token has left would let
    the write replace it."""
    if entry.state is not None and judge(entry.state, write.key, write.token, None) is not Verdict.MOVED:
        entry.state = None


def _conditional_on(write: Write, state: ObjectState | None) -> bool:
    """Whether what is known of the object makes a condition for the write. No DELETE can demand absence: S3 answers 501
    to `If-None-Match` there, which would leave it in doubt."""
    return state is not None and (state.etag is not None or write.operation.name != "DeleteObject")


def _of_source(write: Write, refusal: Result) -> bool:
    """Whether a copy whose own object has not moved was refused for its source: absent, or not as was demanded."""
    if write.operation.name != "CopyObject":
        return False
    demanded = any(name.startswith("x-amz-copy-source-if-") for name, _ in write.head.headers.pairs)
    return refusal.status == 404 or (refusal.status == 412 and demanded)


def _bare(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


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


def _vouched(write: Write, state: ObjectState, headers: list[tuple[str, str]]) -> Result:
    """The answer to a write whose own answer was lost and whose nonce the object bears."""
    named = dict(headers)
    kept = [(n, named[n]) for n in ("x-amz-version-id", "x-amz-server-side-encryption") if n in named]
    if write.operation.name == "CopyObject":
        body = render_copy_result(state.etag or "", named.get("last-modified", ""))
        return Result(200, [*kept, ("content-type", "application/xml")], body)
    return Result(200, [*kept, ("etag", state.etag or "")], b"")
