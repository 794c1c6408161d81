"""The store behind a gateway, as the settings name it: its client, and what is started to reach it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.config.settings import Settings
from gateway.s3.sigv4 import Credentials
from gateway.server.tls import Tls
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import AwsCredentials, CredentialsProvider, StaticCredentials
from gateway.upstream.embedded import EmbeddedStore, running_store

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Behind:
    """A store that can be asked."""

    client: UpstreamClient
    stop: Callable[[], Awaitable[None]] | None
    """Stops what was started for it: the embedded store, or the renewal of credentials."""
    settled: bool
    """Whether nothing that an earlier run sent can still land there."""


async def store_behind(settings: Settings, tls: Tls) -> Behind:
    """The store that a gateway stands before, started if it is the embedded one. Raises `EmbeddedStoreError`,
    `AwsFault`, `OSError`."""
    upstream = settings.upstream
    if upstream.url == "embedded":
        store = EmbeddedStore(upstream.directory)
        await store.start()
        return Behind(_embedded(settings, tls, store.url, store.credentials), store.stop, settled=True)
    given = _given(settings)
    if upstream.url != "aws":
        region = upstream.region or DEFAULT_REGION
        client = _client(settings, tls, upstream.url, region, StaticCredentials(given), "path")
        return Behind(client, None, settled=False)
    chain = AwsCredentials()
    target = await chain.target(upstream.region or None)
    if given is None:
        await chain.start()
    provider: CredentialsProvider = chain if given is None else StaticCredentials(given)
    client = _client(settings, tls, target.endpoint, target.region, provider, "virtual")
    return Behind(client, chain.close, settled=False)


async def store_beside(settings: Settings, tls: Tls) -> Behind:
    """The same for a command that may run beside a gateway: an embedded store that runs already is used as it is."""
    if settings.upstream.url == "embedded" and (running := running_store(settings.upstream.directory)) is not None:
        return Behind(_embedded(settings, tls, *running), None, settled=False)
    return await store_behind(settings, tls)


def _given(settings: Settings) -> Credentials | None:
    """The credentials that the settings name."""
    upstream = settings.upstream
    if upstream.access_key is None or upstream.secret_key is None:
        return None
    token = upstream.session_token
    return Credentials(
        upstream.access_key, upstream.secret_key.get_secret_value(), token.get_secret_value() if token else None
    )


def _embedded(settings: Settings, tls: Tls, url: str, credentials: Credentials) -> UpstreamClient:
    return _client(settings, tls, url, DEFAULT_REGION, StaticCredentials(credentials), "path")


def _client(
    settings: Settings, tls: Tls, endpoint: str, region: str, credentials: CredentialsProvider, usual_addressing: str
) -> UpstreamClient:
    upstream = settings.upstream
    addressing = usual_addressing if upstream.addressing == "auto" else upstream.addressing
    return UpstreamClient(
        endpoint,
        region=region,
        credentials=credentials,
        addressing="virtual" if addressing == "virtual" else "path",
        settle_timeout_s=settings.fencing.settle_timeout_s,
        connect_timeout_s=upstream.connect_timeout_s,
        silence_timeout_s=upstream.silence_timeout_s,
        max_connections=upstream.max_connections,
        idle_s=upstream.idle_connection_timeout_s,
        tls=tls.upstream,
    )
