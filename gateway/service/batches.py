"""DeleteObjects (R7): decided key by key.

What the fence refuses, or what would have to wait, is that object's own `<Error>`; the rest goes through in one
request. A batch never holds one gate while it waits for another; a lost answer leaves every object in doubt.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from gateway.core.errors import FenceError, Outcome
from gateway.core.keys import NO_TOKEN
from gateway.core.write import ABSENT, FINAL_ERRORS, Answer
from gateway.s3.errors import S3Error, of_fence
from gateway.s3.fencing import META
from gateway.s3.forward import forwarded_headers
from gateway.s3.request import RequestHead
from gateway.s3.xml import (
    BatchDeleted,
    BatchError,
    BatchObject,
    parse_batch_result,
    render_batch,
    render_batch_result,
)
from gateway.service.objects import ObjectEntry
from gateway.service.passages import LiveGate, Passage
from gateway.service.refusals import unavailable
from gateway.service.sending import send_at_hand
from gateway.service.values import Result, Write
from gateway.service.writes import Writes
from gateway.upstream.base import UpstreamLost, UpstreamNotReached, UpstreamRequest


@dataclass(slots=True)
class _Item:
    asked: BatchObject
    write: Write
    live: LiveGate
    entry: ObjectEntry
    passage: Passage | None = None


class Batches:
    """Runs DeleteObjects through the gates of its objects."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._fences = writes.fences
        self._objects = writes.objects
        self._upstream = writes.upstream

    async def delete(
        self,
        head: RequestHead,
        bucket: str,
        writes: list[tuple[BatchObject, Write | FenceError | None]],
        *,
        quiet: bool,
        on_refusal: Callable[[FenceError, BatchObject], None],
    ) -> Result:
        """Delete what may be deleted. Each object comes with its write, with the refusal that the caller has already
        found, or with None where no fence covers it. `on_refusal` is told of each refusal. Raises `TryAgain` when the
        upstream's answer is lost or nothing was sent."""
        errors: list[BatchError] = []
        items: list[_Item] = []
        free: list[BatchObject] = []

        def refuse(asked: BatchObject, error: FenceError) -> None:
            on_refusal(error, asked)
            errors.append(BatchError(asked.key, asked.version_id, of_fence(error).code, error.message))

        try:
            for asked, write in writes:
                if write is None:
                    free.append(asked)
                elif isinstance(write, FenceError):
                    refuse(asked, write)
                else:
                    try:
                        items.append(await self._admit(asked, write))
                    except FenceError as error:
                        refuse(asked, error)
            return await self._send(head, bucket, items, free, errors, quiet, refuse)
        finally:
            for item in items:
                self._objects.unpin(item.entry)
                self._fences.unpin(item.live)
                self._writes.records.leave(item.write.bucket)

    async def _admit(self, asked: BatchObject, write: Write) -> _Item:
        """Admission without a wait: a pending hand-over is this object's error."""
        records = self._writes.records
        await records.enter(write.bucket, token=write.token != NO_TOKEN)
        try:
            return await self._admitted(asked, write)
        except BaseException:
            records.leave(write.bucket)
            raise

    async def _admitted(self, asked: BatchObject, write: Write) -> _Item:
        live = await self._fences.admit(
            write.key,
            write.token,
            cause=write.cause,
            request_id=write.request_id,
            wait_s=0,
            limits=write.rule.limits,
        )
        entry = self._objects.pin(write.bucket, write.object_key)
        try:
            if not write.ruled:
                await self._writes.door.owners.own(write, entry)
        except BaseException:
            self._objects.unpin(entry)
            self._fences.unpin(live)
            raise
        return _Item(asked, write, live, entry)

    async def _send(
        self,
        head: RequestHead,
        bucket: str,
        items: list[_Item],
        free: list[BatchObject],
        errors: list[BatchError],
        quiet: bool,
        refuse: Callable[[BatchObject, FenceError], None],
    ) -> Result:
        with ExitStack() as passages:
            sent: list[_Item] = []
            for item in items:
                try:
                    item.passage = self._commit(passages, item)
                except FenceError as error:
                    refuse(item.asked, error)
                else:
                    sent.append(item)
            asked = [*free, *(item.asked for item in sent)]
            if not asked:
                return _answer([], errors, [])
            request, data = _request(head, bucket, asked)
            try:
                result = await send_at_hand(self._upstream, request, data, self._fences.timing.commit_timeout_s)
            except UpstreamNotReached as error:
                for item in sent:
                    _passage(item).refused()
                raise unavailable(str(error)) from error
            except UpstreamLost:
                result = None
            if result is None or result.answer is Answer.LOST:
                raise _lost(sent)
            if result.answer is Answer.REFUSED:
                for item in sent:
                    _passage(item).refused()
                return result
            return self._settled(sent, result, errors, quiet)

    def _commit(self, passages: ExitStack, item: _Item) -> Passage:
        write = item.write
        passage = Passage(
            self._fences, item.live, item.entry, write.token, assembles=False, request_id=write.request_id
        )
        with ExitStack() as staged:
            staged.enter_context(passage)
            passage.commit()
            passages.enter_context(staged.pop_all())  # what is not committed must not stay: it would be interrupted
        return passage

    def _settled(self, sent: list[_Item], result: Result, errors: list[BatchError], quiet: bool) -> Result:
        """Each object is settled by its own element: deleted, refused, or an error that leaves it in doubt."""
        try:
            deleted, failed = parse_batch_result(result.body)
        except S3Error:
            raise _lost(sent) from None
        by_object = {(error.key, error.version_id or None): error for error in failed}
        done = _done([item.asked.called for item in sent if item.asked.called not in by_object], deleted)
        for item in sent:
            error = by_object.get(item.asked.called)
            if item.asked.called in done:
                _passage(item).applied()
                item.entry.state = ABSENT if item.asked.version_id is None else None
            elif error is not None and error.code in FINAL_ERRORS:
                _passage(item).refused()
            else:
                item.entry.state = None
                _passage(item).lost()
                if error is None:
                    message = "The object store said nothing of this object. Send the request again."
                    errors.append(BatchError(item.asked.key, item.asked.version_id, "InternalError", message))
        if not quiet and not errors:
            return result
        return _answer([] if quiet else [one.element for one in deleted], [*failed, *errors], result.headers)


