"""Credentials that are bound to a lease: who signs with them writes under its key and token, whatever tool he uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import pytest

from gateway.core.keys import FencingKey, Mode, Token
from gateway.s3.session import Session
from gateway.s3.sigv4 import ChunkSigner, Credentials, presign, signing_key
from gateway.server.clients import Client
from gateway.server.sessions import Sessions
from gateway.stores.base import StoreUnavailable
from tests.conftest import REGION
from tests.server.rig import BUCKET, CREDENTIALS, HOST, Answer, Pairs, Rig, raw, rule, running, signed
from tests.server.test_s3_stale import OLD, WAYS, Way

RULES = (
    rule("renders/{job}/**", "{job}"),
    rule("loose/**", mode=Mode.OFF),
    rule("watched/{job}/**", "{job}", Mode.OBSERVE),
    rule("moving/**", rekey=True),
)
SESSIONS = Sessions()
OTHER = Client(Credentials("OTHER", "other-secret"))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(rules=RULES, sessions=SESSIONS) as rig:
        yield rig


def bound(
    key: str = "7",
    token: int = 34,
    *,
    client: str = CREDENTIALS.access_key,
    lives_s: float = 3600,
    nonce: str = "n",
    sessions: Sessions = SESSIONS,
) -> Credentials:
    """Credentials as a lease's answer gives them."""
    session = Session(FencingKey(key), Token(token), client, int(time.time() + lives_s))
    return sessions.issue(session, f"{nonce} {key} {token} {client}")


async def put(rig: Rig, target: str, credentials: Credentials, *said: tuple[str, str], body: bytes = b"x") -> Answer:
    return await rig.ask("PUT", target, said, body, credentials=credentials)


def presigned(method: str, target: str, credentials: Credentials, length: int = 0, **how: Any) -> bytes:
    path, _, query = target.partition("?")
    query = presign(
        method, HOST, path, query, expires_s=600, credentials=credentials, region=REGION, now=time.time(), **how
    )
    fields = [("host", HOST), ("content-length", str(length))]
    return raw(f"{method} {path}?{query} HTTP/1.1", fields)


# --- every way to sign, every operation


async def test_a_write_bears_key_and_token_without_a_header(rig: Rig) -> None:
    """Nothing but the credentials tells them; the object bears them, and the answer and the log say so."""
    answer = await put(rig, "/b/free", bound())
    assert (answer.status, answer.header("x-fencing-key"), answer.header("x-fencing-token")) == (200, "7", "34")
    head = await rig.ask("HEAD", "/b/free")
    assert (head.header("x-fencing-object-key"), head.header("x-fencing-object-token")) == ("7", "34")
    assert (await rig.fence("7")).floor == 34
    record = [line for line in rig.log if line.get("method") == "PUT"][-1]
    assert (record["client"], record["fence_key"], record["token"]) == (CREDENTIALS.access_key, "7", 34)
    assert all("security-token" not in str(request.headers) for request in rig.upstream.requests)


async def test_a_presigned_url_bears_them_too(rig: Rig) -> None:
    """Whoever has the URL writes under the lease; nothing of its proof goes upstream."""
    answer = await rig.say(presigned("PUT", "/b/renders/7/a", bound(), 3) + b"new")
    assert (answer.status, answer.header("x-fencing-token")) == (200, "34")
    assert (await rig.say(presigned("GET", "/b/renders/7/a", bound()))).body == b"new"
    assert all("Amz" not in request.raw_query for request in rig.upstream.requests)
    assert (await rig.say(presigned("DELETE", "/b/renders/7/a", bound(token=33)))).code == "PreconditionFailed"
    assert (await rig.say(presigned("DELETE", "/b/renders/7/a", bound()))).status == 204


