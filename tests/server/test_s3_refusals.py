"""Every row of the interface's table of refusals that one gateway produces: status, code, elements and headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.core.keys import FencingKey, Mode, Token, WithoutToken
from gateway.s3.sigv4 import Credentials
from gateway.server.clients import Client
from gateway.server.listener import Limits
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, EventKind, Fence
from gateway.upstream.base import UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.server.rig import BUCKET, CREDENTIALS, HOST, Answer, Pairs, Rig, Stalled, raw, rule, running

RULES = (
    rule("renders/{job}/**", "{job}"),
    rule("strict/{job}", "{job}", without_token=WithoutToken.REQUIRE),
    rule("open/{job}/**", "{job}", without_token=WithoutToken.ALLOW),
    rule("watched/**", "watched", Mode.OBSERVE),
    rule("off/**", "off", Mode.OFF),
)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(rules=RULES) as rig:
        yield rig


def assert_refused(
    answer: Answer,
    status: int,
    code: str,
    reason: str,
    *,
    floor: int | None = None,
    key: str | None = None,
    token: int | None = None,
    outcome: str = "NotApplied",
    argument: tuple[str, str] | None = None,
) -> None:
    """The refusal says just this, in its elements and in its headers."""
    xml = answer.xml
    told = {
        "Code": code,
        "Condition": "X-Fencing-Token" if code == "PreconditionFailed" else None,
        "FencingReason": reason,
        "FencingFloor": None if floor is None else str(floor),
        "FencingKey": key,
        "FencingToken": None if token is None else str(token),
        "FencingOutcome": outcome,
        "ArgumentName": argument and argument[0],
        "ArgumentValue": argument and argument[1],
    }
    assert {name: xml.get(name) for name in told} == told
    assert answer.status == status
    assert xml["Message"]
    assert xml["RequestId"] == answer.header("x-amz-request-id") != ""
    assert xml["HostId"] == answer.header("x-amz-id-2") != ""
    assert answer.header("x-fencing-reason") == reason
    assert answer.header("x-fencing-outcome") == outcome
    assert answer.header("x-fencing-floor") == told["FencingFloor"]
    seconds, milliseconds = answer.header("retry-after"), answer.header("x-amz-retry-after")
    if status == 503:
        assert int(seconds or 0) >= 1
        assert int(milliseconds or 0) >= 1
    else:
        assert seconds is milliseconds is None


def token(value: int | str) -> tuple[str, str]:
    return ("X-Fencing-Token", str(value))


# --- 412, 428


async def test_a_stale_token(rig: Rig) -> None:
    """A token below the floor is 412, and the message says who holds the key and what to do."""
    await rig.put("renders/7/a", b"new", 34)
    answer = await rig.put("renders/7/a", b"old", 33)
    assert_refused(answer, 412, "PreconditionFailed", "StaleToken", floor=34, key="7", token=33)
    assert "34" in answer.xml["Message"]
    assert "stop" in answer.xml["Message"]


async def test_a_sealed_token(rig: Rig) -> None:
    """A sealed token is refused like a lower one, under its own reason."""
    await rig.put("renders/7/a", b"new", 34)
    await rig.gateway.fences.seal(FencingKey("7"), Token(34), Event("7", EventKind.SEALED, 34, 34))
    answer = await rig.put("renders/7/a", b"again", 34)
    assert_refused(answer, 412, "PreconditionFailed", "Sealed", floor=34, key="7", token=34)


async def test_no_token_on_a_fenced_key(rig: Rig) -> None:
    """Without a token a write passes until the key is fenced, then it is 428 under the floor that fenced it."""
    assert (await rig.put("renders/7/a", b"early")).status == 200
    await rig.put("renders/7/a", b"new", 34)
    assert_refused(
        await rig.put("renders/7/a", b"late"), 428, "FencingTokenRequired", "TokenRequired", floor=34, key="7"
    )


async def test_no_token_where_the_rule_wants_one(rig: Rig) -> None:
    """`require` refuses the first write already."""
    assert_refused(await rig.put("strict/7", b"x"), 428, "FencingTokenRequired", "TokenRequired", key="7")


async def test_s3s_own_412_bears_no_fencing_reason(rig: Rig) -> None:
    """A client's failed condition is S3's answer: a worker must not take it for the loss of its job."""
    await rig.put("renders/7/a", b"there", 34)
    answer = await rig.put("renders/7/a", b"x", 34, ("if-none-match", "*"))
    assert (answer.status, answer.code) == (412, "PreconditionFailed")
    assert answer.xml["Condition"] == "If-None-Match"
    assert answer.header("x-fencing-reason") is None
    assert "FencingReason" not in answer.xml
    assert answer.xml["RequestId"]
    assert answer.xml["HostId"]


# --- 400, 403, 501


@pytest.mark.parametrize(
    ("headers", "reason", "argument"),
    [
        ([token("0")], "TokenInvalid", ("x-fencing-token", "0")),
        ([token(1), ("Fencing-Token", "1")], "TokenInvalid", ("fencing-token", "1")),
        ([("X-Fencing-Key", "%00")], "KeyInvalid", ("x-fencing-key", "%00")),
        ([("x-amz-meta-fencing-nonce", "n")], "KeyInvalid", ("x-amz-meta-fencing-nonce", "n")),
    ],
)
async def test_malformed_and_repeated(rig: Rig, headers: Pairs, reason: str, argument: tuple[str, str]) -> None:
    """What cannot be read as one token and one key names its argument."""
    answer = await rig.ask("PUT", "/b/free", headers, b"x")
    assert_refused(answer, 400, "InvalidArgument", reason, argument=argument)


async def test_an_unsigned_token(rig: Rig) -> None:
    """A token that the signature does not cover is refused."""
    answer = await rig.ask("PUT", "/b/free", [], b"x", unsigned=[token(3)])
    assert_refused(answer, 400, "InvalidArgument", "NotSigned", argument=("x-fencing-token", "3"))


async def test_rule_and_header_name_different_keys(rig: Rig) -> None:
    """Where two sources speak and differ, neither wins."""
    answer = await rig.ask("PUT", "/b/renders/7/a", [token(3), ("X-Fencing-Key", "8")], b"x")
    assert_refused(answer, 400, "InvalidArgument", "KeyMismatch", key="7", argument=("X-Fencing-Key", "8"))


async def test_the_object_belongs_to_another_key(rig: Rig) -> None:
    """An object without a rule belongs to the key that last wrote it."""
    await rig.ask("PUT", "/b/free", [token(3), ("X-Fencing-Key", "one")], b"x")
    answer = await rig.ask("PUT", "/b/free", [token(4), ("X-Fencing-Key", "two")], b"x")
    assert_refused(answer, 400, "InvalidArgument", "KeyMismatch", key="one", token=4, argument=("X-Fencing-Key", "two"))
    plain = await rig.put("free", b"x")
    assert_refused(plain, 428, "FencingTokenRequired", "TokenRequired", key="one")


async def test_the_client_may_not_use_the_key() -> None:
    """A client's limit to keys holds for the key that the rule gives."""
    async with running(rules=RULES, clients=[Client(CREDENTIALS, keys=("8",))]) as rig:
        answer = await rig.put("renders/7/a", b"x", 3)
        assert_refused(answer, 403, "AccessDenied", "KeyDenied", key="7", token=3)
        assert (await rig.fence("7")).floor == 0
        assert (await rig.put("renders/8/a", b"x", 3)).status == 200


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/b/renders/7/a?renameObject"),
        ("GET", "/b?session"),
        ("POST", "/b"),
        ("PUT", "/b/renders/7/a?append"),
        ("DELETE", "/b/free?unknown"),
    ],
)
async def test_an_operation_that_the_fence_cannot_follow(rig: Rig, method: str, target: str) -> None:
    """What would lead around the fence is 501."""
    assert_refused(await rig.ask(method, target), 501, "NotImplemented", "OperationNotFenced")
    assert rig.upstream.requests == []


