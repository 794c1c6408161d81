"""The bounded cache in front of the reader."""

from __future__ import annotations

import asyncio

import pytest

from gateway.stores.sqlite.cache import ReadThrough


class SlowTable:
    """A table of one value, read when `release` is set; it shows what it held when the read began."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.reads = 0
        self.begun = asyncio.Event()
        self.release = asyncio.Event()

    async def load(self) -> int:
        self.reads += 1
        value = self.value
        self.begun.set()
        await self.release.wait()
        return value


async def test_a_value_is_loaded_once() -> None:
    """A second read is answered from the cache."""
    cache, table = ReadThrough[str, int](10), SlowTable(1)
    table.release.set()
    assert [await cache.read("k", table.load) for _ in range(3)] == [1, 1, 1]
    assert table.reads == 1


async def test_absence_is_kept_like_a_value() -> None:
    """A table that answers None is not asked again."""
    cache = ReadThrough[str, None](10)
    reads = []

    async def load() -> None:
        reads.append(1)

    for _ in range(2):
        await cache.read("k", load)
    assert len(reads) == 1


@pytest.mark.parametrize("change", ["put", "forget", "clear"])
async def test_what_was_read_before_a_commit_is_not_kept_after_it(change: str) -> None:
    """A read overtaken by a commit, or by a failed one, answers its own caller and nobody later."""
    cache, table = ReadThrough[str, int](10), SlowTable(1)
    reading = asyncio.create_task(cache.read("k", table.load))
    await table.begun.wait()
    table.value = 2
    match change:
        case "put":
            cache.put("k", 2)
        case "forget":
            cache.forget("k")
        case _:
            cache.clear()
    table.release.set()
    assert await reading == 1
    assert await cache.read("k", table.load) == 2


async def test_a_read_that_is_cancelled_leaves_nothing_behind() -> None:
    """Neither a value nor a mark that would let an older read keep its value."""
    cache, table = ReadThrough[str, int](10), SlowTable(1)
    reading = asyncio.create_task(cache.read("k", table.load))
    await table.begun.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert not cache._reading
    assert cache.get("k") is None


async def test_the_least_recently_used_goes_first() -> None:
    """Beyond its size the cache drops what nobody has asked for longest, whichever way it was asked."""
    cache = ReadThrough[str, int](3)
    for key in "abc":
        cache.put(key, ord(key))
    cache.get("a")

    async def never() -> int:
        raise AssertionError

    await cache.read("b", never)
    cache.put("d", 1)
    cache.put("e", 1)
    assert [key for key in "abcde" if cache.get(key) is not None] == ["b", "d", "e"]
