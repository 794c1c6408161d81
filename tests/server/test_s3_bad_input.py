"""Tokens and keys that are none: each refused by name, logged, and without a trace in store or upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.core.keys import MAX_TOKEN, WithoutToken
from gateway.server.clients import Client
from tests.server.rig import CREDENTIALS, Answer, Pairs, Rig, rule, running

RULES = (rule("renders/{job}/**", "{job}"), rule("strict/{job}", "{job}", without_token=WithoutToken.REQUIRE))
FLOOR = 33


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Token 33 has written the object; nothing has been refused yet."""
    async with running(rules=RULES) as rig:
        assert (await rig.put("renders/7/a", b"as it was", FLOOR)).status == 200
        rig.upstream.requests.clear()
        yield rig


async def assert_nothing_happened(rig: Rig, answer: Answer, reason: str) -> None:
    """400 with that reason in answer and log; object and floors as they were; nothing asked of the upstream."""
    assert (answer.status, answer.code) == (400, "InvalidArgument"), answer.body
    assert answer.xml["FencingReason"] == answer.header("x-fencing-reason") == reason
    assert answer.xml["FencingOutcome"] == "NotApplied"
    assert {"ArgumentName", "ArgumentValue"} <= answer.xml.keys()
    record = rig.record
    assert (record["status"], record["decision"], record["reason"]) == (400, "refused", reason)
    assert record["message"] == answer.xml["Message"]
    assert rig.upstream.requests == []
    stored = rig.stored("renders/7/a")
    assert stored is not None
    assert stored.data == b"as it was"
    assert {fence.key: fence.floor for fence in await rig.store.fences(None, 9)} == {"7": FLOOR}


TOKENS = {
    "negative": "-1",
    "nought": "0",
    "with a point": "33.0",
    "with a plus": "+33",
    "with a leading nought": "033",
    "in Arabic digits": "٣٣",
    "in full-width digits": "３４",
    "with an underscore": "3_4",
    "with an exponent": "34e0",
    "in hexadecimal": "0x22",
    "one too large": str(MAX_TOKEN + 1),
    "of 20 digits": "1" * 20,
    "of 400 digits": "9" * 400,
    "empty": "",
    "with a space inside": "3 4",
    "a list": "34,34",
    "quoted": '"34"',
    "no text": "3\udcff4",
    "a word": "token",
}
HEADERS = ("X-Fencing-Token", "Fencing-Token", "x-amz-meta-fencing-token")


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
async def test_a_malformed_token_is_refused(rig: Rig, header: str, token: str) -> None:
    """Whatever is not a plain number from 1 to 2^63-1 is 400, whichever header brings it."""
    answer = await rig.ask("PUT", "/b/renders/7/a", [(header, token)], b"bad")
    await assert_nothing_happened(rig, answer, "TokenInvalid")
    assert answer.xml["ArgumentName"] == header.lower()
    assert token.startswith(answer.xml["ArgumentValue"].replace("�", "\udcff"))
    assert len(answer.xml["ArgumentValue"]) <= 64


async def test_the_largest_token_is_one(rig: Rig) -> None:
    """2^63-1 itself is a token, white space around it is HTTP's."""
    assert (await rig.ask("PUT", "/b/renders/7/a", [("X-Fencing-Token", f" {MAX_TOKEN} ")], b"x")).status == 200
    assert (await rig.fence("7")).floor == MAX_TOKEN


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Fencing-Token", "34"), ("X-Fencing-Token", "34")],
        [("X-Fencing-Token", "34"), ("X-FENCING-TOKEN", "35")],
        [("X-Fencing-Token", "34"), ("Fencing-Token", "34")],
        [("X-Fencing-Token", "34"), ("Fencing-Token", "35")],
        [("Fencing-Token", "34"), ("x-amz-meta-fencing-token", "35")],
        [("X-Fencing-Token", "34"), ("Fencing-Token", "34"), ("x-amz-meta-fencing-token", "34")],
    ],
    ids=lambda headers: "+".join(f"{n}={v}" for n, v in headers),
)
async def test_a_token_that_comes_twice_is_refused(rig: Rig, headers: Pairs) -> None:
    """Two tokens are no token, in any mix of names, equal or not."""
    await assert_nothing_happened(rig, await rig.ask("PUT", "/b/renders/7/a", headers, b"bad"), "TokenInvalid")