async def test_a_browsers_form_is_not_implemented(rig: Rig) -> None:
    """A form bears its credentials in its body, so it is told that forms are not served, not that it is unsigned."""
    fields = [("host", "s3"), ("content-type", "multipart/form-data; boundary=x"), ("content-length", "3")]
    answer = await rig.say(raw("POST /b HTTP/1.1", fields) + b"--x")
    assert_refused(answer, 501, "NotImplemented", "OperationNotFenced")


# --- 503


async def test_a_hand_over_that_is_pending() -> None:
    """A higher token waits for what a lower one has sent, at most `handover_wait_s`; the floor stays raised."""
    upstream = Stalled()
    async with running(upstream=upstream, rules=RULES) as rig:
        first = asyncio.create_task(rig.put("renders/7/a", b"low", 1))
        await upstream.arrived.wait()
        answer = await rig.put("renders/7/a", b"high", 2)
        assert_refused(answer, 503, "SlowDown", "HandoverPending", floor=2, key="7", token=2)
        assert (await rig.fence("7")).floor == 2
        upstream.release.set()
        assert (await first).status == 200


class Losing(MemoryUpstream):
    """Applies each PUT and loses its answer, or never gets it."""

    def __init__(self, *, reached: bool) -> None:
        super().__init__(BUCKET)
        self.reached = reached

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if request.method == "PUT" and not self.reached:
            raise UpstreamNotReached("nobody listens")
        if request.method == "PUT":
            raise UpstreamLost("reset by peer")
        return await super().send(request, body, timeout_s)


