"""SqliteStore against MemoryStore: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.stores.memory import MemoryStore
from gateway.stores.sqlite import SqliteStore
from gateway.stores.values import Event, EventKind, Upload

KEYS = ["a", "b", "c", "d"]
keys = st.sampled_from(KEYS)
tokens = st.one_of(st.integers(0, 6), st.sampled_from([2**53 + 1, 2**63 - 1]))
details = st.sampled_from(["", "PUT", "DELETE"])
uploads = st.builds(
    Upload,
    upload_id=st.sampled_from(["1", "2"]),
    bucket=st.just("b"),
    object_key=st.sampled_from(["x", "y"]),
    fence_key=keys,
    token=st.integers(0, 6),
    nonce=st.just("n"),
)


def told(events: list[Event]) -> list[Event]:
    """The history without what each store decides for itself: serials, and which alike lines it counts."""
    return [event._replace(serial=0, times=1, at=0.0) for event in events for _ in range(event.times)]


class Stores(RuleBasedStateMachine):
    """One sequence of calls on both; the cache of the one is so small that most reads miss it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.now = 1.0
        self.memory = MemoryStore(clock=lambda: self.now)
        self.sqlite = self.opened()
        self.digest = "rules"
        self.starts()

    def opened(self) -> SqliteStore:
        return SqliteStore(Path(self.directory.name) / "gateway.db", cache_size=2, clock=lambda: self.now)

    def starts(self) -> None:
        self.same(self.memory.start(self.digest), self.sqlite.start(self.digest))

    def same(self, expected: Awaitable[object], actual: Awaitable[object]) -> None:
        """Both answer alike, or both raise alike."""

        async def both() -> tuple[object, object]:
            return await asyncio.gather(expected, actual, return_exceptions=True)

        first, second = self.loop.run_until_complete(both())
        if isinstance(first, Exception):
            assert type(first) is type(second)
        else:
            assert first == second

    def teardown(self) -> None:
        self.loop.run_until_complete(self.sqlite.stop(clean=True))
        self.loop.close()
        self.directory.cleanup()

    @rule(key=keys, token=tokens, detail=details)
    def raise_floor(self, key: str, token: int, detail: str) -> None:
        self.now += 1
        event = Event(key, EventKind.RAISED, token, token, detail)
        self.same(self.memory.raise_floor(key, token, event), self.sqlite.raise_floor(key, token, event))

    @rule(raises=st.lists(st.tuples(keys, tokens), max_size=6))
    def raise_many(self, raises: list[tuple[str, int]]) -> None:
        async def many(store: MemoryStore | SqliteStore) -> None:
            await asyncio.gather(*(store.raise_floor(key, token) for key, token in raises))

        self.same(many(self.memory), many(self.sqlite))

    @rule(key=keys, token=tokens)
    def raise_shadow(self, key: str, token: int) -> None:
        async def shadow(store: MemoryStore | SqliteStore) -> int:
            return (await store.raise_shadow(key, token)).shadow_floor

        self.same(shadow(self.memory), shadow(self.sqlite))

    @rule(key=keys, token=tokens)
    def seal(self, key: str, token: int) -> None:
        async def seal(store: MemoryStore | SqliteStore) -> int:
            event = Event(key, EventKind.SEALED, token, token)
            return (await store.seal(key, token, event)).sealed_token

        self.same(seal(self.memory), seal(self.sqlite))

    @rule(key=keys, token=tokens)
    def complete_handover(self, key: str, token: int) -> None:
        async def complete(store: MemoryStore | SqliteStore) -> None:
            store.complete_handover(key, token)

        self.same(complete(self.memory), complete(self.sqlite))

    @rule(key=keys, token=tokens, detail=details)
    def record(self, key: str, token: int, detail: str) -> None:
        async def record(store: MemoryStore | SqliteStore) -> None:
            store.record(Event(key, EventKind.REFUSED, token, 0, detail))

        self.same(record(self.memory), record(self.sqlite))

    @rule(upload=uploads)
    def bind(self, upload: Upload) -> None:
        self.same(self.memory.uploads.bind(upload), self.sqlite.uploads.bind(upload))

    @rule(upload=uploads)
    def complete_upload(self, upload: Upload) -> None:
        self.now += 1
        self.same(self.memory.uploads.complete(upload, "etag"), self.sqlite.uploads.complete(upload, "etag"))

    @rule(upload=uploads)
    def mark_aborted(self, upload: Upload) -> None:
        self.now += 1
        self.same(self.memory.uploads.mark_aborted(upload), self.sqlite.uploads.mark_aborted(upload))

    @rule(upload=uploads)
    def close_upload(self, upload: Upload) -> None:
        self.same(self.memory.uploads.close(upload), self.sqlite.uploads.close(upload))

    @rule(key=keys, below=tokens)
    def revoke(self, key: str, below: int) -> None:
        self.now += 1
        self.same(self.memory.uploads.revoke(key, below), self.sqlite.uploads.revoke(key, below))

    @rule(age=st.integers(0, 5))
    def forget_uploads(self, age: int) -> None:
        before = self.now - age
        self.same(self.memory.uploads.forget(before), self.sqlite.uploads.forget(before))

    @rule(object_key=st.sampled_from("xyz"), key=keys, seen=st.none() | keys)
    def claim(self, object_key: str, key: str, seen: str | None) -> None:
        stores = (self.memory, self.sqlite)
        self.same(*(store.claim("b", object_key, key, instead_of=seen) for store in stores))

    @rule(clean=st.booleans(), rules=st.sampled_from(["rules", "other rules"]))
    def restart(self, clean: bool, rules: str) -> None:
        self.same(self.memory.stop(clean=clean), self.sqlite.stop(clean=clean))
        self.sqlite = self.opened()
        self.digest = rules
        self.starts()

    @rule(after=st.one_of(st.none(), keys), limit=st.integers(1, 5), prefix=st.sampled_from(["", "b"]))
    def list_fences(self, after: str | None, limit: int, prefix: str) -> None:
        self.loop.run_until_complete(self.sqlite.check())
        self.same(self.memory.fences(after, limit, prefix), self.sqlite.fences(after, limit, prefix))

    @rule()
    def look_at_everything(self) -> None:
        """After a flush all reads agree."""
        self.loop.run_until_complete(self.sqlite.check())
        self.same(self.memory.uploads.unfinished(None, 10), self.sqlite.uploads.unfinished(None, 10))
        for object_key in "xyz":
            self.same(self.memory.owner("b", object_key), self.sqlite.owner("b", object_key))
            for number in "12":
                this = ("b", object_key, number)
                self.same(self.memory.uploads.bound(*this), self.sqlite.uploads.bound(*this))
        for key in KEYS:
            self.same(self.memory.fence(key), self.sqlite.fence(key))
            expected = self.loop.run_until_complete(self.memory.events(key, None, 1000))
            actual = self.loop.run_until_complete(self.sqlite.events(key, None, 1000))
            assert told(expected) == told(actual)

    @invariant()
    def floors_agree(self) -> None:
        """What is not lazy agrees at every step."""

        async def floors(store: MemoryStore | SqliteStore) -> list[tuple[int, int]]:
            fences = [await store.fence(key) for key in KEYS]
            return [(fence.floor, fence.sealed_token) for fence in fences]

        self.same(floors(self.memory), floors(self.sqlite))


TestStores = Stores.TestCase
TestStores.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
