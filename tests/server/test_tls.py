"""The listeners over TLS: who can connect, that certificates change under way, and that S3 is the same inside."""

from __future__ import annotations

import asyncio
import ssl
import time
import urllib.request
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.s3.sigv4 import presign
from gateway.server.listener import Limits
from gateway.server.tls import Tls
from gateway.tls import client_context, pinned_context
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from tests.authority import Authority, Pair
from tests.cases.documents import completion, texts
from tests.conftest import REGION
from tests.server.rig import BOUND_S, BUCKET, CREDENTIALS, HOST, Rig, running, signed

MIB = 1 << 20


@pytest.fixture
def pair(authority: Authority) -> Pair:
    """Files that a test may replace."""
    return authority.issue(HOST, f"*.{HOST}", "127.0.0.1")


def settings(pair: Pair, **upstream: Any) -> Settings:
    """Both listeners with that certificate."""
    files = {"tls_cert": pair.cert, "tls_key": pair.key}
    return Settings.model_validate({"s3": files, "control": files, "upstream": upstream})


@asynccontextmanager
async def serving(authority: Authority, pair: Pair, **parts: Any) -> AsyncIterator[Rig]:
    async with running(tls=Tls(settings(pair), time.time), trust=authority.trusted, **parts) as rig:
        yield rig


@pytest.fixture
async def rig(authority: Authority, pair: Pair) -> AsyncIterator[Rig]:
    async with serving(authority, pair) as rig:
        yield rig


def upload(token: int, size: int) -> bytes:
    """The head of a PUT whose body follows in pieces."""
    said = [("x-fencing-token", str(token)), ("content-length", str(size))]
    return signed("PUT", f"/{BUCKET}/k", said, payload="UNSIGNED-PAYLOAD")


def replace(old: Pair, new: Pair) -> None:
    """Put one pair's files in the place of another's."""
    old.cert.write_bytes(new.cert.read_bytes())
    old.key.write_bytes(new.key.read_bytes())


async def shown(rig: Rig, trust: ssl.SSLContext, name: str | None = HOST) -> dict[str, Any]:
    """The certificate that a new connection is shown. Raises `ssl.SSLError`."""
    trust.check_hostname = name is not None
    _, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.s3_port, ssl=trust, server_hostname=name or "")
    found: dict[str, Any] = writer.get_extra_info("peercert")
    writer.transport.abort()
    return found


# --- the connection


async def test_tls_1_2_and_1_3_and_no_other(rig: Rig, authority: Authority) -> None:
    """Both versions serve, HTTP/1.1 is agreed upon where the client asks; TLS 1.1 is refused."""
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        rig.trust = authority.trusted
        rig.trust.minimum_version = rig.trust.maximum_version = version
        rig.trust.set_alpn_protocols(["h2", "http/1.1"])
        wire = await rig.wire()
        tls: ssl.SSLObject = wire._writer.get_extra_info("ssl_object")
        assert (tls.version(), tls.selected_alpn_protocol()) == (name, "http/1.1")
        assert (await rig.put(name, b"body", 34)).status == 200
        assert rig.stored(name).data == b"body"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.load_verify_locations(authority.file)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await shown(rig, old)