async def test_a_write_in_doubt() -> None:
    """A lost answer is 503 with outcome Unknown."""
    async with running(upstream=Losing(reached=True), rules=RULES) as rig:
        answer = await rig.put("renders/7/a", b"x", 1)
        assert_refused(answer, 503, "SlowDown", "InDoubt", floor=1, key="7", token=1, outcome="Unknown")


async def test_the_upstream_is_not_available() -> None:
    """A request that never reached the upstream was not applied, and says so."""
    async with running(upstream=Losing(reached=False), rules=RULES) as rig:
        answer = await rig.put("renders/7/a", b"x", 1)
        assert_refused(answer, 503, "ServiceUnavailable", "UpstreamUnavailable")


class Moving(MemoryUpstream):
    """Refuses the condition of each PUT: the object is never as it was seen."""

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if request.method == "PUT":
            return MemoryResponse(412, [("content-length", "0")], b"")
        return await super().send(request, body, timeout_s)


async def test_a_state_that_keeps_moving() -> None:
    """A write that finds another state each time it is sent ends in 503, not in an endless loop."""
    async with running(upstream=Moving(BUCKET), rules=RULES) as rig:
        answer = await rig.put("renders/7/a", b"x", 1)
        assert_refused(answer, 503, "SlowDown", "StateMoved", key="7", token=1)
        assert answer.header("x-amz-retry-after") == "100"


async def test_too_many_requests() -> None:
    """Beyond the limit of running requests the next one is told to come again."""
    upstream = Stalled()
    async with running(upstream=upstream, limits=Limits(max_concurrent_requests=1)) as rig:
        first = asyncio.create_task(rig.put("k", b"x", 1))
        await upstream.arrived.wait()
        assert_refused(await rig.ask("GET", "/b/k"), 503, "SlowDown", "Overloaded")
        upstream.release.set()
        assert (await first).status == 200
        assert (await rig.ask("GET", "/b/k")).status == 200


OTHER = Credentials("AKIDOTHER", "another-secret")


@pytest.mark.parametrize("of_its_own", [True, False])
async def test_too_many_requests_of_one_client(of_its_own: bool) -> None:
    """A client at its limit is told to come again, and keeps no other out; a forged signature takes nobody's place."""
    one = Client(CREDENTIALS, max_concurrent_requests=1 if of_its_own else None)
    limits = Limits(max_concurrent_requests_per_client=8 if of_its_own else 1)
    upstream = Stalled()
    async with running(upstream=upstream, clients=[one, Client(OTHER)], limits=limits) as rig:
        forged = Credentials(CREDENTIALS.access_key, "not the secret")
        assert (await rig.ask("GET", "/b/k", credentials=forged)).status == 403
        first = asyncio.create_task(rig.put("k", b"x", 1))
        await upstream.arrived.wait()
        assert_refused(await rig.ask("GET", "/b/k"), 503, "SlowDown", "Overloaded")
        assert (await rig.ask("GET", "/b/k", credentials=OTHER)).status == 404
        upstream.release.set()
        assert (await first).status == 200
        for _ in range(3):
            assert (await rig.ask("GET", "/b/k")).status == 200


async def test_too_many_unsigned_reads() -> None:
    """All who sign nothing share one limit, whatever name a client has."""
    named = Client(Credentials("anonymous", "a-secret"))
    limits = Limits(max_concurrent_requests_per_client=1)
    upstream = SlowReads()
    async with running(upstream=upstream, clients=[named], limits=limits, anonymous_read=True) as rig:
        unsigned = raw("GET /b/k HTTP/1.1", [("host", HOST)])
        first = asyncio.create_task(rig.say(unsigned))
        await upstream.arrived.wait()
        assert_refused(await rig.say(unsigned), 503, "SlowDown", "Overloaded")
        signed_read = asyncio.create_task(rig.ask("GET", "/b/k", credentials=named.credentials))
        upstream.release.set()
        assert [(await first).status, (await signed_read).status] == [404, 404]


