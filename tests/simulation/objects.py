"""The simulated object store: its objects, what is on its way to them, and an onlooker who notes every effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from urllib.parse import parse_qs, unquote

from gateway.core.names import RECORD_KEY, names_record
from gateway.s3.fencing import META_KEY, META_TOKEN
from gateway.s3.xml import parse_batch
from gateway.service.record import parse_record
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, StoredObject
from tests.checker.history import Effect, Fault, Ruled
from tests.simulation.chance import BUCKET, Chance
from tests.simulation.story import Story
from tests.simulation.versions import VersionedStore

WITHOUT_DATABASE = ("G0", "G1", "G2", "R9")
"""What does not cover what spans the moment at which another database takes a database's place."""
MARK = "x-amz-meta-mark"
"""The user metadata by which a client names what it writes, so that equal bytes are told apart."""
SHARED = b"the same"
"""How bytes begin that several values share."""

Calls = dict[str, tuple[str, int]]
attempt: ContextVar[Calls] = ContextVar("attempt")
"""The calls that the running request serves, by object, each with its token; unset for what the gateway does by itself.
"""


def calls() -> Calls:
    return attempt.get({})


class ObjectStore(VersionedStore):
    """What the wires of all runs lead to."""

    def __init__(self, story: Story, chance: Chance) -> None:
        super().__init__(BUCKET, seaweedfs=chance.seaweedfs)
        self.versioning = chance.versioning
        self.story = story
        self.written: dict[str, bytes] = {}
        """The bytes that each mark stands for."""
        self.under_way: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self.misfenced: list[str] = []
        self._databases = 0
        self.takes_over = ""
        """The database that is taking the bucket from one that is still about."""
        self.on_taken_over: Callable[[], None] = lambda: None

    def owner(self, key: str) -> str | None:
        """The fence key that the object bears."""
        stored = self.buckets[BUCKET].get(key)
        borne = None if stored is None else dict(stored.metadata).get(META_KEY)
        return None if borne is None else unquote(borne)

    def _bears(self, call: str, token: int, stored: StoredObject | None) -> None:
        """R4, R7: an object bears the token of who wrote it, and no other."""
        if stored is None:
            return
        borne = dict(stored.metadata).get(META_TOKEN, "0")
        if borne != str(token):
            self.misfenced.append(f"{call} wrote with token {token}, and its object bears {borne}")

    def value(self, key: str) -> str | None:
        """What a reader takes the object for."""
        stored = self.buckets[BUCKET].get(key)
        return None if stored is None else self._value(stored)

    def _value(self, stored: StoredObject) -> str:
        mark = dict(stored.metadata).get(MARK, "")
        return mark if self.written.get(mark) == stored.data else f"{mark} with other bytes: {stored.data!r}"

    def effect(self, request: UpstreamRequest, body: bytes, by: Calls) -> MemoryResponse:
        """Let a whole request take effect."""
        touched = what_may_change(request, body)
        objects = self.buckets[BUCKET]
        before = [objects.get(key) for key in touched]
        answer = self.apply(request, body)
        for (key, version_id), old in zip(touched.items(), before, strict=True):
            if objects.get(key) is not old and names_record(key):
                self._ruled()
            elif objects.get(key) is not old:
                assert key in by, f"the gateway itself has changed {key}"
                call, token = by[key]
                self.story.add(Effect(call, self.story.now, f"{BUCKET}/{key}", self.value(key)))
                if version_id is None:
                    self._bears(call, token, objects.get(key))
        return answer

    def name_database(self) -> str:
        """A name that no other database before this store has."""
        self._databases += 1
        return f"db{self._databases}"

    @property
    def recorded(self) -> bool:
        """The bucket bears a record."""
        return RECORD_KEY in self.buckets[BUCKET]

    def _ruled(self) -> None:
        """The bucket's record has changed."""
        record = parse_record(self.buckets[BUCKET][RECORD_KEY].data)
        by = "" if record.rebuilding else record.database
        if by and by == self.takes_over:
            self.takes_over = ""
            self.story.faults["taken-over"] += 1
            self.story.add(Fault(self.story.now, "taken-over", WITHOUT_DATABASE))
            self.on_taken_over()
        self.story.add(Ruled(self.story.now, by))

    def switch_versioning(self) -> None:
        """An operator has versions kept from now on, or no longer."""
        self.versioning = "Suspended" if self.versioning == "Enabled" else "Enabled"
        self.story.note(f"versioning is {self.versioning}")

    def lose_record(self) -> None:
        """Somebody has deleted it."""
        self._remove(BUCKET, RECORD_KEY)
        self.story.add(Ruled(self.story.now, None))

    def land_in(self, delay_s: float, land: Callable[[], None]) -> asyncio.TimerHandle:
        def landed() -> None:
            del self.under_way[handle]
            land()

        handle = asyncio.get_running_loop().call_later(delay_s, landed)
        self.under_way[handle] = land
        return handle

    def hurry(self, handle: asyncio.TimerHandle, within_s: float) -> None:
        """Its connection has been cut: it lands within that time, or never."""
        if handle in self.under_way and handle.when() > asyncio.get_running_loop().time() + within_s:
            handle.cancel()
            self.land_in(within_s, self.under_way.pop(handle))


def what_may_change(request: UpstreamRequest, body: bytes) -> dict[str, str | None]:
    """The objects that a request may change, each with the version that it deletes."""
    query = request.raw_query
    if request.method == "POST" and query == "delete":
        return {one.key: one.version_id for one in parse_batch(body)[0]}
    if query == "uploads" or "partNumber" in query or (request.method == "DELETE" and "uploadId" in query):
        return {}
    return {unquote(request.raw_key): parse_qs(query).get("versionId", [None])[0]}
