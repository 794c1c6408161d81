"""Credentials for a lease, over the control API: for who holds it, and for nobody else."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from yarl import URL

from gateway.core.keys import FencingKey, Token
from gateway.s3.sigv4 import Credentials
from gateway.server.clients import Client
from gateway.server.control.access import ApiToken
from gateway.server.control.credentials import credentials_of
from tests.server.control.contract import conforms
from tests.server.rig import CREDENTIALS, Rig, running

KEY = "job 1/ü"
LEASE = "/v1/leases/job%201%2F%C3%BC"
TARGET = f"{LEASE}/credentials"
RAISE = "/v1/fences/job%201%2F%C3%BC/raise"
OTHER = Client(Credentials("OTHER", "other-secret"))


async def granted(rig: Rig, bearer: str | None = None) -> dict[str, Any]:
    """A new lease, as its holder is told."""
    status, told = await ask(rig, {"holder": "worker", "ttl_s": 60}, LEASE, bearer)
    assert status == 201, told
    return dict(told)


async def ask(
    rig: Rig, body: object, target: str = TARGET, bearer: str | None = None, method: str = "POST"
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    url = URL(f"http://127.0.0.1:{rig.gateway.control_port}{target}", encoded=True)
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body, headers=headers) as answer:
        document = await answer.json(content_type=None)
        conforms(method, answer.url.raw_path, answer.status, answer.content_type, document)
        return answer.status, document


def pair(told: Any) -> Credentials:
    given = told["credentials"]
    return Credentials(given["access_key_id"], given["secret_access_key"], given["session_token"])


async def test_who_holds_the_lease_is_given_credentials() -> None:
    """With the grant and anew: they write under its key and token. Each call gives others, and takes nothing from the
    lease."""
    async with running() as rig:
        lease = await granted(rig)
        token = lease["token"]
        for said in (None, token, str(token)):
            status, told = (201, lease) if said is None else await ask(rig, {"token": said})
            assert (status, told["key"], told["token"]) == (200 if said else 201, KEY, token)
            assert told["credentials"]["expires_at"].endswith("Z")
            answer = await rig.ask("PUT", "/b/k", [], b"x", credentials=pair(told))
            assert (answer.status, answer.header("x-fencing-token")) == (200, str(token))
        assert pair(lease).access_key != pair(told).access_key
        fence = await rig.fence(KEY)
        assert (fence.floor, fence.granted_token) == (token, token)
        assert not any(secret in rig.logged for secret in (pair(told).secret_key, pair(told).session_token))


async def test_a_lost_lease_is_given_none() -> None:
    """Raised past, given up, taken over: 409 with the floor, and nothing is granted. What it was given is stale."""
    async with running() as rig:
        lease = await granted(rig)
        token = lease["token"]
        assert (await ask(rig, {"token": token + 1, "reason": "a test"}, RAISE))[0] == 200
        status, told = await ask(rig, {"token": token})
        assert (status, told["reason"], told["floor"], told["key"]) == (409, "lost", token + 1, KEY)
        assert "credentials" not in told
        stale = await rig.ask("PUT", "/b/k", [], b"x", credentials=pair(lease))
        assert (stale.status, stale.header("x-fencing-reason")) == (412, "StaleToken")
        again = await granted(rig)
        url = f"{LEASE}?token={again['token']}"
        assert (await ask(rig, None, url, method="DELETE"))[0] == 204
        status, told = await ask(rig, {"token": again["token"]})
        assert (status, told["reason"], told["floor"]) == (409, "lost", again["token"])
        sealed = await rig.ask("PUT", "/b/k", [], b"x", credentials=pair(again))
        assert (sealed.status, sealed.header("x-fencing-reason")) == (412, "Sealed")
        third = await granted(rig)
        assert (await ask(rig, {"token": again["token"]}))[1]["floor"] == third["token"]
        assert (await rig.fence(KEY)).floor == third["token"]


async def test_a_lease_that_ran_out_is_its_holders_until_somebody_takes_it() -> None:
    """As it could be renewed, its credentials are given anew; from the take-over on they are not, and it is told."""
    async with running() as rig:
        status, first = await ask(rig, {"holder": "worker", "ttl_s": 0.1}, LEASE)
        assert status == 201
        while (await ask(rig, None, "/v1/leases", method="GET"))[1]["leases"][0]["expires_in_s"]:
            pass
        assert (await ask(rig, {"token": first["token"]}))[0] == 200
        second = await ask(rig, {"holder": "other", "ttl_s": 60, "wait_s": 5}, LEASE)
        assert second[0] == 201
        status, told = await ask(rig, {"token": first["token"]})
        assert (status, told["reason"], told["floor"]) == (409, "lost", second[1]["token"])


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
        assert (await ask(rig, {"token": 99, "reason": "x"}, "/v1/fences/others/raise"))[0] == 200
        assert (await ask(rig, {"token": 99}, "/v1/leases/others/credentials"))[1]["reason"] == "TokenNotIssued"


async def test_whose_rights_they_have() -> None:
    """Those of the API token's client; where there are several and it names none, a problem that says what to set."""
    tokens = (
        ApiToken("named", operator=False, client="OTHER"),
        ApiToken("unnamed", operator=True),
        ApiToken("narrow", operator=False, keys=("x-*",)),
    )
    async with running(clients=[Client(CREDENTIALS), OTHER], api_tokens=tokens) as rig:
        assert "credentials" not in await granted(rig, "unnamed")
        token = (await rig.fence(KEY)).floor
        status, told = await ask(rig, {"token": token}, bearer="named")
        assert status == 200
        assert (await rig.ask("PUT", "/b/k", [], b"x", credentials=pair(told))).status == 200
        assert rig.record["client"] == "OTHER"
        status, told = await ask(rig, {"token": token}, bearer="unnamed")
        assert (status, told["reason"]) == (409, "no-client")
        assert "`client`" in told["detail"]
        assert (await ask(rig, {"token": token}, bearer="narrow"))[0] == 403
        assert (await ask(rig, {"token": token}))[0] == 401


async def test_no_text_of_a_program_shows_a_secret() -> None:
    """The document alone has it: not the words that logs and tracebacks would show."""
    async with running() as rig:
        shown = credentials_of(rig.gateway.issuer, None, FencingKey(KEY), Token(1))
        assert shown is not None
        for hidden in (shown.secret_access_key, shown.session_token):
            assert hidden not in repr(shown) + str(shown)