class SlowReads(MemoryUpstream):
    """Holds each read back until it is told to go on."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.arrived, self.release = asyncio.Event(), asyncio.Event()

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        self.arrived.set()
        await self.release.wait()
        return await super().read(request, body)


async def test_a_draining_gateway(rig: Rig) -> None:
    """On a connection that is still open, requests are sent away while the gateway drains."""
    rig.gateway.handler.draining = True
    assert_refused(await rig.put("k", b"x", 1), 503, "ServiceUnavailable", "Draining")
    assert rig.upstream.requests == []


class Failing(MemoryStore):
    """Has lost its disk when `broken`."""

    broken = False

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        if self.broken:
            raise StoreUnavailable("disk full")
        return await super().raise_floor(key, token, event)

    async def raise_shadow(self, key: str, token: int) -> Fence:
        if self.broken:
            raise StoreUnavailable("disk full")
        return await super().raise_shadow(key, token)

    def record(self, event: Event) -> None:
        if self.broken:
            raise StoreUnavailable("the store is closed")
        super().record(event)


async def test_the_store_is_not_available() -> None:
    """A floor that cannot be made durable lets nothing through."""
    store = Failing()
    async with running(store=store, rules=RULES) as rig:
        store.broken = True
        answer = await rig.put("renders/7/a", b"x", 1)
        assert_refused(answer, 503, "ServiceUnavailable", "StoreUnavailable")
        assert rig.upstream.requests == []


async def test_a_history_that_cannot_be_written_changes_no_answer() -> None:
    """A refusal stays a refusal, and a watched write passes, when the store cannot record them."""
    store = Failing()
    async with running(store=store, rules=RULES) as rig:
        await rig.put("renders/7/a", b"new", 34)
        store.broken = True
        answer = await rig.put("renders/7/a", b"old", 33)
        assert_refused(answer, 412, "PreconditionFailed", "StaleToken", floor=34, key="7", token=33)
        assert (await rig.put("watched/a", b"x", "bad")).status == 200
        store.broken = False


# --- what passes


async def test_success_tells_token_key_and_floor(rig: Rig) -> None:
    """A fenced write's answer names its token, its key percent-encoded, and the floor."""
    answer = await rig.put("renders/caf%C3%A9/a", b"x", 5)
    told = {n: v for n, v in answer.headers if n.startswith("x-fencing-")}
    assert told == {"x-fencing-token": "5", "x-fencing-key": "caf%C3%A9", "x-fencing-floor": "5"}


async def test_off_and_observe_refuse_nothing(rig: Rig) -> None:
    """Under `off` nothing is looked at; under `observe` a shadow floor counts what would have been refused."""
    for key in ("off/a", "watched/a"):
        assert (await rig.put(key, b"new", 5)).status == 200
        assert (await rig.put(key, b"old", 4)).status == 200
        assert (await rig.put(key, b"bad", "no number")).status == 200
    assert (await rig.fence("watched")).floor == 0
    assert (await rig.fence("watched")).shadow_floor == 5
    assert [line["decision"] for line in rig.log if line.get("object") == "watched/a"] == [
        "passed", "would-refuse", "would-refuse",
    ]  # fmt: skip


async def test_allow_lets_a_whole_upload_pass_without_a_token(rig: Rig) -> None:
    """Under `allow` a multipart upload without a token passes outside the gate, like a plain PUT."""
    await rig.put("open/7/a", b"fenced", 5)
    assert (await rig.put("open/7/a", b"plain")).status == 200
    created = await rig.ask("POST", "/b/open/7/b?uploads", [], b"")
    assert created.status == 200, created.body
    upload_id = created.body.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
    part = await rig.ask("PUT", f"/b/open/7/b?partNumber=1&uploadId={upload_id}", [], b"part")
    assert part.status == 200, part.body
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{part.header('etag')}</ETag></Part>"
    whole = document + "</CompleteMultipartUpload>"
    done = await rig.ask("POST", f"/b/open/7/b?uploadId={upload_id}", [], whole.encode())
    assert done.status == 200, done.body
    stored = rig.stored("open/7/b")
    assert stored is not None
    assert stored.data == b"part"


async def test_an_abort_tells_no_floor(rig: Rig) -> None:
    """G0: an upload is thrown away also for a token that has been overtaken, which is not the floor any more; found by
    simulation."""
    created = await rig.ask("POST", "/b/open/7/a?uploads", [("x-fencing-token", "5")], b"")
    upload_id = created.body.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
    await rig.gateway.uploads.bindings.stop()  # nobody else aborts it
    await rig.put("open/7/b", b"new", 6)
    answer = await rig.ask("DELETE", f"/b/open/7/a?uploadId={upload_id}", [("x-fencing-token", "5")])
    assert answer.status == 204, answer.body
    assert not any(name.startswith("x-fencing-") for name, _ in answer.headers)
