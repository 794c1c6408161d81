"""Who may do what: signatures in headers and URLs, other hosts, clocks, and the limits of a client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.s3.sigv4 import Credentials, presign
from gateway.server.clients import Client
from tests.conftest import REGION
from tests.server.rig import CREDENTIALS, HOST, Pairs, Rig, raw, rule, running, signed

HOUR = 3600
EMPTY = (("content-length", "0"),)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        assert (await rig.put("k", b"there", 5)).status == 200
        rig.upstream.requests.clear()
        rig.upstream.writes.clear()
        yield rig


def presigned(
    method: str, target: str, headers: Pairs = (), *, age_s: float = 0, expires_s: int = HOUR, unsigned: Pairs = ()
) -> bytes:
    """The head of a request by a presigned URL that is `age_s` old."""
    path, _, query = target.partition("?")
    lower = [(n.lower(), v) for n, v in headers if n != "content-length"]
    query = presign(
        method,
        HOST,
        path,
        query,
        lower,
        expires_s=expires_s,
        credentials=CREDENTIALS,
        region=REGION,
        now=time.time() - age_s,
    )
    return raw(f"{method} {path}?{query} HTTP/1.1", [("host", HOST), *headers, *unsigned])


# --- presigned URLs


async def test_a_presigned_get_and_put_work(rig: Rig) -> None:
    """A URL is proof enough, and carries the token among its signed headers; its parameters stay here."""
    assert (await rig.say(presigned("GET", "/b/k"))).body == b"there"
    put = presigned("PUT", "/b/k", [("X-Fencing-Token", "6"), ("content-length", "3")])
    answer = await rig.say(put + b"new")
    assert (answer.status, answer.header("x-fencing-token")) == (200, "6")
    assert all("X-Amz-" not in request.raw_query for request in rig.upstream.requests)


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (lambda: presigned("GET", "/b/k", age_s=3, expires_s=1), 403, "AccessDenied"),
        (lambda: presigned("GET", "/b/k", expires_s=604801), 400, "AuthorizationQueryParametersError"),
        (lambda: presigned("GET", "/b/k", age_s=-HOUR), 403, "AccessDenied"),
        (lambda: presigned("PUT", "/b/k", EMPTY, unsigned=[("x-amz-copy-source", "/b/l")]), 403, "AccessDenied"),
        (lambda: presigned("PUT", "/b/k", EMPTY, unsigned=[("X-Fencing-Token", "6")]), 400, "InvalidArgument"),
        (lambda: presigned("GET", "/b/k").replace(b"/b/k", b"/b/l"), 403, "SignatureDoesNotMatch"),
        (lambda: presigned("GET", "/b/k").replace(b"Expires=3600", b"Expires=9999"), 403, "SignatureDoesNotMatch"),
        (lambda: presigned("GET", "/b/k").replace(b"-Date", b"-Day"), 400, "AuthorizationQueryParametersError"),
    ],
    ids=["expired", "too long", "not yet", "copy source", "unsigned token", "other object", "stretched", "no date"],
)  # fmt: skip
async def test_a_presigned_url_that_is_not_good(rig: Rig, head: Callable[[], bytes], status: int, code: str) -> None:
    """Expired, stretched, moved to another object, or with headers that nobody signed."""
    answer = await rig.say(head())
    assert (answer.status, answer.code) == (status, code)
    assert rig.upstream.requests == []


async def test_a_presigned_url_lives_for_a_week(rig: Rig) -> None:
    """The clock's tolerance of 15 minutes does not bound a presigned URL."""
    assert (await rig.say(presigned("GET", "/b/k", age_s=2 * HOUR, expires_s=604800))).body == b"there"


# --- signatures


@pytest.mark.parametrize("minutes", [16, -16])
async def test_a_clock_that_is_off(rig: Rig, minutes: int) -> None:
    """16 minutes are too much either way, the answer tells the server's time, and the log whose clock it is; 14 are
    borne."""
    answer = await rig.ask("GET", "/b/k", now=time.time() + 60 * minutes)
    assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")
    assert rig.record["client"] == CREDENTIALS.access_key
    assert answer.xml["ServerTime"].endswith("Z")
    assert (await rig.ask("GET", "/b/k", now=time.time() + 60 * minutes * 7 / 8)).status == 200


async def test_strangers(rig: Rig) -> None:
    """An unknown access key, a wrong secret, a session token that nobody issued, and no credentials at all."""
    wrong = {
        "InvalidAccessKeyId": Credentials("AKIDNOBODY", CREDENTIALS.secret_key),
        "SignatureDoesNotMatch": Credentials(CREDENTIALS.access_key, "another secret"),
        "InvalidToken": Credentials(CREDENTIALS.access_key, CREDENTIALS.secret_key, "a session"),
    }
    for code, credentials in wrong.items():
        answer = await rig.ask("PUT", "/b/k", [("X-Fencing-Token", "9")], b"x", credentials=credentials)
        assert (answer.status, answer.code) == (400 if code == "InvalidToken" else 403, code)
        assert rig.record["client"] == credentials.access_key
    for line in ("PUT /b/k", "DELETE /b/k", "GET /b/k", "GET /b?list-type=2", "GET /"):
        fields = [("host", HOST), ("content-length", "0"), ("x-fencing-token", "9")]
        nobody = await rig.say(raw(f"{line} HTTP/1.1", fields))
        assert (nobody.status, nobody.code) == (403, "AccessDenied"), line
    assert rig.upstream.requests == []
    assert (await rig.fence("object:b/k")).floor == 5


