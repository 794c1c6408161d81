"""DeleteObjects: what the body names, each object mapped by itself (R7)."""

from __future__ import annotations

from functools import partial

from gateway.core.errors import FenceError, Malformed, Reason
from gateway.core.keys import NO_TOKEN, FencingKey, Mapping, Mode, key_of_object
from gateway.s3.errors import S3Error
from gateway.s3.fencing import NOTHING_CLAIMED, Claimed
from gateway.s3.operations import Operation
from gateway.s3.xml import BatchObject, parse_batch
from gateway.server.call import Call
from gateway.server.writing import observe, would_refuse
from gateway.service.buckets import refuse_record_key
from gateway.service.misreadings import doubles_lead_astray, refuse_misfiled, refuse_unrouted
from gateway.service.values import Write
from gateway.stores.values import EventKind


async def delete_objects(call: Call, operation: Operation) -> None:
    """All objects that the body names. Raises `FenceError`, `S3Error` for what concerns the whole."""
    services, head = call.services, call.head
    assert head.bucket is not None
    body = call.payload(operation)
    if body is None:
        raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
    asked, quiet = parse_batch(await body.read())
    astray = await doubles_lead_astray(services.writes.upstream, services.writes.capabilities, head.bucket, asked)
    mapped = [(one, *await _mapped(call, operation, head.bucket, one, astray=astray)) for one in asked]
    fenced = _keys(mapped, head.bucket, Mode.ENFORCE)
    said = call.said() if fenced else NOTHING_CLAIMED
    _refuse_scattered(fenced, said)
    observed = _keys(mapped, head.bucket, Mode.OBSERVE)
    call.record.decision = "admitted" if fenced else "passed"
    call.record.token = said.token
    key = said.key or (min(fenced) if len(fenced) == 1 else None)
    call.record.fence_key = key
    observing = bool(observed) and not _would_refuse_whole(call, fenced | observed)
    writes = [
        (
            one,
            mapping
            if isinstance(mapping, FenceError)
            else await _batch_write(call, call.understood(operation, mapping, head.bucket, name), said, observing),
        )
        for one, name, mapping in mapped
    ]
    result = await services.batches.delete(head, head.bucket, writes, quiet=quiet, on_refusal=partial(_refused, call))
    await call.let_pages_read(result)
    # Where an object was refused its own error says why, and the token need not be the floor.
    told = NO_TOKEN if call.record.decision == "refused" else said.token or NO_TOKEN
    call.send_result(operation, result, key, told)


async def _mapped(
    call: Call, operation: Operation, bucket: str, one: BatchObject, *, astray: bool
) -> tuple[str, Mapping | FenceError]:
    """One object's name and mapping; a key that names no object, or that the rules cannot map, is that object's own
    refusal."""
    writes = call.services.writes
    name = await writes.name(bucket, one.key)
    try:
        refuse_record_key(one.key)
        await refuse_misfiled(writes.capabilities, operation, bucket, one.key)
        await refuse_unrouted(writes.capabilities, bucket, one, astray=astray)
        return name, call.services.rules.map(bucket, name)
    except FenceError as error:
        return name, error


def _keys(mapped: list[tuple[BatchObject, str, Mapping | FenceError]], bucket: str, mode: Mode) -> set[FencingKey]:
    """The keys of those objects whose rule has that mode."""
    return {
        mapping.key or key_of_object(bucket, name)
        for _, name, mapping in mapped
        if isinstance(mapping, Mapping) and mapping.rule.mode is mode
    }


def _would_refuse_whole(call: Call, keys: set[FencingKey]) -> bool:
    """Whether enforcement would have refused the batch for what its head says; then that is told."""
    try:
        _refuse_scattered(keys, call.said())
    except Malformed as error:
        would_refuse(call, error, f"DeleteObjects {call.head.bucket}{call.sender}")
        return True
    return False


def _refuse_scattered(keys: set[FencingKey], said: Claimed) -> None:
    """A token without a key applies only where all objects map to one key (R7)."""
    token = said.token
    if token is not None and said.key is None and len(keys) > 1:
        one, other = sorted(keys)[:2]
        raise Malformed(
            Reason.KEY_MISMATCH,
            f"The objects of this DeleteObjects belong to several fencing keys ({one!r}, {other!r} …), and a token "
            "holds one job. Send one request for each job, with its key in X-Fencing-Key where no rule names it.",
            token=token,
            argument=("X-Fencing-Token", str(token)),
        )


async def _batch_write(call: Call, write: Write, said: Claimed, observing: bool) -> Write | FenceError | None:
    """One object's write; the refusal that its head has earned; None where no fence covers it."""
    if write.rule.mode is Mode.OFF:
        return None
    if write.rule.mode is Mode.OBSERVE:
        if observing:
            await observe(call, write)
        return None
    try:
        call.name_key(write, said)
        call.services.clients.authorise_key(call.caller, write.key, write.token)
        call.require_token(write)
    except FenceError as error:
        return error
    return None if write.past_the_gate else write


def _refused(call: Call, error: FenceError, one: BatchObject) -> None:
    record = call.record
    record.decision, record.reason = "refused", error.reason.value
    record.floor = error.floor if error.floor is not None else record.floor
    if error.key is not None:
        call.remember(EventKind.REFUSED, error, f"DeleteObjects {call.head.bucket}/{one.key}{call.sender}")
