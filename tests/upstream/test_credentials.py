"""The credential chain: found where the AWS SDKs find it, and fresh before the old ones expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from gateway.s3.sigv4 import Credentials
from gateway.upstream.credentials import AwsCredentials, AwsFault, AwsTarget, StaticCredentials

BOUND_S = 5.0


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's own AWS configuration is found."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("ENDPOINT_URL", "ENDPOINT_URL_S3", "CONTAINER_CREDENTIALS_RELATIVE_URI", "WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class CredentialsServer:
    """A container's credentials endpoint, whose every answer is a new key that lives for `lifetime_s`."""

    def __init__(self, lifetime_s: float) -> None:
        self._lifetime_s = lifetime_s
        self.served = 0
        self.fails = False
        self.asked = asyncio.Event()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.set()
        if self.fails:
            return web.Response(status=400)
        self.served += 1
        expiration = datetime.now(UTC) + timedelta(seconds=self._lifetime_s)
        return web.json_response(
            {
                "AccessKeyId": f"AKID{self.served}",
                "SecretAccessKey": "secret",
                "Token": f"token{self.served}",
                "Expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )


@asynccontextmanager
async def started(
    monkeypatch: pytest.MonkeyPatch, server: CredentialsServer, refresh_interval_s: float = 60.0
) -> AsyncIterator[AwsCredentials]:
    """A provider whose chain ends at `server`."""
    runner = web.ServerRunner(web.Server(server.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{host}:{port}/")
    provider = AwsCredentials(refresh_interval_s)
    try:
        await provider.start()
        yield provider
    finally:
        await provider.close()
        await runner.cleanup()


async def test_static_credentials() -> None:
    """Fixed credentials, or none, are given as they are."""
    credentials = Credentials("a", "b")
    assert await StaticCredentials(credentials).credentials() is credentials
    assert await StaticCredentials(None).credentials() is None


async def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDKs' environment variables are found, the session token with them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    provider = AwsCredentials()
    await provider.start()
    assert await provider.credentials() == Credentials("AKID", "secret", "token")
    await provider.close()


async def test_nothing_found() -> None:
    """Where the chain finds nothing the start fails and says what to do, and nothing is signed."""
    provider = AwsCredentials()
    with pytest.raises(AwsFault, match="AWS_ACCESS_KEY_ID"):
        await provider.start()
    with pytest.raises(AwsFault):
        await provider.credentials()
    await provider.close()


async def test_expiring_credentials_are_renewed_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials about to expire are replaced without any request having to ask or wait."""
    server = CredentialsServer(lifetime_s=800)  # within botocore's advisory refresh, outside its mandatory one
    async with started(monkeypatch, server, refresh_interval_s=0.01) as provider:
        first = await provider.credentials()
        assert first is not None
        assert first.session_token == first.access_key.replace("AKID", "token")
        await changed_from(first, provider, server)


async def test_lasting_credentials_are_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials far from their expiry are fetched once."""
    server = CredentialsServer(lifetime_s=7200)
    async with started(monkeypatch, server) as provider:
        for _ in range(3):
            await provider.refresh()
        assert server.served == 1
        assert await provider.credentials() == Credentials("AKID1", "secret", "token1")


async def test_failing_renewal_keeps_the_old_ones_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that fails for a while costs nothing but a line in the log; afterwards renewal goes on."""
    server = CredentialsServer(lifetime_s=800)
    async with started(monkeypatch, server, refresh_interval_s=0.01) as provider:
        server.fails = True
        server.asked.clear()
        await asyncio.wait_for(server.asked.wait(), BOUND_S)
        kept = await provider.credentials()
        assert kept is not None
        server.fails = False
        await changed_from(kept, provider, server)


async def changed_from(old: Credentials, provider: AwsCredentials, server: CredentialsServer) -> None:
    """Wait until the provider gives other credentials."""
    async with asyncio.timeout(BOUND_S):
        while await provider.credentials() == old:
            server.asked.clear()
            await server.asked.wait()


@pytest.mark.parametrize(
    ("environment", "region", "target"),
    [
        ({}, "eu-central-1", AwsTarget("https://s3.eu-central-1.amazonaws.com", "eu-central-1")),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, None, AwsTarget("https://s3.eu-west-1.amazonaws.com", "eu-west-1")),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}, None, AwsTarget("http://127.0.0.1:1", "us-east-1")),
    ],
)
async def test_target(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], region: str | None, target: AwsTarget
) -> None:
    """Region and endpoint come from the argument, else from the AWS configuration."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert await AwsCredentials().target(region) == target


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"AWS_PROFILE": "nobody"}, "nobody"),
        ({"AWS_ACCESS_KEY_ID": "AKID"}, "missing: AWS_SECRET_ACCESS_KEY"),
        ({"AWS_CONFIG_FILE": __file__}, "Unable to parse config file"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/"}, "http://127.0.0.1:1/"),
    ],
)
async def test_a_broken_source_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    """Of a profile that there is not, of half a pair, of a file that cannot be read, of a role's server that is gone;
    nothing goes on in the background."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    provider = AwsCredentials()
    with pytest.raises(AwsFault, match=told):
        await provider.start()
    assert provider._timer is None


@pytest.mark.parametrize(
    "environment",
    [
        {"AWS_ENDPOINT_URL_S3": "http://user:hunter2@127.0.0.1:1"},
        {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1/path?password=hunter2"},
        {"AWS_DEFAULT_REGION": "no/region"},
    ],
)
async def test_a_target_that_cannot_be_used_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    """And a password in it is not."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(AwsFault, match="cannot be used") as raised:
        await AwsCredentials().target()
    assert "hunter2" not in f"{raised.value}{raised.value.__cause__}"
