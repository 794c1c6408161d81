"""Lists, page by page, as those see them who may use only some of the keys."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.keys import FencingKey
from gateway.server.control import pages
from gateway.server.control.access import ApiToken, key_prefixes, may_use
from gateway.server.control.documents import MAX_PAGE
from gateway.server.control.pages import page_of
from gateway.stores.values import Fence
from tests.server.control.desk import JOBS, JOBS_ASKED, RECEIVE, Make, make
from tests.server.control.rig import OPERATOR, TOKENS, WORKER

__all__ = ["make"]

KEYS = ("a-secret", "job-1", "job-2", "other", "z-secret")


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("kind", ["fences", "leases", "jobs"])
async def test_no_page_names_a_key_of_others(make: Make, kind: str, limit: int) -> None:
    """Neither in the list nor as the place where the next page begins; nothing is left out, and nothing told twice."""
    desk = await make(TOKENS)
    for key in KEYS:
        await desk.post(JOBS, {"key": key}, OPERATOR)
    await desk.post(RECEIVE, JOBS_ASKED | {"max": len(KEYS)}, OPERATOR)
    for bearer, mine in ((WORKER, ["job-1", "job-2"]), (OPERATOR, list(KEYS))):
        listed, after = [], ""
        while True:
            status, page = await desk.call("GET", f"/v1/{kind}?limit={limit}{after}", bearer=bearer)
            assert status == 200
            keys = [one["key"] for one in page[kind]]
            listed += keys
            if page["next"] is None:
                break
            assert page["next"] == keys[-1]
            after = f"&after={page['next']}"
        assert listed == mine


async def test_the_keys_of_others_are_passed_over(make: Make) -> None:
    """However many lie before one that the caller may see, or after the last."""
    desk = await make(TOKENS)
    for number in range(MAX_PAGE):
        await desk.store.raise_floor(f"jo{number:04}", 1)
    for key in ("a", "job-1", "z"):
        await desk.leases.acquire(FencingKey(key), "A", 30)
    for limit, following in ((1, "job-1"), (2, None)):
        _, page = await desk.call("GET", f"/v1/fences?limit={limit}", bearer=WORKER)
        assert ([one["key"] for one in page["fences"]], page["next"]) == (["job-1"], following)


class Table:
    """A list by key, and how often it is read."""

    def __init__(self, *keys: str) -> None:
        self._fences = [Fence(key) for key in sorted(set(keys))]
        self.reads = 0

    async def read(self, after: str, limit: int) -> list[Fence]:
        self.reads += 1
        return [fence for fence in self._fences if fence.key > after][:limit]

    async def walk(self, caller: ApiToken, limit: int) -> list[str]:
        """The keys of all pages, one after another."""
        listed: list[str] = []
        after: str | None = ""
        while after is not None:
            page, after = await page_of(self.read, caller, after, limit)
            listed += [fence.key for fence in page]
        return listed


async def test_the_keys_of_others_are_not_read() -> None:
    """What no pattern's beginning admits is left out by the reading itself, however much it is."""
    others = [f"{scene}/{number}" for scene in ("a", "job", "z") for number in range(20 * MAX_PAGE)]
    table = Table(*others, "job-1", "job-2", "just-me")
    assert await table.walk(ApiToken("", False, ("job-*", "just-me", "zz?")), 100) == ["job-1", "job-2", "just-me"]
    assert table.reads == 3
    assert await table.walk(ApiToken("", False, ()), 100) == []
    assert table.reads == 3


WORDS = st.text(st.sampled_from("\0ab*?[]\ud7ff\ue000\U0010ffff"), min_size=1, max_size=4)


@given(keys=st.lists(WORDS, max_size=12), patterns=st.lists(WORDS, max_size=3), limit=st.integers(1, 3))
@example(keys=["a\0", "a", "aa", "b"], patterns=["b", "a\0*"], limit=1)
def test_every_page_is_as_if_all_had_been_read(keys: list[str], patterns: list[str], limit: int) -> None:
    """Whatever the keys and the patterns are, pages have what the caller may use, in order, all of it and once."""
    caller = ApiToken("", False, tuple(patterns))
    with patch.object(pages, "MAX_PAGE", 2):
        listed = asyncio.run(Table(*keys).walk(caller, limit))
    assert listed == [key for key in sorted(set(keys)) if may_use(caller, key)]
    prefixes = key_prefixes(caller)
    assert all(first < second and not second.startswith(first) for first, second in pairwise(prefixes))