KEYS = {
    "empty": "",
    "too long": "k" * 513,
    "too long in UTF-8": "%C3%A9" * 257,
    "no UTF-8": "%ff%fe",
    "no UTF-8 raw": "k\udcff",
    "with a control character": "a%00b",
    "with a line end": "a%0D%0Ab",
    "with DEL": "a%7F",
    "with a C1 control": "a%C2%85",
    "of the objects' namespace": "object:b/renders/7/a",
    "of the objects' namespace, escaped": "%6Fbject%3Ab/other",
}


@pytest.mark.parametrize("header", ["X-Fencing-Key", "x-amz-meta-fencing-key"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
async def test_a_malformed_key_is_refused(rig: Rig, header: str, key: str) -> None:
    """A key that is empty, too long, no text or kept for objects is 400, on a fenced object and on a free one."""
    for target in ("/b/renders/7/a", "/b/free"):
        answer = await rig.ask("PUT", target, [(header, key), ("X-Fencing-Token", "34")], b"bad")
        await assert_nothing_happened(rig, answer, "KeyInvalid")
        assert answer.xml["ArgumentName"] == header.lower()


async def test_a_key_that_comes_twice_is_refused(rig: Rig) -> None:
    """Two keys are no key, equal or not."""
    for second in (("X-Fencing-Key", "7"), ("x-amz-meta-fencing-key", "8")):
        answer = await rig.ask("PUT", "/b/renders/7/a", [("X-Fencing-Key", "7"), second], b"bad")
        await assert_nothing_happened(rig, answer, "KeyInvalid")


@pytest.mark.parametrize("name", ["x-amz-meta-fencing-nonce", "x-amz-meta-fencing-", "X-Amz-Meta-Fencing-Floor"])
async def test_the_gateways_own_metadata_cannot_be_sent(rig: Rig, name: str) -> None:
    """A client cannot forge what the gateway writes on objects."""
    answer = await rig.ask("PUT", "/b/renders/7/a", [(name, "1"), ("X-Fencing-Token", "34")], b"bad")
    await assert_nothing_happened(rig, answer, "KeyInvalid")


@pytest.mark.parametrize("header", ["X-Fencing-Token", "Fencing-Token", "X-Fencing-Key"])
async def test_an_unsigned_fence_header_is_refused(rig: Rig, header: str) -> None:
    """Nobody on the way can add a token or a key to a signed request."""
    answer = await rig.ask("PUT", "/b/renders/7/a", [], b"bad", unsigned=[(header, "34")])
    await assert_nothing_happened(rig, answer, "NotSigned")


async def test_nobody_on_the_way_can_take_a_signed_header_away(rig: Rig) -> None:
    """A copy whose source an unsigned Connection names is a copy all the same, and no object without bytes."""
    await rig.put("source", b"x", 34)
    source = [("X-Fencing-Token", "34"), ("x-amz-copy-source", "/b/source")]
    await rig.ask("PUT", "/b/copy", source, b"", unsigned=[("connection", "x-amz-copy-source")])
    copy = rig.stored("copy")
    assert copy is not None
    assert copy.data == b"x"


async def test_an_unsigned_duplicate_of_a_signed_token_is_refused(rig: Rig) -> None:
    """A second, unsigned field of a signed name breaks the signature."""
    answer = await rig.ask(
        "PUT", "/b/renders/7/a", [("X-Fencing-Token", "34")], b"x", unsigned=[("X-Fencing-Token", "35")]
    )
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    assert (await rig.fence("7")).floor == FLOOR


async def test_a_client_may_be_excused_from_signing_the_token() -> None:
    """`require_signed_token = false` takes an unsigned token header, but no unsigned metadata."""
    async with running(rules=RULES, clients=[Client(CREDENTIALS, require_signed_token=False)]) as rig:
        answer = await rig.ask("PUT", "/b/renders/7/a", [], b"x", unsigned=[("X-Fencing-Token", "34")])
        assert (answer.status, answer.header("x-fencing-token")) == (200, "34")
        meta = await rig.ask("PUT", "/b/renders/7/a", [], b"x", unsigned=[("x-amz-meta-fencing-token", "35")])
        assert (meta.status, meta.code) == (403, "AccessDenied")
        assert (await rig.fence("7")).floor == 34


async def test_no_fence_header_reaches_the_upstream(rig: Rig) -> None:
    """What a client says to the fence stays here; the object bears the gateway's own metadata alone."""
    said = [("x-amz-meta-fencing-token", "34"), ("X-Fencing-Key", "7"), ("x-amz-meta-mine", "kept")]
    assert (await rig.ask("PUT", "/b/renders/7/a", said, b"x")).status == 200
    sent = dict(rig.upstream.requests[-1].headers)
    assert {n for n in sent if "fencing" in n} == {f"x-amz-meta-fencing-{n}" for n in ("key", "token", "nonce")}
    assert (sent["x-amz-meta-fencing-token"], sent["x-amz-meta-mine"]) == ("34", "kept")


async def test_an_admitted_write_keeps_the_floor_raised_though_its_body_fails(rig: Rig) -> None:
    """Only a request that passed all checks of its head raises the floor; then it stays raised."""
    bad = await rig.ask("PUT", "/b/renders/7/a", [("X-Fencing-Token", "34")], b"x", payload="0" * 64)
    assert (bad.status, bad.code) == (400, "XAmzContentSHA256Mismatch")
    assert (await rig.fence("7")).floor == 34
    stored = rig.stored("renders/7/a")
    assert stored is not None
    assert stored.data == b"as it was"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("transfer-encoding", "chunked")], 411),
        ([("content-length", str(6 * 2**30))], 400),
        ([("content-md5", "no")], 400),
    ],
    ids=["no length", "too long", "bad digest"],
)
async def test_a_head_that_fails_raises_no_floor(rig: Rig, headers: Pairs, status: int) -> None:
    """Length and syntax are judged before admission."""
    answer = await rig.ask("PUT", "/b/renders/7/a", [("X-Fencing-Token", "99"), *headers], b"")
    assert answer.status == status
    assert (await rig.fence("7")).floor == FLOOR


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/b/" + "a" * 1025, 400, "KeyTooLongError"),
        ("/b/" + "%C3%A9" * 513, 400, "KeyTooLongError"),
        ("/b/%FF", 400, "InvalidURI"),
        ("/b/k?%FF=1", 400, "InvalidURI"),
        ("/b/%zz", 400, "InvalidURI"),
        ("/b/k?versionId=%zz", 400, "InvalidURI"),
        ("/%2F/k", 400, "InvalidBucketName"),
        ("//k", 400, "InvalidBucketName"),
    ],
)
async def test_an_object_that_cannot_be_named(rig: Rig, target: str, status: int, code: str) -> None:
    """Keys too long, no UTF-8 or escaped wrongly, and buckets that are none, are S3's own errors."""
    answer = await rig.ask("PUT", target, [("X-Fencing-Token", "34")], b"x")
    assert (answer.status, answer.code) == (status, code)
    assert rig.upstream.requests == []


