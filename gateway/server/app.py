"""Puts the gateway together, starts it and stops it. Beside the command line, the only place that builds components."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gateway.clock import Clock, SystemClock
from gateway.core.keys import FencingKey, Ruleset
from gateway.core.outputs import output_of
from gateway.server.body import Progress
from gateway.server.call import Services
from gateway.server.clients import Client, Clients
from gateway.server.control.access import ApiToken
from gateway.server.control.application import Control
from gateway.server.control.buckets import BucketCalls
from gateway.server.control.credentials import CredentialCalls, credentials_of
from gateway.server.control.health import Readiness
from gateway.server.control.jobs import JobCalls, JobMetrics
from gateway.server.control.leases import LeaseCalls, LeaseMetrics
from gateway.server.control.listener import ControlListener
from gateway.server.control.webhooks import WebhookCalls, WebhookMetrics
from gateway.server.first_look import FirstLook, tls_fault
from gateway.server.listener import Limits, Listener
from gateway.server.s3 import S3Handler
from gateway.server.sessions import Issuer, Sessions
from gateway.server.tls import Tls, TlsMetrics
from gateway.service.batches import Batches
from gateway.service.completions import Completions
from gateway.service.earlier_run import under_present_rules
from gateway.service.fences import Fences
from gateway.service.jobs import Jobs
from gateway.service.leases import Leases, LeaseTerms
from gateway.service.objects import Objects
from gateway.service.queues import QueueRules
from gateway.service.rebuild import Rebuilds
from gateway.service.records import LAPSE_S, FencedBefore, Records
from gateway.service.uploads import Uploads
from gateway.service.waits import Timing
from gateway.service.webhooks import Poster, Webhook, Webhooks
from gateway.service.writes import Writes
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import Start
from gateway.telemetry import Telemetry
from gateway.upstream.base import CapabilitySource, Upstream

DRAIN_LOOK_S = 0.05


@dataclass(slots=True)
class Parts:
    """What a gateway is made of. The store and what is behind have been started; the gateway stops them."""

    store: Store
    store_start: Start
    """What the store said when it was started."""
    upstream: Upstream
    capabilities: CapabilitySource
    rules: Ruleset
    clients: tuple[Client, ...]
    api_tokens: tuple[ApiToken, ...] = ()
    sessions: Sessions = field(default_factory=Sessions)
    session_lifetime_s: float = 43200
    s3_endpoint_url: str | None = None
    """Where workers reach the S3 listener, if not at its own address."""
    webhooks: tuple[tuple[Webhook, Poster], ...] = ()
    """Who is told what, and the way there."""
    clock: Clock = field(default_factory=SystemClock)
    timing: Timing = field(default_factory=Timing)
    leases: LeaseTerms = field(default_factory=LeaseTerms)
    max_lease_ttl_s: float = 3600
    max_lease_wait_s: float = 60
    queues: QueueRules = field(default_factory=QueueRules)
    limits: Limits = field(default_factory=Limits)
    stop_behind: Callable[[], Awaitable[None]] | None = None
    """Stops what was started for the store behind (`gateway.server.behind.Behind.stop`)."""
    tls: Tls | None = None
    """The listeners' certificates; None: plain HTTP."""
    upstream_tls_fault: Callable[[], str | None] = lambda: None
    """Why the last TLS handshake with the upstream failed; None if one has succeeded since."""
    upstream_unsigned: bool = False
    """No credentials for the upstream are configured."""
    upstream_settled: bool = False
    """Nothing that an earlier run sent can still land: the processes of the embedded store had ended (R5)."""
    anonymous_read: bool = False
    require_conditional: bool = False
    small_body_bytes: int = 65536
    completed_uploads_kept_s: float = 7 * 86400
    fenced_before: FencedBefore = False
    """Whether buckets bear a record (`gateway.service.records`)."""
    record_lapse_s: float = LAPSE_S
    data_directory: Path | None = None
    """Where backups lie while they are made; None: there are none to be had."""
    virtual_host_suffixes: tuple[str, ...] = ()
    s3_address: tuple[str, int] = ("127.0.0.1", 0)
    control_address: tuple[str, int] = ("127.0.0.1", 0)
    drain_timeout_s: float = 25.0


