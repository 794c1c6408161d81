"""What must never stand in the log: secrets, signatures, session tokens, customers' keys."""

from __future__ import annotations

import logging
import re
import time

import pytest

from gateway.s3.sigv4 import Credentials, presign
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.conftest import REGION
from tests.server.rig import BUCKET, CREDENTIALS, HOST, raw, running, signed

SESSION_TOKEN = "session-token-" + "S" * 40
CUSTOMER_KEY = "Y3VzdG9tZXIta2V5LW9mLTMyLWJ5dGVzLWxvbmchISE="
SOURCE_KEY = "c291cmNlLWtleS1vZi0zMi1ieXRlcy1sb25nISEhISE="
CUSTOMER = [
    ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
    ("x-amz-server-side-encryption-customer-key", CUSTOMER_KEY),
    ("x-amz-copy-source-server-side-encryption-customer-key", SOURCE_KEY),
]


class Fragile(MemoryUpstream):
    """Breaks on one object."""

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        if request.raw_key == "broken":
            raise RuntimeError("no words of the request")
        return await super().read(request, body)


async def test_the_log_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Requests that pass, fail, break, and are no requests, at level debug: no line repeats what must stay secret."""
    caplog.set_level(logging.DEBUG)
    token = ("X-Fencing-Token", "5")
    sent: list[bytes] = []
    async with running(upstream=Fragile(BUCKET)) as rig:
        session = Credentials(CREDENTIALS.access_key, CREDENTIALS.secret_key, SESSION_TOKEN)
        stranger = Credentials("AKIDNOBODY", "secret-of-nobody", SESSION_TOKEN)
        query = presign("GET", HOST, "/b/k", "", expires_s=60, credentials=session, region=REGION, now=time.time())
        heads = [
            signed("PUT", "/b/k", [token, *CUSTOMER], b""),
            signed("PUT", "/b/k", [("X-Fencing-Token", "4"), *CUSTOMER], b""),
            signed("PUT", "/b/k", [("X-Fencing-Token", "bad"), *CUSTOMER], b""),
            signed("GET", "/b/k", CUSTOMER),
            signed("GET", "/b/broken", CUSTOMER),
            signed("PUT", "/b/c", [token, ("x-amz-copy-source", "/b/k"), *CUSTOMER], b""),
            signed("GET", "/b/k", CUSTOMER, credentials=session),
            signed("GET", "/b/k", CUSTOMER, credentials=stranger),
            signed("GET", "/b/k", CUSTOMER)[:-20] + b"0\r\n\r\n",
            signed("GET", "/b/k", CUSTOMER, now=time.time() - 9999),
            signed("PUT", "/b/k", [token, ("x-amz-copy-source", CUSTOMER_KEY)], b""),
            raw(f"GET /b/k?{query} HTTP/1.1", [("host", HOST)]),
            raw(f"PUT /b/k?{query} HTTP/1.1", [("host", HOST), ("content-length", "0")]),
            raw(f"GET /b/k?{query}&acl&tagging HTTP/1.1", [("host", HOST)]),
            signed("GET", "/b/k", CUSTOMER).replace(b"x-amz-server", b"x amz-server"),
            raw("GET /b/k HTTP/1.1", [("host", HOST), ("x-amz-security-token", SESSION_TOKEN * 500)]),
            raw("GET /b/k HTTP/1.1", [("host", HOST), ("authorization", f"Bearer {SESSION_TOKEN}")]),
            raw("GET /b/k HTTP/1.1", [("host", HOST), ("x-amz-security-token", SESSION_TOKEN + "\0")]),
            raw(f"GET /b/k?{query}\udcff HTTP/1.1", [("host", HOST)]),
        ]
        for head in heads:
            await rig.say(head)
            sent.append(head)
        lines = rig.logged
        assert sum(line["event"] == "request" for line in rig.log) == len(heads)
        assert any(line["event"] == "internal-error" for line in rig.log)
    text = lines + "".join(record.getMessage() + str(record.exc_text) for record in caplog.records)
    signatures = {found.decode() for head in sent for found in re.findall(rb"ignature=([0-9a-f]{64})", head)}
    assert len(signatures) > 10
    secrets = {CREDENTIALS.secret_key, "secret-of-nobody", CUSTOMER_KEY, SOURCE_KEY, SESSION_TOKEN, "S" * 20}
    assert [secret for secret in secrets | signatures if secret in text] == []
