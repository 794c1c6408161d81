"""Writes of single objects and uploads: under the fence, observed, or past it, as the rule of the object says (R11)."""

from __future__ import annotations

from gateway.core.errors import FenceError, Reason
from gateway.core.keys import Mode, WithoutToken
from gateway.core.write import Answer
from gateway.s3.errors import S3Error
from gateway.s3.fencing import Claimed, refuse_reserved
from gateway.s3.operations import Effect, Fences, Operation
from gateway.s3.xml import with_location
from gateway.server.call import Call
from gateway.service.observed import gate_if_enforced
from gateway.service.uploads import take_binding
from gateway.service.values import Result, Write
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import EventKind, Upload

_WOULD_REFUSE = "would-refuse"


async def answer_write(call: Call, operation: Operation) -> None:
    """A write of one object or upload. Raises `FenceError`, `S3Error`."""
    services, head = call.services, call.head
    assert head.bucket is not None
    assert head.key is not None
    name = await services.writes.name(head.bucket, head.key)
    mapping = services.rules.map(head.bucket, name)
    write = call.understood(operation, mapping, head.bucket, name)
    enforced = mapping.rule.mode is Mode.ENFORCE
    if enforced:
        result = await _enforced(call, write, call.said())
    else:
        refuse_reserved(head.headers)
        if mapping.rule.mode is Mode.OBSERVE:
            await observe(call, write)
        result = await services.writes.unfenced(write)
        if mapping.rule.mode is Mode.OBSERVE:
            services.observed.seen(write, result, would_refuse=call.record.decision == _WOULD_REFUSE)
    if operation.name == "CompleteMultipartUpload" and result.answer is Answer.APPLIED:
        result.body = with_location(result.body, call.location)
    # To throw an upload away needs no floor, and tells none: the token may long have been overtaken.
    tells = enforced and operation.effect is not Effect.DISCARD
    await call.let_pages_read(result)
    call.send_result(operation, result, write.key if tells else None, write.token)


async def _enforced(call: Call, write: Write, said: Claimed) -> Result:
    services, operation = call.services, write.operation
    upload = None
    if operation.fences is Fences.UPLOAD:
        upload = await _bound(call, write, said)
    if upload is None:
        call.name_key(write, said)
    call.record.fence_key, call.record.token = write.key, write.token or None
    services.clients.authorise_key(call.caller, write.key, write.token)
    call.require_token(write)
    if upload is None and write.past_the_gate:
        return await services.writes.unfenced(write)
    call.record.decision = "admitted"
    if upload is not None:
        if operation.effect is Effect.DISCARD:
            return await services.uploads.abort(write, upload)
        if operation.effect is Effect.STAGE:
            return await services.uploads.part(write)
        return await services.uploads.complete(write, upload)
    if operation.effect is Effect.STAGE:
        return await services.uploads.create(write)
    return await services.writes.fenced(write)


async def _bound(call: Call, write: Write, said: Claimed) -> Upload | None:
    """The upload's binding; None for one that `allow` has let begin outside the gate, which has none."""
    try:
        return await call.services.uploads.bound(write, said)
    except S3Error:
        if said.token is not None or write.rule.without_token is not WithoutToken.ALLOW:
            raise
        return None


async def observe(call: Call, write: Write) -> None:
    """What enforcement would have said, by the true floor and a shadow floor; nothing is refused, whatever fails."""
    services, store = call.services, call.services.writes.fences.store
    try:
        if not _named_as_enforced(call, write, call.said()):
            return
        if call.record.decision != _WOULD_REFUSE:
            call.record.fence_key, call.record.token = write.key, write.token or None
        services.clients.authorise_key(call.caller, write.key, write.token)
        call.require_token(write)
        if write.operation.effect is Effect.DISCARD or write.past_the_gate:
            return
        gate = gate_if_enforced(await store.fence(write.key))
        gate.admit(write.token, write.rule.limits)
        gate.raised((await store.raise_shadow(write.key, write.token)).shadow_floor)
        gate.refuse_overtaken(write.token)
        if not write.ruled:
            services.observed.own(write, await store.owner(write.bucket, write.object_key))
        if call.record.decision != _WOULD_REFUSE:
            call.record.floor = gate.floor
    except FenceError as error:
        would_refuse(call, error, write.cause)
    except StoreUnavailable:
        call.record.reason = Reason.STORE_UNAVAILABLE.value


def would_refuse(call: Call, error: FenceError, cause: str) -> None:
    """Tell what enforcement would have said: of a batch the log's line tells the first, the keys' history all."""
    record = call.record
    if record.decision != _WOULD_REFUSE:
        record.decision, record.reason, record.message = _WOULD_REFUSE, error.reason.value, error.message
        record.floor = error.floor
    call.remember(EventKind.WOULD_REFUSE, error, cause)


def _named_as_enforced(call: Call, write: Write, said: Claimed) -> bool:
    """Give `write` the key and token that it would have; False where nobody knows: an upload of before the start.
    Raises `Malformed`."""
    if write.operation.fences is not Fences.UPLOAD:
        call.name_key(write, said)
    elif upload := call.services.observed.of(write):
        take_binding(write, said, upload)
    else:
        return False
    return True
