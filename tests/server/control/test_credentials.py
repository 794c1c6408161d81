"""Credentials for a lease, over the control API: for who holds it, and for nobody else."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from yarl import URL

from gateway.core.keys import FencingKey, Token
from gateway.s3.sigv4 import Credentials
from gateway.server.clients import Client
from gateway.server.control.access import ApiToken
from gateway.stores.base import GrantWanted
from tests.server.rig import CREDENTIALS, Rig, running

KEY = "job 1/ü"
TARGET = "/v1/leases/job%201%2F%C3%BC/credentials"
OTHER = Client(Credentials("OTHER", "other-secret"))


async def granted(rig: Rig, key: str = KEY) -> int:
    """The token of a new lease on the key, as the store grants it."""
    before = (await rig.store.fence(key)).granted_token
    done = await rig.store.grant(key, GrantWanted("worker", 60.0, f"grant after {before}", before))
    assert done.token
    return done.token


async def ask(rig: Rig, body: object, target: str = TARGET, bearer: str | None = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    url = URL(f"http://127.0.0.1:{rig.gateway.control_port}{target}", encoded=True)
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


def pair(told: Any) -> Credentials:
    given = told["credentials"]
    return Credentials(given["access_key_id"], given["secret_access_key"], given["session_token"])


async def test_who_holds_the_lease_is_given_credentials() -> None:
    """They write under its key and token; each call gives others, and takes nothing from the lease."""
    async with running() as rig:
        token = await granted(rig)
        for said in (token, str(token)):
            status, told = await ask(rig, {"token": said})
            assert (status, told["key"], told["token"]) == (200, KEY, token)
            assert told["credentials"]["expires_at"].endswith("Z")
            answer = await rig.ask("PUT", "/b/k", [], b"x", credentials=pair(told))
            assert (answer.status, answer.header("x-fencing-token")) == (200, str(token))
        other = (await ask(rig, {"token": token}))[1]
        assert pair(other).access_key != pair(told).access_key
        fence = await rig.fence(KEY)
        assert (fence.floor, fence.granted_token) == (token, token)
        assert not any(secret in rig.stream.getvalue() for secret in (pair(told).secret_key, pair(told).session_token))


async def test_a_lost_lease_is_given_none() -> None:
    """Taken over, raised past, or given up: 409 with the floor, and nothing is granted. What it was given is stale."""
    async with running() as rig:
        token = await granted(rig)
        first = pair((await ask(rig, {"token": token}))[1])
        taken = await granted(rig)
        status, told = await ask(rig, {"token": token})
        assert (status, told["reason"], told["floor"], told["key"]) == (409, "lost", taken, KEY)
        assert "credentials" not in told
        stale = await rig.ask("PUT", "/b/k", [], b"x", credentials=first)
        assert (stale.status, stale.header("x-fencing-reason")) == (412, "StaleToken")
        await rig.store.raise_floor(KEY, taken + 1)
        assert (await ask(rig, {"token": taken}))[1]["floor"] == taken + 1
        again = await granted(rig)
        await rig.store.seal(KEY, again)
        status, told = await ask(rig, {"token": again})
        assert (status, told["reason"], told["floor"]) == (409, "lost", again)
        assert (await rig.fence(KEY)).floor == again


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"token": 99}, "TokenNotIssued"),
        ({"token": 0}, "TokenInvalid"),
        ({"token": True}, "TokenInvalid"),
        ({}, "invalid"),
        ({"token": 1, "holder": "x"}, "invalid"),
        ([], "invalid"),
    ],
)
async def test_what_is_no_lease(body: object, reason: str) -> None:
    """A token that was never granted, or none; a floor that others have raised is no lease either."""
    async with running() as rig:
        await granted(rig)
        status, told = await ask(rig, body)
        assert (status, told["reason"]) == (400, reason)
        await rig.store.raise_floor("others", 99)
        assert (await ask(rig, {"token": 99}, "/v1/leases/others/credentials"))[1]["reason"] == "TokenNotIssued"


async def test_whose_rights_they_have() -> None:
    """Those of the API token's client; where there are several and it names none, a problem that says what to set."""
    tokens = (
        ApiToken("named", operator=False, client="OTHER"),
        ApiToken("unnamed", operator=True),
        ApiToken("narrow", operator=False, keys=("x-*",)),
    )
    async with running(clients=[Client(CREDENTIALS), OTHER], api_tokens=tokens) as rig:
        token = await granted(rig)
        status, told = await ask(rig, {"token": token}, bearer="named")
        assert status == 200
        assert (await rig.ask("PUT", "/b/k", [], b"x", credentials=pair(told))).status == 200
        assert rig.record["client"] == "OTHER"
        status, told = await ask(rig, {"token": token}, bearer="unnamed")
        assert (status, told["reason"]) == (409, "no-client")
        assert "`client`" in told["detail"]
        assert (await ask(rig, {"token": token}, bearer="narrow"))[0] == 403
        assert (await ask(rig, {"token": token}))[0] == 401


async def test_no_answer_shows_a_secret_in_words() -> None:
    """The document alone has it: not the model's own text, which logs and tracebacks would show."""
    async with running() as rig:
        token = await granted(rig)
        issued = rig.gateway.issuer.issue(None, FencingKey(KEY), Token(token))
        assert issued is not None
        assert issued.credentials.secret_key not in repr(issued) + json.dumps(str(issued))