async def test_signed_chunks(rig: Rig) -> None:
    """Each chunk is signed with the derived secret."""
    credentials, data = bound(), b"c" * 20_000
    mode, length = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", ("x-amz-decoded-content-length", str(len(data)))
    later = ("content-length", "%d")

    def request(last: bytes) -> bytes:
        head = signed("PUT", "/b/renders/7/a", [length], payload=mode, credentials=credentials, unsigned=[later])
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        date, seed = fields["x-amz-date"], fields["authorization"].rpartition("=")[2]
        key = signing_key(credentials.secret_key, date[:8], REGION, "s3")
        signer = ChunkSigner(key, date, f"{date[:8]}/{REGION}/s3/aws4_request", seed)
        framed = b""
        for chunk in (data[:16384], data[16384:], b""):
            proof = signer.chunk_signature(sha256(chunk).hexdigest())
            framed += b"%x;chunk-signature=%b\r\n%b\r\n" % (len(chunk), proof.encode(), chunk)
        framed = framed.replace(data[16384:], data[16384:-1] + last)
        return head.replace(b"%d", str(len(framed)).encode()) + framed

    assert (await rig.say(request(b"c"))).header("x-fencing-token") == "34"
    assert (await rig.say(request(b"d"))).code == "SignatureDoesNotMatch"
    assert (await rig.ask("GET", "/b/renders/7/a")).body == data


async def test_a_multipart_upload(rig: Rig) -> None:
    """Create, part and Complete; also by the credentials that a refresh has brought for the same lease."""
    first, refreshed = bound(), bound(nonce="anew")
    target = "/b/renders/7/large"
    created = await rig.ask("POST", f"{target}?uploads", [], b"", credentials=first)
    upload = created.body.decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
    part = await put(rig, f"{target}?partNumber=1&uploadId={upload}", refreshed, body=b"p")
    assert part.status == 200
    tag = (part.header("etag") or "").strip('"')
    document = (
        f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    )
    for credentials in (bound("8"), bound(token=35)):
        for method, query, body in (
            ("PUT", "partNumber=1&", b"p"),
            ("POST", "", document.encode()),
            ("DELETE", "", b""),
        ):
            other = await rig.ask(method, f"{target}?{query}uploadId={upload}", [], body, credentials=credentials)
            assert (other.status, other.code) == (400, "InvalidArgument")
    done = await rig.ask("POST", f"{target}?uploadId={upload}", [], document.encode(), credentials=refreshed)
    assert (done.status, done.header("x-fencing-token")) == (200, "34")
    assert (await rig.ask("HEAD", target)).header("x-fencing-object-token") == "34"


async def test_copy_delete_and_batch(rig: Rig) -> None:
    """What has no place for a header in any tool is fenced all the same."""
    mine = bound()
    assert (await put(rig, "/b/renders/7/a", mine)).status == 200
    source = ("x-amz-copy-source", "/b/renders/7/a")
    assert (await rig.ask("PUT", "/b/renders/7/b", [source], b"", credentials=mine)).header("x-fencing-token") == "34"
    assert (await rig.ask("DELETE", "/b/renders/7/a", credentials=mine)).status == 204
    await rig.put("renders/8/a", b"x", 1)
    keys = "".join(f"<Object><Key>{key}</Key></Object>" for key in ("renders/7/b", "renders/8/a"))
    batch = await rig.ask("POST", "/b?delete", [], f"<Delete>{keys}</Delete>".encode(), credentials=mine)
    assert b"<Deleted><Key>renders/7/b</Key></Deleted>" in batch.body
    assert b"<Error><Key>renders/8/a</Key><Code>InvalidArgument</Code>" in batch.body
    assert rig.stored("renders/7/b") is None
    assert rig.stored("renders/8/a") is not None


# --- after the hand-over


@pytest.mark.parametrize("way", [way for way in WAYS if way.reason == "StaleToken"], ids=str)
async def test_after_the_hand_over_they_are_stale(rig: Rig, way: Way) -> None:
    """Known, and too late: 412 for each way to change an object, and nothing is sent. They may still read."""
    assert (await put(rig, "/b/renders/7/frame", bound(token=OLD))).status == 200
    upload = ""
    if "uploadId" in way.target:
        created = await rig.ask("POST", "/b/renders/7/frame?uploads", [], b"", credentials=bound(token=OLD))
        upload = created.body.decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
    assert (await put(rig, "/b/renders/7/frame", bound(token=34), body=b"of 34")).status == 200
    rig.upstream.writes.clear()
    target = way.target.format(b=BUCKET).replace("upload-of-the-old-token", upload)
    headers = [(name, value.format(b=BUCKET)) for name, value in way.headers]
    answer = await rig.ask(way.method, target, headers, way.body, credentials=bound(token=OLD))
    assert answer.status == way.status
    assert b"Token 33 is stale" in answer.body
    assert (rig.record["reason"], rig.record["token"]) == ("StaleToken", OLD)
    assert [write for write in rig.upstream.writes if not write.startswith("DELETE") or "uploadId" not in write] == []
    assert (await rig.ask("GET", "/b/renders/7/frame", credentials=bound(token=OLD))).body == b"of 34"


