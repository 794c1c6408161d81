"""The part of the control API that deals with leases: acquired, renewed, given up, listed (docs/leases.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import Field

from gateway.core.keys import FencingKey, Token
from gateway.server.control.access import ApiToken
from gateway.server.control.asked import IDEMPOTENCY_KEY, REQUEST_ID
from gateway.server.control.calls import Ask, Call
from gateway.server.control.credentials import CredentialsShown
from gateway.server.control.documents import (
    TEXT,
    Given,
    KeyGiven,
    MomentShown,
    Page,
    SecondsShown,
    Shown,
    TokenGiven,
    TokenShown,
)
from gateway.server.control.pages import page_of
from gateway.server.control.problems import Problem
from gateway.service.leases import LEASE_EVENTS, Lease, Leases

MIN_TTL_S = 0.1
MAX_HOLDER_CHARACTERS = 256

HolderGiven = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_HOLDER_CHARACTERS,
        description="Who holds the lease, for people: a host's and a process's name.",
    ),
    TEXT,
]
Credentials = Callable[[ApiToken | None, FencingKey, Token], CredentialsShown | None]
Output = Callable[[FencingKey], str | None]


class LeaseAsked(Given):
    """Who wants the key, for how long, and how long he waits in line for it."""

    holder: HolderGiven
    ttl_s: Annotated[
        float, Field(ge=MIN_TTL_S, allow_inf_nan=False, description="How long the lease lasts without a renewal.")
    ]
    wait_s: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="How long to wait in line; cut to `[lease] max_wait_s`."),
    ] = 0.0


class RenewalAsked(Given):
    """The token of the lease."""

    token: TokenGiven


class TokenNamed(Given):
    """The token of the lease."""

    token: TokenGiven


class LeasesAsked(Page):
    """Which leases."""

    prefix: str = Field("", description="Those on keys that begin so.")
    after: str = Field("", description="The `next` of the page before.")


class LeaseShown(Shown):
    """A lease, as its holder is told: it lasts `expires_in_s` from before the call was sent."""

    key: str
    token: TokenShown
    holder: str
    ttl_s: float
    expires_in_s: SecondsShown

    @classmethod
    def of(cls, lease: Lease) -> Self:
        return cls(
            key=lease.key,
            token=lease.token,
            holder=lease.holder,
            ttl_s=lease.ttl_s,
            expires_in_s=lease.expires_in_s,
        )


class GrantShown(LeaseShown):
    """A lease that has been granted, with what the work under it needs."""

    credentials: CredentialsShown | None = Field(None, description="S3 credentials that are bound to it.")
    output: str | None = Field(None, description="The object key that the rules give the job's output.")


class ListedShown(LeaseShown):
    """A lease in a list."""

    pending: bool
    granted_at: MomentShown


class LeasePage(Shown):
    """Leases by key."""

    leases: list[ListedShown]
    next: str | None


class LeaseMetrics(Collector):
    """What Prometheus is told."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("fencing_leases_held", "Leases that this process looks after.", self._leases.held)
        yield GaugeMetricFamily("fencing_leases_waiting", "Calls that wait in line for one.", self._leases.waiting)
        events = CounterMetricFamily("fencing_leases", "What became of leases.", labels=["event"])
        for event in LEASE_EVENTS:
            events.add_metric([event], self._leases.counts[event])
        yield events


class LeaseCalls:
    """Its handlers."""

    def __init__(
        self, leases: Leases, *, max_ttl_s: float, max_wait_s: float, credentials: Credentials, output: Output
    ) -> None:
        """`credentials` and `output` give what is handed out with a lease; None: there is none."""
        self._leases = leases
        self._max_ttl_s = max_ttl_s
        self._max_wait_s = max_wait_s
        self._credentials = credentials
        self._output = output

    def calls(self) -> list[Call]:
        """What each is."""
        of_key = "/v1/leases/{key}"
        return [
            Call("GET", "/v1/leases", self.list_leases),
            Call(
                "POST",
                of_key,
                self.acquire,
                statuses=(201,),
                refuses=(
                    "held",
                    "completed",
                    "exhausted",
                    "lost",
                    "limit",
                    "idempotency-key-reused",
                    "HandoverPending",
                    "Overloaded",
                    "Draining",
                ),
                headers=(IDEMPOTENCY_KEY, REQUEST_ID),
                leads_to=dict.fromkeys(("renew", "release", "give_credentials", "check", "complete_job"), ""),
            ),
            Call(
                "POST",
                f"{of_key}/renew",
                self.renew,
                refuses=("TokenNotIssued", "lost", "limit", "HandoverPending"),
                headers=(REQUEST_ID,),
            ),
            Call(
                "DELETE",
                of_key,
                self.release,
                statuses=(204,),
                refuses=("TokenNotIssued", "lost"),
                headers=(REQUEST_ID,),
            ),
        ]

    async def acquire(self, ask: Ask, key: KeyGiven, body: LeaseAsked) -> GrantShown:
        """Acquire the lease on a key: nothing with a lower token can take effect any more when this is answered. A
        repeated `Idempotency-Key` is answered the same grant."""
        require_at_most(self._max_ttl_s, ttl_s=body.ttl_s)
        lease = await self._leases.acquire(
            key,
            body.holder,
            body.ttl_s,
            wait_s=min(body.wait_s, self._max_wait_s),
            idempotency_key=ask.headers.get(IDEMPOTENCY_KEY.name),
            request_id=ask.headers.get(REQUEST_ID.name, ""),
        )
        more = handed_out(self._credentials(ask.caller, key, lease.token), self._output(key))
        return GrantShown(**LeaseShown.of(lease).__dict__, **more)

    async def renew(self, ask: Ask, key: KeyGiven, body: RenewalAsked) -> LeaseShown:
        """The lease's full time from now on, also of one that has run out and that nobody has taken over."""
        request_id = ask.headers.get(REQUEST_ID.name, "")
        return LeaseShown.of(await self._leases.renew(key, body.token, request_id=request_id))

    async def release(self, ask: Ask, key: KeyGiven, query: TokenNamed) -> None:
        """Give the lease up: its token is sealed, the floor stays. Once more: the same answer."""
        await self._leases.release(key, query.token, request_id=ask.headers.get(REQUEST_ID.name, ""))

    async def list_leases(self, ask: Ask, query: LeasesAsked) -> LeasePage:
        """Leases that are held, by key; one that has run out is, as long as nobody has taken it over."""
        read = partial(self._leases.listed, prefix=query.prefix)
        leases, following = await page_of(read, ask.caller, query.after, query.limit)
        shown = [
            ListedShown(**LeaseShown.of(lease).__dict__, pending=lease.pending, granted_at=lease.granted_at)
            for lease in leases
        ]
        return LeasePage(leases=shown, next=following)


def require_at_most(max_ttl_s: float, **asked: float | None) -> None:
    """Raises `Problem` for a time, by its member's name, that is longer than leases may last."""
    for name, ttl_s in asked.items():
        if ttl_s is not None and ttl_s > max_ttl_s:
            raise Problem(400, "invalid", f"`{name}` is at most {max_ttl_s:g} ([lease] max_ttl_s)")


def handed_out(credentials: CredentialsShown | None, output: str | None) -> dict[str, Any]:
    """The members that a grant has only where there is something to hand out."""
    given = {"credentials": credentials, "output": output}
    return {name: value for name, value in given.items() if value is not None}