async def test_plain_http_gets_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A request without TLS is neither served nor answered, on neither port, and leaves no traceback."""
    for port in (rig.gateway.s3_port, rig.gateway.control_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(signed("GET", f"/{BUCKET}"))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND_S)
        writer.close()
    assert rig.told == []
    assert not caplog.records


async def test_a_handshake_that_does_not_come_is_cut_off(authority: Authority, pair: Pair) -> None:
    """A connection that begins no TLS is closed after `header_timeout_s`, as one that sends no head is."""
    async with serving(authority, pair, limits=Limits(header_timeout_s=0.1)) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.s3_port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), BOUND_S)
        writer.close()


async def test_the_chain_is_shown(tmp_path: Path) -> None:
    """A client that knows the root alone believes a certificate whose issuer comes after it in the file."""
    root = Authority(tmp_path)
    async with serving(root, Authority(tmp_path, below=root).issue(HOST)) as rig:
        assert (await rig.put("k", b"body")).status == 200


async def test_a_stranger_or_another_name_is_not_believed(rig: Rig, authority: Authority, tmp_path: Path) -> None:
    """Clients verify authority and name; one that names no host is shown the certificate too."""
    with pytest.raises(ssl.SSLCertVerificationError):
        await shown(rig, Authority(tmp_path).trusted)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await shown(rig, authority.trusted, "s3.example.com")
    assert await shown(rig, authority.trusted, None)


async def test_hosts_and_presigned_urls(rig: Rig) -> None:
    """Bucket names in the host, presigned URLs, and the port of https written out or not, as without TLS."""
    await rig.put("k", b"body")
    virtual = f"{BUCKET}.{HOST}"
    assert (await rig.ask("GET", "/k", host=virtual)).body == b"body"
    for host in (HOST, f"{HOST}:443"):
        assert (await rig.ask("GET", f"/{BUCKET}/k", host=host)).body == b"body"
    query = presign(
        "GET", HOST, f"/{BUCKET}/k", "", expires_s=60, credentials=CREDENTIALS, region=REGION, now=time.time()
    )
    for host in (HOST, f"{HOST}:443"):
        answer = await rig.say(f"GET /{BUCKET}/k?{query} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        assert answer.body == b"body"


async def test_a_complete_tells_the_address_of_https(rig: Rig) -> None:
    """Where the object is, as the client has named it: scheme, bucket in the host, the path's own escapes."""
    virtual, target = f"{BUCKET}.{HOST}", "/a%20b+%c3%bc"
    created = await rig.ask("POST", f"{target}?uploads", [("x-fencing-token", "34")], b"", host=virtual)
    (upload_id,) = texts(created.body, "UploadId")
    await rig.ask("PUT", f"{target}?partNumber=1&uploadId={upload_id}", [], b"x", host=virtual)
    for _ in range(2):  # the second is answered by the gateway alone
        done = await rig.ask("POST", f"{target}?uploadId={upload_id}", [], completion([(1, b"x")]), host=virtual)
    assert texts(done.body, "Location") == [f"https://{virtual}{target}"]


# --- requests and refusals


