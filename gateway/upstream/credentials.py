"""With which credentials the gateway signs what it sends: fixed ones, or those of the AWS credential chain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from gateway.s3.sigv4 import Credentials
from gateway.upstream.endpoint import Endpoint

_log = structlog.get_logger(__name__)


class CredentialsProvider(Protocol):
    """Tells the credentials to sign with, without waiting for anything."""

    async def credentials(self) -> Credentials | None:
        """The credentials of now; None to send unsigned."""
        ...


class StaticCredentials:
    """The same credentials for ever; None sends unsigned."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials

    async def credentials(self) -> Credentials | None:
        return self._credentials


class AwsFault(Exception):
    """AWS's own configuration gives no credentials, or no endpoint; the message says why, for a person."""


@dataclass(frozen=True, slots=True)
class AwsTarget:
    """What the AWS configuration says about where to send."""

    endpoint: str
    region: str


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say what an error concerns. Its kind depends on the source that the chain has come to."""
    try:
        yield
    except Exception as error:
        raise AwsFault(f"{what}: {error or type(error).__name__}") from error


class AwsCredentials:
    """The AWS SDKs' credential chain: environment, profile, web identity, container, instance.

    `start` loads them and keeps them fresh in the background: every `refresh_interval_s` the chain is asked again,
    which fetches new ones from a quarter of an hour before the old ones expire (botocore's advisory refresh).
    Requests never wait for that. While fetching fails the old ones stay in use, and it is logged."""

    def __init__(self, refresh_interval_s: float = 60.0) -> None:
        # Here and not above: it takes a second, which only those with AWS need to spend.
        from aiobotocore.session import get_session  # noqa: PLC0415

        self._session = get_session()
        self._refresh_interval_s = refresh_interval_s
        self._source: Any = None
        self._current: Credentials | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the credentials. Raises `AwsFault`."""
        with _told("the AWS credentials cannot be loaded"):
            self._source = await self._session.get_credentials()
            if self._source is not None:
                await self.refresh()
        if self._source is None:
            raise AwsFault(
                "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
            )
        self._schedule()

    async def close(self) -> None:
        """End the refreshing in the background."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait((self._renewal,))
        if self._timer is not None:
            self._timer.cancel()

    async def credentials(self) -> Credentials | None:
        if self._current is None:
            raise AwsFault("the AWS credentials have not been loaded")
        return self._current

    async def refresh(self) -> None:
        """Take over what the chain gives now, fetched anew where it is about to expire."""
        frozen = await self._source.get_frozen_credentials()
        self._current = Credentials(frozen.access_key, frozen.secret_key, frozen.token or None)

    async def target(self, region: str | None = None) -> AwsTarget:
        """The S3 endpoint and the region, from `region` or the AWS configuration (us-east-1 if it names none). Raises
        `AwsFault`."""
        with _told("the AWS configuration cannot be used"):
            region = region or self._session.get_config_variable("region") or "us-east-1"
            async with self._session.create_client("s3", region_name=region) as client:
                target = AwsTarget(endpoint=client.meta.endpoint_url, region=client.meta.region_name)
        with _told("AWS_ENDPOINT_URL_S3, or an endpoint_url of the AWS configuration, cannot be used"):
            Endpoint.parse(target.endpoint)
        return target

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._refresh_interval_s, self._begin_renewal)

    def _begin_renewal(self) -> None:
        self._renewal = asyncio.get_running_loop().create_task(self._renew(), name="aws-credentials")

    async def _renew(self) -> None:
        try:
            await self.refresh()
        except Exception as error:  # whatever the chain's sources raise must not end the refreshing
            _log.warning("aws_credentials_refresh_failed", error=type(error).__name__)
        finally:
            self._schedule()
