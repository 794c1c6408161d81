"""Lists, page by page, as those see them who may use only some of the keys."""

from __future__ import annotations

import pytest

from gateway.core.keys import FencingKey
from gateway.server.control.documents import MAX_PAGE
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
