"""Who may make which call, for which keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from gateway.server.control.access import Access, ApiToken, may_use, may_use_all
from gateway.server.control.problems import Problem
from gateway.stores.values import Fence
from tests.server.control.rig import (
    CALLS,
    OPERATOR,
    OTHER,
    TOKENS,
    WORKER,
    Make,
    call,
    headers,
    listener,
    make,
)

__all__ = ["listener", "make"]


@pytest.mark.parametrize(("target", "body", "operators"), CALLS)
async def test_every_call_asks_who_calls(make: Make, target: str, body: object, operators: bool) -> None:
    """With configured tokens, none and a wrong one are 401, told apart; a worker is 403 on an operator's calls; the
    rest pass."""
    listener = await make(TOKENS)
    await listener.store.raise_floor("job-1", 1)
    for bearer in (None, "", "wrong", OPERATOR[:-1], OPERATOR + "x"):
        status, problem = await call(listener, target, body, bearer)
        assert (status, problem["reason"]) == (401, "unauthenticated")
        assert problem["detail"].startswith("the bearer token that was sent" if bearer else "send Authorization")
    status, answer = await call(listener, target, body, WORKER)
    assert status == (403 if operators else 200)
    assert not operators or (answer["reason"], answer["detail"]) == (
        "forbidden",
        'this call is an operator\'s: it wants an API token of role = "operator"',
    )
    assert (await call(listener, target, body, OPERATOR))[0] == 200


async def test_only_the_bearer_scheme_counts(make: Make) -> None:
    """The same secret under another scheme is no token; the scheme's name is read in any case (RFC 9110, 11.1)."""
    listener = await make(TOKENS)
    for scheme, status in (("Basic", 401), ("Token", 401), ("bearer", 200), ("BEARER", 200)):
        answer = await listener.client.get("/v1/fences", headers={"Authorization": f"{scheme} {OPERATOR}"})
        assert answer.status == status


@pytest.mark.parametrize(
    ("keys", "used"),
    [
        ((), []),
        (("*",), ["a", "b", "ab", "a\nb", "object:a/b"]),
        (("a", "b"), ["a", "b"]),
        (("a*",), ["a", "ab", "a\nb"]),
        (("object:a/*",), ["object:a/b"]),
    ],
)
def test_which_keys_a_token_may_use(keys: tuple[str, ...], used: list[str]) -> None:
    """Those that one of its patterns takes whole; without a pattern, none."""
    token = ApiToken("secret", operator=False, keys=keys)
    assert [key for key in ("a", "b", "ab", "a\nb", "object:a/b") if may_use(token, key)] == used
    assert may_use_all(token) is (len(used) == 5)


def test_a_token_does_not_show_its_secret() -> None:
    """Wherever one is printed, as in a traceback."""
    assert OPERATOR not in repr(TOKENS[0])


@pytest.mark.parametrize("bearer", ["\udcff\udcfe", "ü", OPERATOR + "\udcff"])
def test_a_bearer_that_is_no_ascii(bearer: str) -> None:
    """Whatever bytes a header holds, they are a wrong token, and no fault of the gateway."""
    request = cast("web.Request", SimpleNamespace(headers={"Authorization": f"Bearer {bearer}"}))
    with pytest.raises(Problem) as problem:
        Access(TOKENS).caller(request)
    assert problem.value.status == 401


@pytest.mark.parametrize(("target", "body", "operators"), CALLS[1:])
async def test_a_token_is_held_to_its_keys(make: Make, target: str, body: object, operators: bool) -> None:
    """A token limited to key patterns is 403 for every other key, an operator's too, and changes nothing."""
    listener = await make(TOKENS)
    await listener.store.raise_floor("job-1", 1)
    await listener.store.raise_floor("other", 1)
    status, problem = await call(listener, target, body, OTHER)
    assert (status, problem["reason"], problem["key"]) == (403, "forbidden", "job-1")
    status, _ = await call(listener, target.replace("job-1", "other"), body, WORKER)
    assert status == 403
    assert await listener.store.fence("other") == Fence(
        "other", 1, raised_at=(await listener.store.fence("other")).raised_at
    )


async def test_a_list_shows_only_the_keys_of_the_token(make: Make) -> None:
    """Others' keys are not listed."""
    listener = await make(TOKENS)
    for key in ("job-1", "job-2", "other"):
        await listener.store.raise_floor(key, 1)
    for bearer, keys in ((WORKER, ["job-1", "job-2"]), (OTHER, ["other"]), (OPERATOR, ["job-1", "job-2", "other"])):
        _, page = await listener.get("/v1/fences", bearer)
        assert [fence["key"] for fence in page["fences"]] == keys


async def test_health_is_open_and_metrics_are_not(make: Make) -> None:
    """Probes of a container platform need no token; metrics do."""
    listener = await make(TOKENS)
    assert (await listener.get("/healthz"))[0] == 200
    assert (await listener.get("/readyz"))[0] == 200
    assert (await listener.client.get("/metrics")).status == 401
    assert (await listener.client.get("/metrics", headers=headers(WORKER))).status == 200