# --- headers beside them


async def test_a_header_that_agrees_is_fine(rig: Rig) -> None:
    """Token and key, in any of their forms."""
    for said in ([("x-fencing-token", "34")], [("x-fencing-key", "7")], [("x-amz-meta-fencing-token", "34")]):
        answer = await put(rig, "/b/free", bound(), *said)
        assert (answer.status, answer.header("x-fencing-token")) == (200, "34")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (("x-fencing-token", "35"), "TokenInvalid"),
        (("x-fencing-token", "33"), "TokenInvalid"),
        (("x-fencing-key", "8"), "KeyMismatch"),
        (("x-amz-meta-fencing-token", "35"), "TokenInvalid"),
        (("x-amz-meta-fencing-key", "8"), "KeyMismatch"),
    ],
)
async def test_a_header_that_differs_is_refused(rig: Rig, said: tuple[str, str], reason: str) -> None:
    """Higher or lower, key or token: 400 with the argument, and no floor moves."""
    for target in ("/b/free", "/b/renders/7/a"):
        answer = await put(rig, target, bound(), said)
        assert (answer.status, answer.code, answer.header("x-fencing-reason")) == (400, "InvalidArgument", reason)
        assert answer.xml["ArgumentValue"] == said[1]
    assert rig.upstream.writes == []
    assert (await rig.fence("7")).floor == 0


async def test_an_object_of_another_job(rig: Rig) -> None:
    """A rule names another key, or the object belongs to another: KeyMismatch. Reads are the client's."""
    await rig.put("renders/8/a", b"theirs", 1)
    assert (await put(rig, "/b/owned", bound("8"))).status == 200
    rig.upstream.writes.clear()
    for target in ("/b/renders/8/a", "/b/owned"):
        answer = await put(rig, target, bound("7"))
        assert (answer.status, answer.code, answer.header("x-fencing-reason")) == (
            400,
            "InvalidArgument",
            "KeyMismatch",
        )
        assert (await rig.ask("GET", target, credentials=bound("7"))).status == 200
    assert rig.upstream.writes == []


async def test_where_no_fence_applies(rig: Rig) -> None:
    """Mode off: as the client's own."""
    assert (await put(rig, "/b/loose/a", bound())).status == 200
    assert (await rig.ask("HEAD", "/b/loose/a")).header("x-fencing-object-token") is None


async def test_mode_observe_tells_what_would_be_refused(rig: Rig) -> None:
    """It counts under the lease's key and token, and refuses nothing: not a header that differs, not a stale one."""
    target = "/b/watched/7/a"
    for credentials, said, reason in (
        (bound(), (), None),
        (bound(), (("x-fencing-token", "35"),), "TokenInvalid"),
        (bound("8"), (), "KeyMismatch"),
        (bound(token=33), (), "StaleToken"),
    ):
        assert (await put(rig, target, credentials, *said)).status == 200
        assert rig.record["reason"] == reason
    fence = await rig.fence("7")
    assert (fence.floor, fence.shadow_floor) == (0, 34)


async def test_an_object_moves_to_the_leases_key_where_its_rule_lets_it(rig: Rig) -> None:
    """`rekey`: the binding names the key of the next write, as a header would."""
    for job in ("7", "8"):
        answer = await put(rig, "/b/moving/a", bound(job))
        assert (answer.status, answer.header("x-fencing-key")) == (200, job)


# --- what is not good


