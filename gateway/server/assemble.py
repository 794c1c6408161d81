"""From settings to a running gateway: which components, in which order."""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from gateway.clock import Clock, SystemClock
from gateway.config.load import Fault
from gateway.config.settings import QueueSettings, Settings
from gateway.config.values import is_loopback, split_listen
from gateway.core.job import RetryPolicy
from gateway.core.keys import Rule, Ruleset, TokenLimits, compile_rule
from gateway.core.lease import Caps
from gateway.credentials_file import (
    CREDENTIALS_FILE,
    SESSION_KEYS_FILE,
    CredentialsFileError,
    make_session_keys,
    read_session_keys,
    ready_made_credentials,
)
from gateway.s3.sigv4 import Credentials
from gateway.server.app import Gateway, Parts
from gateway.server.behind import store_behind
from gateway.server.clients import Client
from gateway.server.control.access import ApiToken
from gateway.server.listener import Limits
from gateway.server.poster import HttpPoster
from gateway.server.sessions import Sessions
from gateway.server.tls import Tls, tls_faults
from gateway.service.leases import LeaseTerms
from gateway.service.queues import QueueRule, QueueRules
from gateway.service.waits import Timing
from gateway.service.webhooks import Webhook
from gateway.stores.sqlite import SqliteStore
from gateway.upstream.base import Capabilities, CapabilitySource
from gateway.upstream.client import UpstreamClient
from gateway.upstream.probe import FixedCapabilities, Prober


async def start_gateway(settings: Settings, clock: Clock | None = None) -> Gateway:
    """Build, start and answer a gateway. Raises what a part raises (`CertificateError`, `StoreUnavailable`,
    `EmbeddedStoreError`, `AwsFault`, `CredentialsFileError`, `OSError`); then nothing is left running."""
    clock = clock or SystemClock()
    tls = Tls(settings, clock.wall)
    path = store_path(settings)
    async with AsyncExitStack() as undo:
        store = SqliteStore(path, clock=clock.wall)
        # The database first: its lock tells a second gateway before anything else is touched.
        start = await store.start(rules_digest(settings))
        undo.push_async_callback(store.stop, clean=start.clean)
        behind = await store_behind(settings, tls)
        if behind.stop is not None:
            undo.push_async_callback(behind.stop)
        parts = Parts(
            store=store,
            store_start=start,
            upstream=behind.client,
            capabilities=_capabilities(settings, behind.client, clock),
            rules=ruleset(settings),
            clients=clients(settings),
            api_tokens=_api_tokens(settings),
            sessions=sessions(settings),
            session_lifetime_s=settings.s3.session_lifetime_s,
            s3_endpoint_url=settings.s3.endpoint_url,
            webhooks=webhooks(settings, tls, clock),
            clock=clock,
            timing=_timing(settings),
            leases=_lease_terms(settings),
            max_lease_ttl_s=settings.lease.max_ttl_s,
            max_lease_wait_s=settings.lease.max_wait_s,
            queues=queue_rules(settings),
            limits=_limits(settings),
            stop_behind=behind.stop,
            tls=tls,
            upstream_tls_fault=lambda: behind.client.tls_fault,
            upstream_unsigned=settings.upstream.url not in ("embedded", "aws") and settings.upstream.access_key is None,
            upstream_settled=behind.settled,
            anonymous_read=settings.s3.anonymous_read,
            require_conditional=settings.upstream.conditional == "require",
            small_body_bytes=settings.fencing.small_body_bytes,
            fenced_before=settings.store.fenced_before,
            record_lapse_s=settings.store.record_lapse_s,
            data_directory=path.absolute().parent,
            completed_uploads_kept_s=settings.fencing.completed_uploads_kept_s,
            virtual_host_suffixes=settings.s3.virtual_host_suffix,
            s3_address=split_listen(settings.s3.listen),
            control_address=split_listen(settings.control.listen),
            drain_timeout_s=settings.server.drain_timeout_s,
        )
        undo.pop_all()  # from here on the gateway closes what it stands on
    gateway = Gateway(parts)
    await gateway.start()
    gateway.look_at_upstream()
    return gateway


def store_path(settings: Settings) -> Path:
    """The database's file."""
    return Path(settings.store.url.removeprefix("sqlite:"))


def clients(settings: Settings) -> tuple[Client, ...]:
    """The configured clients; on loopback, where none is configured, the ready-made one."""
    configured = tuple(
        Client(
            Credentials(client.access_key, client.secret_key.get_secret_value()),
            client.buckets,
            client.operations,
            client.keys,
            client.require_signed_token,
            client.max_concurrent_requests,
        )
        for client in settings.client
    )
    if configured or not is_loopback(settings.s3.listen):
        return configured
    return (Client(ready_made_credentials(store_path(settings).with_name(CREDENTIALS_FILE))),)


