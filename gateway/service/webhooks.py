"""Announcements to the operator's own receivers: who is told what, signed how, and what an answer means.

The store puts what is to be announced into its outbox, in the transaction of the event itself; a courier for each
webhook takes it from there. Signatures, ids and answers are those of Standard Webhooks 1.0.0
(https://www.standardwebhooks.com), the body is a CloudEvent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import Protocol

import orjson
import structlog
from standardwebhooks import Webhook as Signer

from gateway.clock import Clock
from gateway.core.announcements import MEDIA_TYPE, Announcement, Topic, source_of
from gateway.service.courier import Courier, NotTaken, Pace
from gateway.stores.base import Store
from gateway.stores.values import Backlog, Event, EventKind, Waiting

_log = structlog.get_logger(__name__)

TOPICS = {
    EventKind.RAISED: Topic.HANDED_OVER,
    EventKind.GRANTED: Topic.HANDED_OVER,
    EventKind.COMPLETED: Topic.COMPLETED,
    EventKind.DEAD_LETTERED: Topic.DEAD_LETTERED,
    EventKind.REFUSED: Topic.REFUSED,
}
"""Which events are announced."""
MAX_BEHIND_REFUSALS = 1000
"""Where more than this waits, refusals are left out: a stale worker that tries and tries must not push out what has
been completed."""
KEPT_UNCLAIMED_S = 7 * 86400
"""How long what waits for a webhook that is no longer configured is kept."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver, and what it wants to know. The patterns are the shell's."""

    name: str
    secrets: tuple[str, ...] = field(repr=False)
    """Each signs; several while one takes the place of another."""
    events: tuple[str, ...] = ("*",)
    keys: tuple[str, ...] = ("*",)
    keep_s: float = 604800
    max_waiting: int = 100_000

    def wants(self, topic: Topic, key: str) -> bool:
        return any(fnmatchcase(topic, one) for one in self.events) and any(fnmatchcase(key, one) for one in self.keys)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver has answered."""

    status: int
    retry_after_s: float = 0.0


class Poster(Protocol):
    """The way to one receiver."""

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post once, to that address and no other. Raises `NotTaken` where no answer comes."""
        ...

    async def close(self) -> None: ...


class Webhooks:
    """All of one gateway. From the beginning on, what is recorded is announced; posts go from `start` on."""

    def __init__(
        self, receivers: Sequence[tuple[Webhook, Poster]], store: Store, clock: Clock, pace: Pace | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._posters = [poster for _, poster in receivers]
        self._all: dict[str, tuple[Webhook, Courier]] = {}
        for webhook, poster in receivers:
            courier = Courier(
                webhook.name,
                partial(self._post, webhook, poster),
                store.outbox,
                clock,
                keep_s=webhook.keep_s,
                max_waiting=webhook.max_waiting,
                pace=pace or Pace(),
            )
            self._all[webhook.name] = (webhook, courier)
        if receivers:
            store.outbox.announce(self._wanted, self._arrived)

    async def start(self) -> None:
        """Take up what an earlier run has left. Raises `StoreUnavailable`."""
        left = {backlog.webhook: backlog for backlog in await self._store.outbox.backlogs()}
        for name, (_, courier) in self._all.items():
            # What has come since the beginning is among what waits, and was counted when it came.
            backlog = left.pop(name, None)
            courier.start(max(0, backlog.count - courier.waiting) if backlog else 0)
        for backlog in left.values():
            await self._forget(backlog)

    async def _forget(self, backlog: Backlog) -> None:
        """What waits for a webhook that is not configured is kept for a while: it may have been left out by mistake."""
        forgotten = await self._store.outbox.forget(backlog.webhook, self._clock.wall() - KEPT_UNCLAIMED_S)
        _log.warning("webhook-unclaimed", webhook=backlog.webhook, waiting=backlog.count - forgotten, dropped=forgotten)

    async def stop(self) -> None:
        """Leave what waits to the next run."""
        for _, courier in self._all.values():
            await courier.stop()
        for poster in self._posters:
            await poster.close()

    @property
    def all(self) -> Collection[tuple[Webhook, Courier]]:
        """Each with how it fares, in the order of the configuration."""
        return self._all.values()

    def _wanted(self, event: Event) -> list[str]:
        topic = TOPICS.get(event.kind)
        if topic is None:
            return []
        names = []
        for name, (webhook, courier) in self._all.items():
            if webhook.wants(topic, event.key):
                if topic is Topic.REFUSED and courier.waiting > MAX_BEHIND_REFUSALS:
                    courier.leave_out("refusals", event.times)
                else:
                    names.append(name)
        return names

    def _arrived(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self._all[name][1].arrived(count)

    async def _post(self, webhook: Webhook, poster: Poster, waiting: Waiting) -> None:
        announcement = announcement_of(waiting.event)
        body = orjson.dumps(announcement.as_cloud_event(source_of(self._store.authority.database)))
        headers = {
            "content-type": MEDIA_TYPE,
            **signed(webhook.secrets, announcement.id, int(self._clock.wall()), body),
        }
        judge(await poster.post(headers, body))


def announcement_of(event: Event) -> Announcement:
    """What is told of an event. A floor that has risen is told as it is after that."""
    topic = TOPICS[event.kind]
    floor = max(event.floor, event.token) if topic is Topic.HANDED_OVER else event.floor
    return Announcement(topic, event.key, event.token, floor, event.at, event.detail, event.request_id, event.times)


def signed(secrets: Sequence[str], message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers that prove an announcement, of this attempt ("Webhook headers")."""
    moment, text = datetime.fromtimestamp(at_s, UTC), body.decode()
    signatures = [Signer(secret).sign(message_id, moment, text) for secret in secrets]
    return {"webhook-id": message_id, "webhook-timestamp": str(at_s), "webhook-signature": " ".join(signatures)}


def judge(answer: Answer) -> None:
    """Raises `NotTaken` unless the answer says that the announcement was taken ("Delivery success and failure")."""
    status = answer.status
    if 200 <= status < 300:
        return
    if status == 410:
        raise NotTaken("it answered 410: it wants no more announcements", gone=True)
    if 300 <= status < 400:
        raise NotTaken(f"it answered {status}: redirects are not followed, set the url that it leads to")
    pause_s = answer.retry_after_s if status in (429, 503) else 0.0
    raise NotTaken(f"it answered {status}", pause_s=pause_s)