NOT_GOOD: dict[str, tuple[Callable[[], Credentials], str, int]] = {
    "expired": (lambda: bound(lives_s=-1), "ExpiredToken", 400),
    "forged": (lambda: changed(session_token="A" * 56), "InvalidToken", 400),
    "truncated": (lambda: changed(session_token=str(bound().session_token)[:-1]), "InvalidToken", 400),
    "under another's access key": (lambda: changed(access_key=bound("8").access_key), "InvalidToken", 400),
    "under a client's": (lambda: changed(access_key=CREDENTIALS.access_key), "InvalidToken", 400),
    "with a client's secret": (lambda: changed(secret_key=CREDENTIALS.secret_key), "SignatureDoesNotMatch", 403),
    "with another's secret": (lambda: changed(secret_key=bound("8").secret_key), "SignatureDoesNotMatch", 403),
    "without the token": (lambda: changed(session_token=None), "InvalidAccessKeyId", 403),
    "of lost keys": (lambda: bound(sessions=Sessions()), "InvalidToken", 400),
    "of no client any more": (lambda: bound(client="FORMER"), "InvalidAccessKeyId", 403),
}  # fmt: skip


def changed(**parts: str | None) -> Credentials:
    pair = bound()
    whole = {"access_key": pair.access_key, "secret_key": pair.secret_key, "session_token": pair.session_token}
    return Credentials(**{**whole, **parts})  # type: ignore[arg-type]


@pytest.mark.parametrize("what", NOT_GOOD)
async def test_what_is_not_good(rig: Rig, what: str) -> None:
    """S3's own codes, in header and URL alike, also for reads; nothing reaches the store, no floor moves."""
    made, code, status = NOT_GOOD[what]
    said = [("x-fencing-token", "34")]
    for answer in (
        await put(rig, "/b/renders/7/a", made(), *said),
        await rig.ask("GET", "/b/renders/7/a", credentials=made()),
        await rig.say(presigned("PUT", "/b/renders/7/a", made(), 1) + b"x"),
    ):
        assert (answer.status, answer.code) == (status, code)
    assert rig.upstream.requests == []
    assert (await rig.fence("7")).floor == 0
    assert not any(secret in rig.logged for secret in (made().secret_key, made().session_token) if secret)


async def test_an_empty_token_is_none(rig: Rig) -> None:
    """A tool with an empty AWS_SESSION_TOKEN: refused in the header as it stands there, in a URL as if it were not."""
    header = await put(rig, "/b/renders/7/a", changed(session_token=""))
    url = await rig.say(presigned("GET", "/b/renders/7/a", changed(session_token="")))
    assert (header.code, url.code) == ("InvalidToken", "InvalidAccessKeyId")
    assert "AWS_SESSION_TOKEN" in url.xml["Message"]


async def test_a_header_that_nobody_signed(rig: Rig) -> None:
    """The session token must be among what is signed: nobody adds one to another's request."""
    pair = bound()
    head = signed("PUT", "/b/renders/7/a", [], b"", unsigned=[("x-amz-security-token", str(pair.session_token))])
    assert (await rig.say(head)).code in ("InvalidToken", "AccessDenied")
    assert rig.upstream.requests == []


async def test_they_expire_while_the_gateway_runs(rig: Rig) -> None:
    """Good to the last second, then ExpiredToken, also for a URL that was presigned for longer."""
    pair = bound(lives_s=300)
    url = presigned("PUT", "/b/renders/7/a", pair, 1)
    assert (await rig.say(url + b"x")).status == 200
    rig.clock.ahead_s = 301
    assert (await rig.say(url + b"x")).code == "ExpiredToken"
    assert (await rig.ask("GET", "/b/renders/7/a", credentials=pair, now=time.time() + 301)).code == "ExpiredToken"


HELD = FencingKey("7")