class Gateway:
    """One running gateway."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        clock, store, upstream, capabilities = parts.clock, parts.store, parts.upstream, parts.capabilities
        self.telemetry = Telemetry(clock)
        self.fences = Fences(store, clock, parts.timing)
        self.records = Records(
            store, upstream, capabilities, clock, fenced_before=parts.fenced_before, lapse_s=parts.record_lapse_s
        )
        self.writes = Writes(
            self.fences,
            Objects(),
            upstream,
            capabilities,
            clock,
            small_body_bytes=parts.small_body_bytes,
            require_conditional=parts.require_conditional,
            records=self.records,
        )
        self.rebuilds = Rebuilds(
            self.fences,
            self.records,
            upstream,
            capabilities,
            parts.rules,
            self.writes.name,
            clock,
            settled=parts.upstream_settled,
        )
        self.uploads = Uploads(self.writes, kept_s=parts.completed_uploads_kept_s)
        self.leases = Leases(self.fences, parts.leases)
        self.jobs = Jobs(self.leases, store, clock, parts.queues, max_waiting=parts.leases.max_waiting)
        self.completions = Completions(self.fences, self.leases, self.jobs, upstream, parts.rules)
        self.webhooks = Webhooks(parts.webhooks, store, clock)
        access_keys = [client.credentials.access_key for client in parts.clients]
        self.issuer = Issuer(parts.sessions, access_keys, clock, parts.session_lifetime_s, self._endpoint_url)
        self._first_look = FirstLook(upstream, store, self.records, self.telemetry, unsigned=parts.upstream_unsigned)
        self.readiness = Readiness(partial(tls_fault, upstream, parts.upstream_tls_fault))
        self._progress = Progress(clock, parts.limits.idle_timeout_s, parts.limits.min_body_bytes_per_s)
        self.handler = self._s3_handler()
        self._control = self._control_api()
        self._connections: Listener | None = None
        self._s3_listener: asyncio.Server | None = None
        self._control_listener: ControlListener | None = None
        self._hurried = False
        self.s3_port = 0
        self.control_port = 0

    def _s3_handler(self) -> S3Handler:
        parts = self._parts
        services = Services(
            clients=Clients(
                parts.clients, parts.sessions, lasts=self.leases.lasts, anonymous_read=parts.anonymous_read
            ),
            rules=parts.rules,
            writes=self.writes,
            uploads=self.uploads,
            batches=Batches(self.writes),
            progress=self._progress,
            telemetry=self.telemetry,
            clock=parts.clock,
            host_id="fencing-gateway",
        )
        return S3Handler(
            services,
            max_concurrent_requests=parts.limits.max_concurrent_requests,
            max_concurrent_requests_per_client=parts.limits.max_concurrent_requests_per_client,
            virtual_host_suffixes=parts.virtual_host_suffixes,
        )

    def _control_api(self) -> Control:
        """Its calls, and what it tells Prometheus of them."""
        parts, registry = self._parts, self.telemetry.registry
        registry.register(LeaseMetrics(self.leases))
        registry.register(JobMetrics(self.jobs, self.completions))
        registry.register(WebhookMetrics(self.webhooks))
        if parts.tls is not None:
            registry.register(TlsMetrics(parts.tls))
        leases = LeaseCalls(
            self.leases,
            max_ttl_s=parts.max_lease_ttl_s,
            max_wait_s=parts.max_lease_wait_s,
            credentials=partial(credentials_of, self.issuer),
            output=self._output,
        )
        jobs = JobCalls(
            self.jobs,
            self.completions,
            max_ttl_s=parts.max_lease_ttl_s,
            max_wait_s=parts.max_lease_wait_s,
            credentials=partial(credentials_of, self.issuer),
            output=self._output,
        )
        buckets = BucketCalls(parts.store, self.records, self.rebuilds, parts.clock, parts.data_directory)
        return Control(
            self.fences,
            self.telemetry,
            self.readiness,
            parts.api_tokens,
            parts.rules,
            self.uploads.bindings.open_of,
            [
                *buckets.calls(),
                *leases.calls(),
                *jobs.calls(),
                *CredentialCalls(self.issuer, self.leases).calls(),
                *WebhookCalls(self.webhooks).calls(),
            ],
            self.leases.lease_of,
        )

    def _output(self, key: FencingKey) -> str | None:
        """The object key that the rules give the output of the job."""
        found = output_of(self._parts.rules, key)
        return None if found is None else found.key

    async def start(self) -> None:
        """Take up the open uploads, and listen. Raises `StoreUnavailable`, `OSError`; then all is closed again."""
        parts = self._parts
        try:
            bound = under_present_rules(await self.uploads.bindings.start(), parts.rules)
            if not parts.store_start.clean and not parts.upstream_settled:
                known = parts.store_start.bindings_known
                self.fences.earlier_run.started_unclean(bound if known else None)
                settle_s = parts.timing.settle_s(assembles=not known)
                self.telemetry.event("unclean-start", reason=parts.store_start.reason, settle_s=settle_s)
            self._progress.start()
            await self.leases.start()
            await self.jobs.start()
            await self.webhooks.start()
            await self._listen()
        except BaseException:
            await self._close(clean=parts.store_start.clean)  # nothing has been sent
            raise
        self.readiness.reason = None
        if parts.tls is not None:
            parts.tls.tell(self.telemetry)
        parts.sessions.tell(self.telemetry)
        self.telemetry.event("started", s3_port=self.s3_port, control_port=self.control_port)

    def reload(self) -> None:
        """Read certificates, keys and authorities again, for new connections; those that are open stay. So are the keys
        of session tokens."""
        if self._parts.tls is not None:
            self._parts.tls.reload(self.telemetry)
        self._parts.sessions.reload(self.telemetry)

    def look_at_upstream(self) -> None:
        """Log soon what the first client would find out: whether the store is there and takes our credentials, and
        which buckets another database rules."""
        self._first_look.begin()

    async def refused_buckets(self) -> dict[str, str]:
        """The buckets in which nothing fenced is served, and why, once the first look is over. Raises
        `StoreUnavailable`."""
        await self._first_look.over()
        return await self.records.refusals()

    def _endpoint_url(self) -> str | None:
        """Where workers reach the S3 listener; None where it listens on every address and nobody says which."""
        parts = self._parts
        host, _ = parts.s3_address
        if parts.s3_endpoint_url is not None or host in ("0.0.0.0", "::"):  # noqa: S104 - compared
            return parts.s3_endpoint_url
        scheme = "https" if parts.tls and parts.tls.listener("s3") else "http"
        return f"{scheme}://[{host}]:{self.s3_port}" if ":" in host else f"{scheme}://{host}:{self.s3_port}"

    async def _listen(self) -> None:
        parts = self._parts
        self._connections = Listener(self.handler.handle, self.handler.answer_fault, parts.limits)
        self._connections.start()
        open_connections = self._connections.connections
        self.telemetry.connections.set_function(lambda: len(open_connections))
        loop = asyncio.get_running_loop()
        host, port = parts.s3_address
        tls = parts.tls.listener("s3") if parts.tls else None
        self._s3_listener = await loop.create_server(
            self._connections,
            host,
            port,
            backlog=1024,
            ssl=tls,
            ssl_handshake_timeout=parts.limits.header_timeout_s if tls else None,
        )
        self.s3_port = self._s3_listener.sockets[0].getsockname()[1]
        self._control_listener = ControlListener(self._control.application())
        tls = parts.tls.listener("control") if parts.tls else None
        self.control_port = await self._control_listener.start(*parts.control_address, tls)

    async def stop(self) -> None:
        """Drain and stop: readiness goes off, then running requests have `drain_timeout_s`; the store is left clean
        only if nothing is unsettled. Raises `StoreUnavailable` where it could not be written; all is stopped then."""
        parts = self._parts
        self.readiness.reason = "draining"
        self.telemetry.event("draining", running=self.handler.running)
        self.jobs.drain()
        self.leases.drain()
        if self._s3_listener is not None:
            self._s3_listener.close()
        self.handler.draining = True
        deadline = parts.clock.monotonic() + parts.drain_timeout_s
        # A counter on the hot path is cheaper than an event.
        while self.handler.running and not self._hurried and parts.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_LOOK_S)
        await self._close(clean=True)

    def stop_waiting(self) -> None:
        """End the drain at once; what is running is cut."""
        self._hurried = True

    async def _close(self, *, clean: bool) -> None:
        parts = self._parts
        await self._first_look.stop()
        if self._s3_listener is not None:
            self._s3_listener.close()
        if self._connections is not None:
            await self._connections.shutdown(1.0)
        if self._control_listener is not None:
            await self._control_listener.close()
        await self._progress.stop()
        await self.rebuilds.close()
        await self.uploads.bindings.stop()
        await self.writes.close()
        await self.completions.stop()
        await self.jobs.stop()
        await self.leases.stop()
        await self.webhooks.stop()
        await parts.capabilities.close()
        unsettled = self.fences.unsettled()
        clean = clean and not unsettled and not self.fences.earlier_run.unsettled
        await parts.upstream.close()
        fault: StoreUnavailable | None = None
        try:
            await parts.store.stop(clean=clean)
        except StoreUnavailable as error:
            fault = error
        if parts.stop_behind is not None:
            await parts.stop_behind()
        if fault is not None:
            self.telemetry.warning("stopped", clean=False, unsettled=len(unsettled), reason=str(fault))
            raise fault
        self.telemetry.event("stopped", clean=clean, unsettled=len(unsettled))