async def test_a_signature_holds_for_its_bytes_alone(rig: Rig) -> None:
    """A changed method, target, signed header or body is not what was signed."""
    head = signed("PUT", "/b/k", [("X-Fencing-Token", "9")], b"body")
    for old, new in ((b"PUT /b/k", b"PUT /b/l"), (b"PUT /b/k", b"PUT /b/k?acl"), (b"Token: 9", b"Token: 8")):
        assert (await rig.say(head.replace(old, new) + b"body")).code == "SignatureDoesNotMatch"
    assert (await rig.say(head + b"BODY")).code == "XAmzContentSHA256Mismatch"
    assert rig.upstream.writes == []


async def test_a_target_of_another_host_is_refused(rig: Rig) -> None:
    """An absolute target must not move a signed request to another bucket."""
    head = signed("GET", "/k").replace(b"GET /k", f"GET http://other.{HOST}/k".encode())
    assert (await rig.say(head)).status == 400


# --- hosts


async def test_virtual_host_style(rig: Rig) -> None:
    """A first label under the configured suffix is the bucket, also with a port; another host's is not."""
    for host in (f"b.{HOST}", f"B.{HOST}:8080"):
        answer = await rig.ask("GET", "/k", host=host)
        assert (answer.status, answer.body) == (200, b"there")
    assert (await rig.ask("PUT", "//k2", [("X-Fencing-Token", "1")], b"x", host=f"b.{HOST}")).status == 200
    assert rig.stored("/k2") is not None
    assert (await rig.ask("GET", "/k", host="b.s3.elsewhere.example")).status == 404
    assert rig.record["bucket"] == "k"


# --- limits


async def test_anonymous_reads() -> None:
    """`anonymous_read` opens reads alone; a signature that is there must still be right."""
    async with running(anonymous_read=True) as rig:
        await rig.put("k", b"public", 1)
        fields = [("host", HOST)]
        assert (await rig.say(raw("GET /b/k HTTP/1.1", fields))).body == b"public"
        for line in ("PUT /b/k", "DELETE /b/k", "POST /b?delete", "POST /b/k?uploads", "PUT /b?acl"):
            answer = await rig.say(raw(f"{line} HTTP/1.1", [*fields, ("content-length", "0")]))
            assert (answer.status, answer.code) == (403, "AccessDenied")
        bad = await rig.ask("GET", "/b/k", credentials=Credentials(CREDENTIALS.access_key, "wrong"))
        assert bad.status == 403


async def test_a_client_keeps_to_its_buckets() -> None:
    """Also the source of a copy, and of a part that is a copy, must be a bucket of the client."""
    narrow = Client(CREDENTIALS, buckets=("b", "renders-*"))
    async with running(clients=[narrow]) as rig:
        assert (await rig.put("k", b"x", 1)).status == 200
        rig.upstream.requests.clear()
        token = ("X-Fencing-Token", "1")
        for source in ("/other/k", "other/k", "other%2Fk", "%6fther/k", "/other/k?versionId=1"):
            for query in ("", "?partNumber=1&uploadId=u"):
                answer = await rig.ask("PUT", f"/b/k2{query}", [token, ("x-amz-copy-source", source)], b"")
                assert (answer.status, answer.code) == (403, "AccessDenied"), source
        for method, target in (("GET", "/other/k"), ("PUT", "/other/k"), ("GET", "/other"), ("GET", "/%6fther/k")):
            assert (await rig.ask(method, target, [], b"")).code == "AccessDenied"
        assert rig.upstream.requests == []
        assert (await rig.ask("PUT", "/b/k2", [token, ("x-amz-copy-source", "/b/k")], b"")).status == 200


async def test_a_client_keeps_to_its_operations() -> None:
    """Operations are allowed by name or pattern."""
    async with running(clients=[Client(CREDENTIALS, operations=("Get*", "HeadObject"))]) as rig:
        assert (await rig.ask("GET", "/b/k")).code == "NoSuchKey"
        assert (await rig.ask("HEAD", "/b/k")).status == 404
        for method, target in (
            ("PUT", "/b/k"),
            ("DELETE", "/b/k"),
            ("GET", "/b"),
            ("HEAD", "/b"),
            ("POST", "/b?delete"),
        ):
            answer = await rig.ask(method, target, [], b"")
            assert answer.status == 403
        assert [r for r in rig.upstream.requests if r.method not in ("GET", "HEAD")] == []


async def test_a_client_keeps_to_its_keys() -> None:
    """The key counts, whoever names it: rule, header, or the object itself; in a batch object by object."""
    rules = [rule("renders/{job}/**", "{job}")]
    async with running(rules=rules, clients=[Client(CREDENTIALS, keys=("7", "mine-*"))]) as rig:
        token = ("X-Fencing-Token", "1")
        assert (await rig.put("renders/7/a", b"x", 1)).status == 200
        assert (await rig.ask("PUT", "/b/k", [token, ("X-Fencing-Key", "mine-1")], b"x")).status == 200
        for target, extra in (
            ("/b/renders/8/a", []),
            ("/b/free", []),
            ("/b/free", [("X-Fencing-Key", "8")]),
        ):
            answer = await rig.ask("PUT", target, [token, *extra], b"x")
            assert (answer.status, answer.code) == (403, "AccessDenied")
            assert answer.header("x-fencing-reason") == "KeyDenied"
        document = b"<Delete><Object><Key>renders/7/a</Key></Object><Object><Key>renders/8/a</Key></Object></Delete>"
        batch = await rig.ask("POST", "/b?delete", [], document)
        assert batch.status == 200
        assert b"<Key>renders/8/a</Key><Code>AccessDenied</Code>" in batch.body
        assert [fence.key for fence in await rig.store.fences(None, 9)] == ["7", "mine-1"]