async def test_a_refusal_comes_before_the_body(rig: Rig) -> None:
    """A stale upload is refused from its head, with and without `Expect`; the client that goes on sending reads the
    refusal, not a reset."""
    await rig.put("k", b"new", 34)
    stale = upload(33, 64 * MIB)
    wire = await rig.wire()
    await wire.send(stale.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
    answer = await wire.answer("PUT")
    assert (answer.status, answer.xml["FencingReason"]) == (412, "StaleToken")
    wire = await rig.wire()
    await wire.send(stale)
    for _ in range(64):
        await wire.send(b"x" * MIB)
    assert (await wire.answer("PUT")).status == 412
    assert rig.stored("k").data == b"new"


@pytest.mark.parametrize("ending", ["close_notify", "reset"])
async def test_a_client_that_goes_away_in_mid_body_leaves_nothing(rig: Rig, ending: str) -> None:
    """An upload whose connection ends, by TLS's own farewell or by none, is not stored."""
    wire = await rig.wire()
    await wire.send(upload(34, 200_000))
    await wire.send(b"x" * 199_999)
    await rig.floor(f"object:{BUCKET}/k", 34)
    wire.close() if ending == "close_notify" else wire.abort()
    await rig.answered(1)
    assert rig.stored("k") is None


# --- certificates that change


async def test_new_connections_get_the_new_certificate(rig: Rig, pair: Pair, authority: Authority) -> None:
    """After a reload new connections are shown the new certificate; an upload that is under way ends as it began."""
    before = await shown(rig, authority.trusted)
    wire = await rig.wire()
    await wire.send(upload(34, 200_000))
    await wire.send(b"x" * 100_000)
    new = authority.issue(HOST, to_days=2)
    replace(pair, new)
    rig.gateway.reload()
    after = await shown(rig, authority.trusted)
    assert before["serialNumber"] != after["serialNumber"]
    await wire.send(b"x" * 100_000)
    assert (await wire.answer("PUT")).status == 200
    assert len(rig.stored("k").data) == 200_000
    loaded = [line for line in rig.log if line["event"] == "tls-loaded"]
    assert [line["section"] for line in loaded] == ["s3", "control", "s3", "control"]
    assert loaded[0]["names"] == [HOST, f"*.{HOST}", "127.0.0.1"]
    assert loaded[0]["until"] < loaded[2]["until"]


def lasts(rig: Rig, section: str) -> float | None:
    """Until when, as Prometheus is told, that section's certificate is valid."""
    name = "fencing_tls_certificate_expiry_timestamp_seconds"
    return rig.gateway.telemetry.registry.get_sample_value(name, {"section": section})


async def test_until_when_certificates_last_is_measured(rig: Rig, pair: Pair, authority: Authority) -> None:
    """The metric has the last moment of what is shown: after a reload the new one's, and the old one's as long as the
    new cannot be used. Plain HTTP has none."""
    async with running() as plain:
        assert lasts(plain, "s3") is None
    for section in ("s3", "control"):
        assert lasts(rig, section) == pytest.approx(time.time() + 86_400, abs=60)
    replace(pair, authority.issue(HOST, to_days=9))
    assert lasts(rig, "s3") == pytest.approx(time.time() + 86_400, abs=60)
    rig.gateway.reload()
    pair.cert.unlink()
    rig.gateway.reload()
    assert lasts(rig, "s3") == lasts(rig, "control") == pytest.approx(time.time() + 9 * 86_400, abs=60)


async def test_a_broken_certificate_changes_nothing(rig: Rig, pair: Pair, authority: Authority) -> None:
    """Whatever is wrong with the new files, the old certificate goes on, and a warning says what it is; once they are
    right they are taken."""
    before = await shown(rig, authority.trusted)
    good = Pair(pair.cert.with_suffix(".good"), pair.key.with_suffix(".good-key"))
    replace(good, authority.issue(HOST))
    expired, other = authority.issue(HOST, from_days=-2, to_days=-1), authority.issue(HOST)
    for cert, key, fault in (
        (expired.cert, expired.key, "expired on"),
        (other.cert, good.key, "is not the key of the certificate"),
        (pair.key, good.key, "holds a key and no certificate"),
        (None, good.key, "cannot be read: No such file or directory"),
    ):
        data = (cert.read_bytes() if cert else None), key.read_bytes()
        pair.cert.unlink(missing_ok=True) if data[0] is None else pair.cert.write_bytes(data[0])
        pair.key.write_bytes(data[1])
        rig.gateway.reload()
        refused = [line for line in rig.log if line["event"] == "tls-refused"][-1]
        assert (refused["level"], refused["section"]) == ("warning", "control")
        assert fault in refused["reason"]
        assert "the former stays in use" in refused["reason"]
        assert "PRIVATE KEY" not in refused["reason"]
        assert await shown(rig, authority.trusted) == before
    replace(pair, good)
    rig.gateway.reload()
    assert await shown(rig, authority.trusted) != before


async def test_one_certificate_may_be_believed_whatever_its_name(tmp_path: Path) -> None:
    """A context pinned to a listener's certificate believes this one alone: no other of the authority whose own
    certificate follows in the file."""
    between = Authority(tmp_path, below=Authority(tmp_path))
    pair = between.issue("elsewhere.example.com")
    async with serving(between, pair) as rig:
        assert await shown(rig, pinned_context(pair.cert), None)
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown(rig, pinned_context(between.issue("elsewhere.example.com").cert), None)


# --- the control listener, and the store behind


def ready(rig: Rig, trust: ssl.SSLContext) -> tuple[int, str]:
    url = f"https://127.0.0.1:{rig.gateway.control_port}/readyz"
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), _AnyStatus())
    with opener.open(url, timeout=BOUND_S) as answer:
        return answer.status, answer.read().decode()


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


async def test_readiness_tells_of_a_store_that_is_not_believed(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    """While the store's certificate is not believed requests are 503 with the reason, `/readyz` says the same, over TLS
    itself, and is 200 again by its own looking once it is right."""
    served = authority.issue("127.0.0.1", from_days=-2, to_days=-1).served
    current = [served]
    served.sni_callback = lambda connection, _name, _context: setattr(connection, "context", current[-1])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    store = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=served)
    port = store.sockets[0].getsockname()[1]
    client = UpstreamClient(
        f"https://127.0.0.1:{port}",
        region=REGION,
        credentials=StaticCredentials(None),
        tls=lambda: client_context(authority.file),
    )
    async with serving(authority, pair, upstream=client, upstream_tls_fault=lambda: client.tls_fault) as rig:
        assert (await asyncio.to_thread(ready, rig, authority.trusted))[0] == 200
        refused = await rig.put("k", b"x", 34)
        assert (refused.status, refused.xml["FencingReason"]) == (503, "UpstreamUnavailable")
        assert refused.xml["FencingOutcome"] == "NotApplied"
        assert "its certificate has expired" in refused.xml["Message"]
        status, body = await asyncio.to_thread(ready, rig, authority.trusted)
        assert status == 503
        assert f"upstream: no TLS connection to 127.0.0.1:{port}: its certificate has expired" in body
        current.append(authority.issue("127.0.0.1").served)
        assert (await asyncio.to_thread(ready, rig, authority.trusted))[0] == 200
    store.close()