def sessions(settings: Settings) -> Sessions:
    """The keys of session tokens: the file's that the settings name, else those beside the database, made if there are
    none. Raises `CredentialsFileError`, `OSError`."""
    path = settings.s3.session_keys
    if path is None:
        path = store_path(settings).with_name(SESSION_KEYS_FILE)
        make_session_keys(path)
    return Sessions(partial(read_session_keys, path))


def file_faults(settings: Settings) -> list[Fault]:
    """What is wrong with the files that the settings name, and where it is set."""
    faults = tls_faults(settings)
    if settings.s3.session_keys is not None:
        try:
            read_session_keys(settings.s3.session_keys)
        except CredentialsFileError as error:
            faults.append((("s3", "session_keys"), str(error)))
    return faults


def webhooks(settings: Settings, tls: Tls, clock: Clock) -> tuple[tuple[Webhook, HttpPoster], ...]:
    """The configured webhooks, and the way to each."""
    return tuple(
        (
            Webhook(
                one.called,
                tuple(secret.get_secret_value() for secret in one.secret),
                one.events,
                one.keys,
                one.keep_s,
                one.max_waiting,
            ),
            HttpPoster(
                one.url,
                timeout_s=one.timeout_s,
                tls=partial(tls.webhook, one.called) if one.uses_tls else None,
                wall=clock.wall,
            ),
        )
        for one in settings.webhook
    )


def ruleset(settings: Settings) -> Ruleset:
    """The rules, compiled."""
    return Ruleset(
        [
            Rule(
                *compile_rule(rule.match, rule.key),
                rule.buckets,
                rule.mode,
                rule.without_token,
                rule.rekey,
                TokenLimits(rule.max_first_token, rule.max_token_jump),
                rule.output,
            )
            for rule in settings.rule
        ]
    )


def rules_digest(settings: Settings) -> str:
    """Stands for which objects are fenced under which keys; when it changes, earlier sends may have gone past."""
    aside = {"max_token_jump", "max_first_token", "output"}
    told = [rule.model_dump(mode="json", exclude=aside) for rule in settings.rule]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _capabilities(settings: Settings, upstream: UpstreamClient, clock: Clock) -> CapabilitySource:
    conditional = settings.upstream.conditional
    if conditional == "off":
        return FixedCapabilities(Capabilities())
    return Prober(upstream, clock, await_race=conditional == "require")


def _api_tokens(settings: Settings) -> tuple[ApiToken, ...]:
    return tuple(
        ApiToken(token.token.get_secret_value(), token.role == "operator", token.keys, token.client)
        for token in settings.api_token
    )


def _limits(settings: Settings) -> Limits:
    s3 = settings.s3
    return Limits(
        max_concurrent_requests=s3.max_concurrent_requests,
        max_concurrent_requests_per_client=s3.max_concurrent_requests_per_client,
        max_connections=s3.max_connections,
        max_header_bytes=s3.max_header_bytes,
        max_header_field_bytes=s3.max_header_field_bytes,
        header_timeout_s=s3.header_timeout_s,
        keepalive_timeout_s=s3.keepalive_timeout_s,
        idle_timeout_s=s3.idle_timeout_s,
        min_body_bytes_per_s=s3.min_body_bytes_per_s,
    )


def queue_rules(settings: Settings) -> QueueRules:
    """The configured queues; where none is configured, every queue with the defaults."""
    return QueueRules(
        tuple(
            QueueRule(
                queue.name,
                RetryPolicy(queue.max_attempts, queue.backoff_s, queue.backoff_max_s),
                min(queue.visibility_s, settings.lease.max_ttl_s),
            )
            for queue in settings.queue or (QueueSettings(name="*"),)
        )
    )


def _lease_terms(settings: Settings) -> LeaseTerms:
    lease = settings.lease
    caps = Caps(lease.max_renewals, math.inf if lease.max_total_s is None else lease.max_total_s)
    return LeaseTerms(caps, lease.lock_delay_s, lease.max_waiting)


def _timing(settings: Settings) -> Timing:
    fencing = settings.fencing
    return Timing(
        settle_timeout_s=fencing.settle_timeout_s,
        settle_timeout_assembly_s=fencing.settle_timeout_assembly_s,
        handover_wait_s=fencing.handover_wait_s,
        commit_timeout_s=fencing.commit_timeout_s,
        commit_timeout_assembly_s=fencing.commit_timeout_assembly_s,
    )
