"""What holds for every call, because it is said once: who may make it, for which keys, and what it refuses to read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from yarl import URL

from gateway.server.control.access import ApiToken
from gateway.server.control.calls import Call, Role
from tests.server.control.contract import calls, conforms
from tests.server.rig import Rig, running

WORKER = ApiToken("worker-secret", operator=False, keys=("job-*",))
OPERATOR = ApiToken("operator-secret", operator=True, keys=("job-*",))
IN_PATH = {"key": "job-1", "bucket": "b", "queue": "frames"}


def named(call: Call) -> str:
    return f"{call.method} {call.path}"


EVERY = pytest.mark.parametrize("call", [one for one in calls() if one.role is not Role.ANYONE], ids=named)
OF_KEYS = pytest.mark.parametrize("call", [one for one in calls() if "{key}" in one.path], ids=named)
WITH_BODY = pytest.mark.parametrize("call", [one for one in calls() if one.signature.body], ids=named)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(api_tokens=(WORKER, OPERATOR)) as rig:
        yield rig
        assert "internal-error" not in rig.logged


async def ask(rig: Rig, call: Call, token: ApiToken | None, query: str = "", key: str = "job-1", **how: Any) -> Any:
    """Status, and the problem's reason, of a call that nothing is right of but who makes it."""
    path = call.path.format(**IN_PATH | {"key": key})
    headers = {} if token is None else {"Authorization": f"Bearer {token.secret}"}
    url = URL(f"http://127.0.0.1:{rig.gateway.control_port}{path}{query}", encoded=True)
    headers |= how.pop("headers", {})
    async with aiohttp.ClientSession() as session, session.request(call.method, url, headers=headers, **how) as answer:
        assert answer.headers.get("WWW-Authenticate") == ("Bearer" if answer.status == 401 else None)
        problem = await answer.json(content_type="application/problem+json")
        conforms(call.method, path, answer.status, answer.content_type, problem)
        return answer.status, problem["reason"]


@EVERY
async def test_who_may(rig: Rig, call: Call) -> None:
    """Without a token, or with a wrong one, 401 before anything is read; an operator's call is 403 for a worker."""
    for token in (None, ApiToken("wrong", operator=True)):
        assert await ask(rig, call, token, "?unknown=1") == (401, "unauthenticated")
    expected = (403, "forbidden") if call.role is Role.OPERATOR else (400, "invalid")
    assert await ask(rig, call, WORKER, "?unknown=1") == expected
    assert await ask(rig, call, OPERATOR, "?unknown=1") == (400, "invalid")


@OF_KEYS
async def test_which_keys(rig: Rig, call: Call) -> None:
    """A key outside the patterns of a token is 403, an operator's too, before the body is read."""
    assert await ask(rig, call, OPERATOR, key="other") == (403, "forbidden")
    assert await ask(rig, call, OPERATOR, key="%00") == (400, "KeyInvalid")
    assert await rig.store.fences(None, 1, "") == []


@WITH_BODY
async def test_which_bodies(rig: Rig, call: Call) -> None:
    """Another kind, one that is too large, an unknown member, null, and no object are refused by every call alike."""
    assert await ask(rig, call, OPERATOR, data=b"<a/>", headers={"Content-Type": "text/xml"}) == (
        415,
        "unsupported-media-type",
    )
    assert await ask(rig, call, OPERATOR, data=b" " * (call.max_body_bytes + 1)) == (413, "too-large")
    for body in ({"unknown": 1}, dict.fromkeys(call.signature.body.model_fields), [], None, "x"):  # type: ignore[union-attr]
        status, reason = await ask(rig, call, OPERATOR, json=body)
        assert (status, reason) in ((400, "invalid"), (400, "TokenInvalid"), (400, "KeyInvalid"))
    assert await rig.store.fences(None, 1, "") == []
