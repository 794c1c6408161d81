"""Before a real store that speaks TLS and wants a certificate: what is cut, and the gateway's own configuration."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from gateway.tls import client_context
from gateway.upstream import tied_exec
from gateway.upstream.base import EMPTY_SHA256, UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from gateway.upstream.embedded import find_weed
from tests.authority import Authority, Pair
from tests.conftest import REGION, StoreServer
from tests.gateway_process import GatewayProcess, Target, before
from tests.upstream.peer import BOUND_S

ON_BOTH_LOOPS = True


@pytest.fixture(scope="module")
def tls_store(
    store_server: StoreServer, authority: Authority, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A second S3 front of the session's SeaweedFS, which speaks TLS and wants a certificate."""
    directory = tmp_path_factory.mktemp("front")
    filer = json.loads((store_server.directory / "ports.json").read_bytes())["filer"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [
        *("-logtostderr=true", "s3", f"-filer=127.0.0.1:{filer}", "-ip.bind=127.0.0.1", f"-port={port}"),
        *(f"-port.grpc={port + 10000 if port < 50000 else port - 10000}", "-port.iceberg=0", "-port.lance=0"),
        *(f"-config={store_server.directory / 's3.json'}", f"-localSocket={directory / 's3.sock'}"),
        *(f"-cert.file={pair.cert}", f"-key.file={pair.key}", f"-cacert.file={authority.file}"),
        *("-tlsVerifyClientCert=true", "-iam=false"),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()), str(find_weed()), *arguments],
            cwd=directory,
            env={"PATH": os.defpath, "HOME": str(directory)},
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, (directory / "log").read_text()
            threading.Event().wait(0.05)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("size", [1 << 20, 16 << 20])
async def test_a_real_store_keeps_nothing_of_a_cut_upload(
    tls_store: str, store_server: StoreServer, authority: Authority, bucket: str, size: int
) -> None:
    """SeaweedFS over TLS with a client's certificate: a PUT goes through byte by byte; one that is cut before its tail
    leaves nothing behind, and an object that was there as it was."""
    tls = client_context(authority.file, *authority.issue("gateway"))
    client = UpstreamClient(
        tls_store, region=REGION, credentials=StaticCredentials(store_server.credentials), tls=lambda: tls
    )
    body = os.urandom(size)
    await (await client.send(UpstreamRequest("PUT", bucket, "there", "", ()), b"before", BOUND_S)).read(100)
    for key in ("new", "there"):
        exchange = await client.open(UpstreamRequest("PUT", bucket, key, "", ()), size)
        await exchange.write(body[:-1])
        exchange.abort()
    exchange = await client.open(UpstreamRequest("PUT", bucket, "whole", "", ()), size)
    await exchange.write(body[:-1])
    exchange.commit()
    await exchange.write(body[-1:])
    assert (await exchange.response(BOUND_S)).status == 200
    for key, expected in (("new", None), ("there", b"before"), ("whole", body)):
        response = await client.read(UpstreamRequest("GET", bucket, key, "", (), EMPTY_SHA256))
        got = await response.read(size + 1)
        assert response.status == (404 if expected is None else 200)
        assert expected is None or sha256(got).digest() == sha256(expected).digest()
    await client.close()


def test_a_gateway_before_a_store_with_tls(
    tls_store: str, store_server: StoreServer, authority: Authority, bucket: str, tmp_path: Path
) -> None:
    """By its configuration a gateway shows the store its certificate and believes the store's: fenced writes of both
    kinds, and a stale one, go as ever. After a SIGHUP with a stranger's authority `status` says that the store is not
    believed any more."""
    shown, trusted = authority.issue("gateway"), tmp_path / "ca.pem"
    trusted.write_bytes(authority.file.read_bytes())
    configuration = f'[upstream]\ntls_ca = "{trusted}"\ntls_cert = "{shown.cert}"\ntls_key = "{shown.key}"\n'
    settings = before(Target(tls_store, store_server.credentials))
    # Each connection serves one request: after the reload the next one has to be opened.
    with GatewayProcess(
        tmp_path, "upstream.idle_connection_timeout_s=0.001", configuration=configuration, **settings
    ) as g:
        for size in (10, 1 << 20):
            body = os.urandom(size)
            g.s3.put_object(Bucket=bucket, Key="k", Body=body, Metadata={"fencing-token": "34"})
            assert g.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body
        with pytest.raises(ClientError, match="Token 33 is stale"):
            g.s3.put_object(Bucket=bucket, Key="k", Body=b"stale", Metadata={"fencing-token": "33"})
        assert g.ask("status").exit_code == 0
        trusted.write_bytes(Authority(tmp_path).file.read_bytes())
        g.process.send_signal(signal.SIGHUP)
        while g.log().count('"event":"tls-loaded"') < 2:
            assert g.process.poll() is None
            time.sleep(0.01)
        with pytest.raises(ClientError, match="no authority that is known here"):
            g.s3.put_object(Bucket=bucket, Key="k", Body=b"new", Metadata={"fencing-token": "34"})
        told = g.ask("status")
        assert told.exit_code == 3
        assert "upstream: no TLS connection to 127.0.0.1" in told.stderr
