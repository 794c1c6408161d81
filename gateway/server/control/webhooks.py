"""The part of the control API, and of the metrics, that tells how webhooks fare."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.server.control.calls import Call, Role
from gateway.server.control.documents import MomentShown, Shown
from gateway.service.courier import Courier
from gateway.service.webhooks import Webhook, Webhooks


class WebhookShown(Shown):
    """How one webhook fares. Counts begin at 0 with the process."""

    name: str
    events: list[str]
    keys: list[str]
    state: str
    """ "delivering", "down" (nothing has got through of late), or "gone" (it wants no more)."""
    waiting: int
    held_up: int
    """Keys whose oldest announcement has been tried in vain."""
    oldest: MomentShown
    taken: int
    failed: int
    dropped: dict[str, int]
    """Given up, by reason: "expired", "oldest", "refusals"."""
    last_taken: MomentShown
    last_error: str | None
    last_error_at: MomentShown


class WebhooksShown(Shown):
    """All of them, in the order of the configuration."""

    webhooks: list[WebhookShown]


class WebhookCalls:
    """Its handlers."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def calls(self) -> list[Call]:
        """What each is."""
        return [Call("GET", "/v1/webhooks", self.list_webhooks, Role.OPERATOR)]

    async def list_webhooks(self) -> WebhooksShown:
        """How the receivers of announcements fare, and how much waits for each."""
        return WebhooksShown(webhooks=[_shown(*one) for one in self._webhooks.all])


def _shown(webhook: Webhook, courier: Courier) -> WebhookShown:
    return WebhookShown(
        name=webhook.name,
        events=list(webhook.events),
        keys=list(webhook.keys),
        state=state_of(courier),
        waiting=courier.waiting,
        held_up=courier.held_up,
        oldest=courier.oldest_at,
        taken=courier.taken,
        failed=courier.failed,
        dropped=dict(courier.dropped),
        last_taken=courier.last_taken_at,
        last_error=courier.last_error,
        last_error_at=courier.last_error_at,
    )


def state_of(courier: Courier) -> str:
    """In one word."""
    if courier.gone:
        return "gone"
    return "down" if courier.down else "delivering"


class WebhookMetrics(Collector):
    """What Prometheus is told."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("fencing_webhook_waiting", "Announcements that wait.", labels=["webhook"])
        up = GaugeMetricFamily("fencing_webhook_up", "1 while the receiver takes announcements.", labels=["webhook"])
        oldest = GaugeMetricFamily(
            "fencing_webhook_oldest_timestamp_seconds",
            "When the oldest that waits happened; 0 where nothing waits.",
            labels=["webhook"],
        )
        posts = CounterMetricFamily(
            "fencing_webhook_posts", "Posts, by what became of them.", labels=["webhook", "result"]
        )
        dropped = CounterMetricFamily(
            "fencing_webhook_dropped", "Announcements that were given up.", labels=["webhook", "reason"]
        )
        for webhook, courier in self._webhooks.all:
            name = [webhook.name]
            waiting.add_metric(name, courier.waiting)
            up.add_metric(name, state_of(courier) == "delivering")
            oldest.add_metric(name, courier.oldest_at)
            posts.add_metric([*name, "taken"], courier.taken)
            posts.add_metric([*name, "failed"], courier.failed)
            for reason in ("expired", "oldest", "refusals"):
                dropped.add_metric([*name, reason], courier.dropped[reason])
        yield from (waiting, up, oldest, posts, dropped)
