"""A whole gateway with webhooks: what is shown of them, to whom, and what is read again."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from gateway.clock import SystemClock
from gateway.config.settings import Settings, WebhookSettings
from gateway.server.assemble import webhooks as assembled
from gateway.server.control.access import ApiToken
from gateway.server.tls import Tls, tls_faults
from gateway.service.courier import NotTaken
from gateway.service.webhooks import Answer, Webhook
from gateway.telemetry import Telemetry
from tests.server.control.contract import conforms
from tests.server.rig import BOUND_S, Rig, running

SECRET = "whsec_" + base64.b64encode(b"known to the receiver, not to logs").decode()
TOKENS = (ApiToken("op", operator=True), ApiToken("worker", operator=False))


class Receiver:
    """Takes what it is posted, or not."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.fault: NotTaken | None = None
        self.asked = asyncio.Event()

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        self.asked.set()
        if self.fault is not None:
            raise self.fault
        self.taken.append(json.loads(body))
        return Answer(204)

    async def close(self) -> None:
        pass


async def ask(rig: Rig, path: str, token: str = "op") -> tuple[int, str]:
    url = f"http://127.0.0.1:{rig.gateway.control_port}{path}"
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.get(url) as answer,
    ):
        text = await answer.text()
        told = text if answer.content_type == "text/plain" else json.loads(text)
        conforms("GET", answer.url.raw_path, answer.status, answer.content_type, told)
        return answer.status, text


async def until_taken(receiver: Receiver, count: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while len(receiver.taken) < count:
            await asyncio.sleep(0.01)


async def test_writes_and_refusals_are_announced() -> None:
    """A token that comes with a write, and the refusal of a lower one, with who sent it and why."""
    receiver = Receiver()
    async with running(webhooks=((Webhook("hook", (SECRET,)), receiver),)) as rig:
        assert (await rig.put("a", b"x", 34)).status == 200
        assert (await rig.put("a", b"x", 33)).status == 412
        await until_taken(receiver, 2)
        raised, refused = receiver.taken
        assert (raised["type"], raised["data"]["token"]) == ("fencing.handed_over", 34)
        assert (refused["type"], refused["data"]["token"], refused["data"]["floor"]) == ("fencing.refused", 33, 34)
        assert refused["data"]["detail"].startswith("StaleToken: PutObject b/a, AKIDRIGEXAMPLE from ")
        assert refused["data"]["request_id"] == rig.record["request_id"]


async def test_what_is_shown() -> None:
    """Everything about its standing, nothing that is secret; to operators alone."""
    receiver = Receiver()
    receiver.fault = NotTaken("it answered 500")
    webhook = Webhook("hook", (SECRET,), ("fencing.handed_over",), ("object:*",))
    async with running(webhooks=((webhook, receiver),), api_tokens=TOKENS) as rig:
        await rig.put("a", b"x", 34)
        await asyncio.wait_for(receiver.asked.wait(), BOUND_S)
        status, text = await ask(rig, "/v1/webhooks")
        assert status == 200
        (shown,) = json.loads(text)["webhooks"]
        moments = {name: shown.pop(name) for name in ("oldest", "last_error_at")}
        assert all(str(moment).startswith("20") for moment in moments.values())
        assert shown == {
            "name": "hook",
            "events": ["fencing.handed_over"],
            "keys": ["object:*"],
            "state": "delivering",
            "waiting": 1,
            "held_up": 1,
            "taken": 0,
            "failed": 1,
            "dropped": {},
            "last_taken": None,
            "last_error": "it answered 500",
        }
        assert (await ask(rig, "/v1/webhooks", "worker"))[0] == 403
        _, metrics = await ask(rig, "/metrics", "worker")
        assert 'fencing_webhook_waiting{webhook="hook"} 1.0' in metrics
        assert 'fencing_webhook_posts_total{result="failed",webhook="hook"} 1.0' in metrics
        assert 'fencing_webhook_dropped_total{reason="expired",webhook="hook"} 0.0' in metrics
        for told in (text, metrics, rig.logged):
            assert SECRET.removeprefix("whsec_") not in told


async def test_without_webhooks_nothing_is_kept() -> None:
    """And the list is empty."""
    async with running() as rig:
        await rig.put("a", b"x", 34)
        assert await ask(rig, "/v1/webhooks") == (200, '{"webhooks":[]}')
        assert await rig.store.outbox.backlogs() == []


# --- settings


def settings(**more: object) -> Settings:
    webhook = WebhookSettings.model_validate({"url": "https://hooks.example.com/in", "secret": SECRET} | more)
    return Settings(webhook=(webhook,))


def test_settings_become_webhooks() -> None:
    """Each setting finds its place; an https:// address is spoken to over TLS that verifies."""
    clock = SystemClock()
    told = settings(events=["fencing.c*"], keys=["job-*"], name="hook", keep_s=90, max_waiting=500)
    ((webhook, _),) = assembled(told, Tls(told, clock.wall), clock)
    assert webhook == Webhook("hook", (SECRET,), ("fencing.c*",), ("job-*",), 90, 500)


def test_authorities_are_looked_at_and_read_again(tmp_path: Path) -> None:
    """A file that is none is a fault of its setting; one that has changed is used from SIGHUP on."""
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    ((place, _),) = tls_faults(settings(tls_ca=file))
    assert place == ("webhook", 0, "tls_ca")
    authorities = trustme.CA(), trustme.CA()
    authorities[0].cert_pem.write_to_path(file)
    tls = Tls(settings(tls_ca=file), SystemClock.wall)
    before = tls.webhook("hooks.example.com")
    authorities[1].cert_pem.write_to_path(file)
    tls.reload(Telemetry(SystemClock()))
    after = tls.webhook("hooks.example.com")
    assert before.get_ca_certs() != after.get_ca_certs()
    assert after.check_hostname


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "https://hooks.example.com/"])
def test_the_secret_is_not_shown_by_the_settings(url: str) -> None:
    """However they are printed."""
    told = settings(url=url)
    assert SECRET not in repr(told)
    assert SECRET not in told.model_dump_json()
