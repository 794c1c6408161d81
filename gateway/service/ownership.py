"""Admission of a write, and to whom its object belongs (R1, R9)."""

from __future__ import annotations

from contextlib import suppress

from gateway.core.keys import NO_TOKEN, FencingKey, key_of_metadata, stand_in_of
from gateway.core.write import ObjectState
from gateway.service.fences import Fences
from gateway.service.objects import ObjectEntry, Objects
from gateway.service.passages import LiveGate
from gateway.service.records import Records
from gateway.service.refusals import another_key, contested, store_unavailable
from gateway.service.values import Write
from gateway.stores.base import StoreUnavailable


class Owners:
    """Without a rule an object belongs to the key that last wrote it; the store remembers which (R9)."""

    def __init__(self, fences: Fences) -> None:
        self._fences = fences

    async def own(self, write: Write, entry: ObjectEntry) -> None:
        """Claim the object for the write's key, if it has a token.

        From before the claim on, no send of another key passes its commit point: neither one that waits for its body
        since it found the object unowned, nor one that an unclean start would forget.
        Raises `FenceError` where the object belongs to another key, or where one's send may still land."""
        store, place = self._fences.store, (write.bucket, write.object_key)
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
                    raise contested(write.key, self._fences.timing.settle_timeout_s, entry.rivals(write.key))
                entry.owner = write.key
                claimed = await store.claim(*place, write.key, instead_of=recorded)
                entry.owner = FencingKey(claimed)
                if claimed != write.key:
                    raise another_key(write, claimed)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error

    async def give_back(self, write: Write, entry: ObjectEntry, state: ObjectState) -> None:
        """The object says that it is another key's, and its claim by the write's key has come to nothing: it is
        recorded as the object says. A database that is new does not know so.

        Not while something of the claim's key may still land: who owned the object then would not wait for it."""
        store, place = self._fences.store, (write.bucket, write.object_key)
        with suppress(StoreUnavailable):  # then the next write of either key is refused, and tries it again
            async with entry.owning:
                settled = not entry.unsettled and self._fences.earlier_run.object_settles_in_s(*place) is None
                if settled and entry.state is state:
                    owner = key_of_metadata(state.key or "")
                    entry.owner = FencingKey(await store.claim(*place, owner, instead_of=write.key))

    def _refuse_move_after_crash(self, write: Write) -> None:
        """What an earlier run sent under one key, or none, is not known to another that takes the object over.
        Raises `TryAgain` (HandoverPending)."""
        left_s = self._fences.earlier_run.object_settles_in_s(write.bucket, write.object_key)
        if left_s is not None:
            raise contested(write.key, left_s)


class Door:
    """Where writes are admitted."""

    def __init__(self, fences: Fences, records: Records, objects: Objects) -> None:
        self.fences = fences
        self.records = records
        self.objects = objects
        self.owners = Owners(fences)


class Admission:
    """Admission and ownership of one write: gate and object stay pinned inside.

    A class of its own, since `asynccontextmanager` costs each request a generator that the event loop keeps book of."""

    __slots__ = ("_door", "_entry", "_live", "_write")

    _live: LiveGate
    _entry: ObjectEntry

    def __init__(self, door: Door, write: Write) -> None:
        self._door = door
        self._write = write

    async def __aenter__(self) -> tuple[LiveGate, ObjectEntry]:
        """Raises `FenceError`."""
        door, write = self._door, self._write
        await door.records.enter(write.bucket, token=write.token != NO_TOKEN)
        try:
            live = await door.fences.admit(
                write.key, write.token, cause=write.cause, request_id=write.request_id, limits=write.rule.limits
            )
        except BaseException:
            door.records.leave(write.bucket)
            raise
        entry = door.objects.pin(write.bucket, write.object_key)
        self._live, self._entry = live, entry
        try:
            if entry.unsettled_of_another(write.key):
                await self._uncontested()
            if not write.ruled:
                await door.owners.own(write, entry)
        except BaseException:
            self._unpin()
            raise
        return live, entry

    async def __aexit__(self, *_: object) -> None:
        self._unpin()

    async def _uncontested(self) -> None:
        """Wait until no send of another key may land on the object any more. Raises `TryAgain` (HandoverPending)."""
        timing = self._door.fences.timing
        if not await self._entry.uncontested(self._write.key, timing.handover_wait_s):
            raise contested(self._write.key, timing.settle_timeout_s, self._entry.rivals(self._write.key))

    def _unpin(self) -> None:
        self._door.objects.unpin(self._entry)
        self._door.fences.unpin(self._live)
        self._door.records.leave(self._write.bucket)