async def test_a_delete_of_a_version_without_a_name_is_none_of_the_object(rig: Rig) -> None:
    """It would go without the condition that keeps it from what a higher token has written since."""
    await rig.put("k", b"x", 34)
    asked = len(rig.upstream.requests)
    answer = await rig.ask("DELETE", "/b/k?versionId=", [("X-Fencing-Token", "34")])
    assert (answer.status, answer.code, len(rig.upstream.requests)) == (400, "InvalidArgument", asked)


async def test_a_key_of_1024_bytes_works(rig: Rig) -> None:
    """The longest key is one."""
    assert (await rig.put("%C3%A9" * 512, b"x", 34)).status == 200


@pytest.mark.parametrize("directive", ["COPY", "REPLACE"])
@pytest.mark.parametrize("source", ["b/x%FF", "b/x\udcff", "b/k?versionId=%FF", "b%2Fx%C3"])
async def test_a_copys_source_that_cannot_be_named(rig: Rig, source: str, directive: str) -> None:
    """No object has such a name: 400, and not a 503 for what the store makes of looking for it."""
    said = [("X-Fencing-Token", "34"), ("x-amz-copy-source", source), ("x-amz-metadata-directive", directive)]
    answer = await rig.ask("PUT", "/b/renders/7/a", said, b"")
    assert (answer.status, answer.code, answer.xml["ArgumentName"]) == (400, "InvalidArgument", "x-amz-copy-source")
    assert rig.upstream.requests == []
    assert (await rig.fence("7")).floor == FLOOR


async def test_a_copys_source_with_a_plain_percent_sign(rig: Rig) -> None:
    """What is no escape stands for itself, as stores read it."""
    assert (await rig.put("50%25zz", b"half")).status == 200
    said = [("X-Fencing-Token", "34"), ("x-amz-copy-source", "b/50%zz")]
    assert (await rig.ask("PUT", "/b/renders/7/copy", said, b"")).status == 200
    assert (stored := rig.stored("renders/7/copy")) is not None
    assert stored.data == b"half"
    assert next(request.raw_key for request in rig.upstream.requests if request.method == "HEAD") == "50%25zz"