def _done(asked: list[tuple[str, str | None]], deleted: list[BatchDeleted]) -> set[tuple[str, str | None]]:
    """Which of these, by key and version, have been deleted. An element with a version that was not asked for, or with
    none (SeaweedFS names no "null"), speaks of what else was asked of its key, if there are enough for all of that."""
    named = Counter((one.key, one.version_id) for one in deleted)
    left = Counter(key for key, _ in {*asked} - named.keys())
    others = Counter(key for key, _ in (named - Counter(asked)).elements())
    return {(key, version) for key, version in asked if (key, version) in named or others[key] >= left[key]}


def _lost(sent: list[_Item]) -> FenceError:
    """Nobody knows which objects are gone: all are in doubt."""
    for item in sent:
        item.entry.state = None
        _passage(item).lost()
    return unavailable("its answer to a DeleteObjects was lost", Outcome.UNKNOWN)


def _passage(item: _Item) -> Passage:
    assert item.passage is not None
    return item.passage


def _request(head: RequestHead, bucket: str, objects: list[BatchObject]) -> tuple[UpstreamRequest, bytes]:
    data = render_batch(objects)
    # The body is a new one: the client's digests of the old are replaced by one that every server reads.
    headers = [
        (n, v)
        for n, v in forwarded_headers(head, keep_md5=False)
        if not n.startswith(("x-amz-checksum-", "x-amz-sdk-checksum", META))
    ]
    md5 = b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
    request = UpstreamRequest(
        "POST", bucket, "", "delete", (*headers, ("content-md5", md5)), hashlib.sha256(data).hexdigest()
    )
    return request, data


def _answer(deleted: list[bytes], errors: list[BatchError], headers: list[tuple[str, str]]) -> Result:
    kept = [(n, v) for n, v in headers if n not in ("content-type", "content-length")]
    return Result(200, [*kept, ("content-type", "application/xml")], render_batch_result(deleted, errors))