async def test_they_outlast_their_time_while_the_lease_is_held(rig: Rig) -> None:
    """A program that works for longer than they are good, and cannot get others, goes on to the end of its lease:
    writes and reads, and URLs that it has presigned. Not for a moment longer, and no other lease of the key helps."""
    leases = rig.gateway.leases
    lease = await leases.acquire(HELD, "A", 60)
    pair, forged = bound(token=lease.token, lives_s=-60), bound(token=lease.token, lives_s=-60, sessions=Sessions())
    put_it, get_it = presigned("PUT", "/b/renders/7/a", pair, 1) + b"x", presigned("GET", "/b/renders/7/a", pair)
    for answer in (await put(rig, "/b/renders/7/a", pair), await rig.say(put_it), await rig.say(get_it)):
        assert answer.status == 200
    assert (await put(rig, "/b/renders/7/a", bound(lives_s=-60))).code == "ExpiredToken"  # of token 34
    assert (await put(rig, "/b/renders/7/a", forged)).code == "InvalidToken"
    assert (await put(rig, "/b/renders/8/a", pair)).header("x-fencing-reason") == "KeyMismatch"

    await leases.release(HELD, lease.token)
    answer = await put(rig, "/b/renders/7/a", pair)
    assert (answer.code, f"token {lease.token} of '7'" in answer.xml["Message"]) == ("ExpiredToken", True)
    await leases.acquire(HELD, "B", 60)
    for answer in (await rig.say(put_it), await rig.say(get_it)):
        assert answer.code == "ExpiredToken"
    assert rig.stored("renders/7/a") is not None


async def test_they_end_with_a_lease_that_runs_out(rig: Rig) -> None:
    """The lease of a worker that has died keeps nothing alive, though nobody has taken it over; renewed, it does."""
    lease = await rig.gateway.leases.acquire(HELD, "A", 0.001)
    pair = bound(token=lease.token, lives_s=-60)
    while await rig.gateway.leases.lasts(HELD, lease.token):
        await asyncio.sleep(0.001)
    assert (await put(rig, "/b/renders/7/a", pair)).code == "ExpiredToken"
    await rig.gateway.leases.renew(HELD, lease.token, ttl_s=60)
    assert (await put(rig, "/b/renders/7/a", pair)).status == 200


async def test_past_their_end_a_database_that_does_not_answer_ends_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the lease is held cannot be told: 503, which clients send again, and not ExpiredToken, which is final."""

    async def fails(*_: object) -> None:
        raise StoreUnavailable("disk error")

    monkeypatch.setattr(rig.store, "fence", fails)
    assert (await put(rig, "/b/renders/7/a", bound(lives_s=-60))).code == "ServiceUnavailable"


# --- the client's rights


async def test_they_have_the_rights_of_their_client_and_no_more() -> None:
    """Buckets, operations, keys and the number of requests are those of the client that they were issued for."""
    narrow = Client(CREDENTIALS, ("b",), ("PutObject", "GetObject"), ("7",))
    async with running(rules=RULES, sessions=SESSIONS, clients=[narrow, OTHER]) as rig:
        assert (await put(rig, "/b/renders/7/a", bound())).status == 200
        for method, target in (("PUT", "/other/renders/7/a"), ("DELETE", "/b/renders/7/a"), ("GET", "/")):
            assert (await rig.ask(method, target, [], b"", credentials=bound())).code == "AccessDenied"
        denied = await put(rig, "/b/renders/8/a", bound("8"))
        assert (denied.status, denied.header("x-fencing-reason")) == (403, "KeyDenied")
        wide = bound("8", client=OTHER.credentials.access_key)
        assert (await put(rig, "/other/renders/8/a", wide)).status == 200


async def test_they_count_as_their_client() -> None:
    """A client gets no more requests at a time by its leases."""
    async with running(rules=RULES, sessions=SESSIONS, clients=[Client(CREDENTIALS, max_concurrent_requests=1)]) as rig:
        busy = await rig.wire()
        await busy.send(
            signed("PUT", "/b/k", [("expect", "100-continue"), ("content-length", "9")], payload="UNSIGNED-PAYLOAD")
        )
        assert (await busy.head())[0] == 100
        assert (await put(rig, "/b/renders/7/a", bound())).code == "SlowDown"


@pytest.mark.parametrize("said", [(), (("x-fencing-token", "34"),)])
async def test_an_unsigned_header_is_the_clients_matter(said: Pairs) -> None:
    """`require_signed_token` is the client's, too."""
    for required, status in ((True, 400 if said else 200), (False, 200)):
        client = Client(CREDENTIALS, require_signed_token=required)
        async with running(rules=RULES, sessions=SESSIONS, clients=[client]) as rig:
            answer = await rig.ask("PUT", "/b/renders/7/a", [], b"", credentials=bound(), unsigned=said)
            assert answer.status == status
