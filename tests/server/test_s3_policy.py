"""R7, R11 from head to answer: what `allow`, `observe` and `off` let pass and remember, and what a copy takes along."""

from __future__ import annotations

import pytest

from gateway.core.keys import FencingKey, Mode, Token, WithoutToken
from gateway.server.clients import Client
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.values import EventKind, GrantWanted
from tests.server.rig import BUCKET, CREDENTIALS, Rig, rule, running
from tests.server.test_s3_batch import delete

RULES = [
    rule("open/{job}/**", "{job}", without_token=WithoutToken.ALLOW),
    rule("watched/**", "watched", Mode.OBSERVE),
    rule("off/**", "off", Mode.OFF),
    rule("strict/{job}/**", "{job}", without_token=WithoutToken.REQUIRE),
    rule("renders/{job}/**", "{job}"),
]


async def test_allow_lets_pass_only_what_bears_no_token() -> None:
    """R11: a write with a token goes through its gate there too."""
    async with running(rules=RULES) as rig:
        assert (await rig.put("open/j/o", b"B", 34)).status == 200
        assert (await rig.fence("j")).floor == 34
        assert (await rig.put("open/j/o", b"A", 33)).xml["FencingReason"] == "StaleToken"
        assert (await rig.put("open/j/o", b"plain")).status == 200
        assert rig.stored("open/j/o").data == b"plain"


@pytest.mark.parametrize("token", ["-1", "33"])
async def test_where_no_fence_applies_nobody_looks_at_the_token(token: str) -> None:
    """Clients that send it with each request may read with it, and write under `off`, even twice or if it is none."""
    said = [("x-fencing-token", token), ("fencing-token", token)]
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/o", b"B", 34)
        assert (await rig.ask("GET", f"/{BUCKET}/renders/j/o", said)).body == b"B"
        assert (await rig.ask("PUT", f"/{BUCKET}/off/o", said, b"A")).status == 200
        assert (await rig.ask("PUT", f"/{BUCKET}/renders/j/o", said, b"A")).xml["FencingReason"] == "TokenInvalid"


async def upload_past_the_gate(rig: Rig, key: str) -> str:
    """Begin an upload that no binding knows; answers its id."""
    before = set(rig.upstream.inner.uploads)
    await rig.ask("POST", f"/{BUCKET}/{key}?uploads")
    return next(iter(set(rig.upstream.inner.uploads) - before))


async def test_an_upload_that_allow_let_begin_goes_on_without_a_token_alone() -> None:
    """R6: it has no binding; with a token, or where a fence is enforced, there is no such upload."""
    async with running(rules=RULES) as rig:
        upload_id = await upload_past_the_gate(rig, "open/j/o")
        target = f"/{BUCKET}/open/j/o?partNumber=1&uploadId={upload_id}"
        assert (await rig.ask("PUT", target, (), b"part")).status == 200
        assert (await rig.ask("PUT", target, [("x-fencing-token", "5")], b"part")).code == "NoSuchUpload"
        assert (await rig.ask("PUT", target.replace("open", "renders"), (), b"part")).code == "NoSuchUpload"


async def test_observe_moves_no_floor_and_remembers_what_it_would_have_refused() -> None:
    """R11: the shadow floor judges, also in a batch; nothing is refused, nothing on floor or object changes."""
    async with running(rules=RULES) as rig:
        await rig.put("watched/o", b"B", 34)
        assert (await rig.put("watched/o", b"A", 33)).status == 200
        assert b"<Deleted>" in (await delete(rig, "watched/o", token=32)).body
        fence = await rig.fence("watched")
        assert (fence.floor, fence.shadow_floor) == (0, 34)
        assert [event.token for event in await rig.events("watched", EventKind.WOULD_REFUSE)] == [32, 33]


@pytest.mark.parametrize(
    ("without_token", "reason"),
    [(WithoutToken.REQUIRE, "TokenRequired"), (WithoutToken.UNTIL_FENCED, None), (WithoutToken.ALLOW, None)],
)
async def test_observe_judges_a_write_without_a_token_as_its_rule_would(
    without_token: WithoutToken, reason: str | None
) -> None:
    """R11: `require` would refuse the first one already, `until-fenced` those of a fenced key, `allow` none."""
    rules = [rule("watched/{job}/**", "{job}", Mode.OBSERVE, without_token)]
    async with running(rules=rules) as rig:
        for token, due in (
            (None, reason),
            (34, None),
            (None, None if without_token is WithoutToken.ALLOW else "TokenRequired"),
        ):
            assert (await rig.put("watched/j/o", b"B", token)).status == 200
            told = (rig.record["decision"], rig.record["reason"])
            assert told == ("passed" if due is None else "would-refuse", due), token
            answer = await delete(rig, "watched/j/o", token=token)
            assert b"<Error>" not in answer.body
            assert (rig.record["decision"], rig.record["reason"]) == told, token


async def test_observe_judges_by_the_true_floor_too() -> None:
    """R10, R11: what leases, operators and an earlier `enforce` have raised or sealed would refuse as well."""
    async with running(rules=[rule("watched/{job}/**", "{job}", Mode.OBSERVE)]) as rig:
        fences = rig.gateway.fences

        async def told(job: str, token: int | None) -> tuple[str, int | None]:
            assert (await rig.put(f"watched/{job}/o", b"B", token)).status == 200
            return rig.record["reason"] or rig.record["decision"], rig.record["floor"]

        fences.unpin(await fences.admit(FencingKey("raised"), Token(40), cause="by hand"))
        assert await told("raised", 34) == ("StaleToken", 40)
        assert await told("raised", None) == ("TokenRequired", 40)
        assert await told("raised", 40) == ("passed", 40)
        assert await told("raised", 41) == ("passed", 41)
        assert await told("raised", 40) == ("StaleToken", 41)
        await rig.store.raise_floor("sealed", 40)
        await rig.store.seal("sealed", 40)
        assert await told("sealed", 40) == ("Sealed", 40)
        granted = await rig.store.grant("leased", GrantWanted("worker", 60, "l1"))
        assert await told("leased", granted.token) == ("passed", granted.token)
        assert await told("leased", granted.token + 1) == ("TokenNotIssued", granted.token)
        assert (await rig.fence("leased")).shadow_floor == granted.token
        assert (await rig.fence("raised")).floor == 40


@pytest.mark.parametrize("rekey", [False, True])
async def test_observe_judges_to_whom_an_object_without_a_rule_would_belong(rekey: bool) -> None:
    """R9, R11: to the key that last wrote it, or that enforcement has recorded; it moves where `rekey` lets it."""
    async with running(rules=[rule("**", mode=Mode.OBSERVE, rekey=rekey)]) as rig:
        await rig.store.claim(BUCKET, "recorded", "one", instead_of=None)
        other = "passed" if rekey else "KeyMismatch"

        async def told(target: str, token: int | None, key: str | None, body: bytes | None = b"B") -> str:
            said = [] if token is None else [("x-fencing-token", str(token))]
            said += [] if key is None else [("x-fencing-key", key)]
            method = "PUT" if "?" not in target else "POST"
            assert (await rig.ask(method, f"/{BUCKET}/{target}", said, body)).status == 200
            return str(rig.record["reason"] or rig.record["decision"])

        assert await told("o", None, None) == "passed"
        assert await told("o", 5, "one") == "passed"
        assert await told("recorded", 6, "two") == other
        assert await told("o", 7, "two") == other
        assert await told("o?uploads", 7, "two", b"") == other
        assert await told("o", 9, "two" if rekey else "one") == "passed"
        assert await told("o", None, None) == "TokenRequired"
        assert b"<Error>" not in (await delete(rig, "o", token=10, fence_key="three")).body
        assert (rig.record["reason"] or rig.record["decision"]) == other
        assert await rig.store.owner(BUCKET, "o") is None


async def test_what_would_be_refused_keeps_its_reason() -> None:
    """R11: the store's own refusal of it, whose codes nobody can count, is not taken for the fence's."""
    async with running(rules=RULES) as rig:
        await rig.put("watched/o", b"B", 34)
        answer = await rig.ask("PUT", f"/{BUCKET}/watched/o?tagging", [("x-fencing-token", "33")], b"<Tagging/>")
        assert answer.status == 501  # the store in memory knows no tags
        assert (rig.record["decision"], rig.record["reason"]) == ("would-refuse", "StaleToken")


async def test_observe_asks_whether_the_client_may_use_the_key() -> None:
    """R1, R11: who would be kept out is found out before."""
    rules = [rule("watched/{job}/**", "{job}", Mode.OBSERVE)]
    async with running(rules=rules, clients=[Client(CREDENTIALS, keys=("7",))]) as rig:
        for job, due in (("7", ("passed", None)), ("8", ("would-refuse", "KeyDenied"))):
            assert (await rig.put(f"watched/{job}/o", b"B", 34)).status == 200
            assert (rig.record["decision"], rig.record["reason"]) == due
        assert (await rig.fence("8")).shadow_floor == 0


async def test_observe_judges_parts_and_complete_by_their_upload() -> None:
    """R6, R11: they take key and token from it as if it were enforced, and what nobody can know is not judged."""
    async with running(rules=RULES) as rig:
        watched = f"/{BUCKET}/watched/o"
        mine = await begun(rig, "watched/o", 33)
        part = f"{watched}?partNumber=1&uploadId={mine}"
        assert (await rig.ask("PUT", part, (), b"one")).status == 200
        assert await would_refuse(rig) == []
        await rig.put("watched/o", b"B", 34)
        unknown = await begun(rig, "watched/o", None)
        assert await would_refuse(rig) == [("TokenRequired", "CreateMultipartUpload")]
        etag = (await rig.ask("PUT", part, (), b"one")).header("etag")
        await rig.ask("PUT", part, [("x-fencing-token", "35")], b"one")
        await rig.ask("PUT", f"{watched}?partNumber=1&uploadId={unknown}", (), b"one")
        parts = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        complete = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        assert (await rig.ask("POST", f"{watched}?uploadId={mine}", (), complete)).status == 200
        assert (await rig.ask("POST", f"{watched}?uploadId={mine}", (), complete)).code == "NoSuchUpload"
        aborted = await begun(rig, "watched/o", 34)
        await rig.put("watched/o", b"C", 40)
        assert (await rig.ask("DELETE", f"{watched}?uploadId={aborted}")).status == 204
        assert (await rig.ask("DELETE", f"{watched}?uploadId={unknown}")).status == 204
        assert await would_refuse(rig) == [
            ("TokenRequired", "CreateMultipartUpload"),
            ("StaleToken", "UploadPart"),
            ("TokenInvalid", "UploadPart"),
            ("StaleToken", "CompleteMultipartUpload"),
        ]
        assert not rig.gateway.handler._services.observed._uploads
        assert (await rig.fence("watched")).floor == 0


async def begun(rig: Rig, key: str, token: int | None) -> str:
    """Begin an upload; answers its id."""
    said = () if token is None else [("x-fencing-token", str(token))]
    body = (await rig.ask("POST", f"/{BUCKET}/{key}?uploads", said, b"")).body
    return body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()


async def would_refuse(rig: Rig) -> list[tuple[str, str]]:
    """What enforcement would have refused, in its order: reason and operation."""
    events = reversed(await rig.events("watched", EventKind.WOULD_REFUSE))
    return [(event.detail.partition(": ")[0], event.detail.partition(": ")[2].partition(" ")[0]) for event in events]


@pytest.mark.parametrize("key", ["watched/o", "off/o", "open/j/o", "renders/j/o"])
async def test_metadata_that_is_the_gateways_is_refused_in_every_mode(key: str) -> None:
    """Passed it would forge a fence, left out it would be lost in silence; what speaks to the fence is heard or not."""
    async with running(rules=RULES) as rig:
        for name in ("x-amz-meta-fencing-nonce", "x-amz-meta-fencing-project"):
            answer = await rig.put(key, b"x", None, (name, "mine"))
            assert (answer.status, answer.xml["FencingReason"]) == (400, "KeyInvalid")
            assert answer.xml["ArgumentName"] == name
        assert rig.upstream.writes == []
        assert (await rig.put(key, b"x", None, ("x-amz-meta-fencing-token", "7"))).status == 200
        assert (
            await rig.put(key, b"x", None, ("x-amz-meta-mine", "7"), ("x-amz-meta-fencing-token", "7"))
        ).status == 200
        assert dict(rig.stored(key).metadata)["x-amz-meta-mine"] == "7"


class _NoShadow(MemoryStore):
    """A store that cannot count."""

    async def raise_shadow(self, key, token):
        raise StoreUnavailable("disk is full")


async def test_observe_refuses_nothing_even_if_it_cannot_count() -> None:
    """R11: whatever fails, the write passes."""
    async with running(rules=RULES, store=_NoShadow()) as rig:
        assert (await rig.put("watched/o", b"A", 33)).status == 200


async def test_a_batch_is_decided_by_each_objects_own_rule() -> None:
    """R7, R11: `off` and `allow` let pass, `require` refuses, in one request without a token."""
    async with running(rules=RULES) as rig:
        for key in ("off/o", "open/j/o", "strict/s/o"):
            assert (await rig.put(key, b"x", 5)).status == 200
        answer = await delete(rig, "off/o", "open/j/o", "strict/s/o", "strict/unfenced/o")
        assert [rig.stored(key) is None for key in ("off/o", "open/j/o", "strict/s/o")] == [True, True, False]
        for key in (b"strict/s/o", b"strict/unfenced/o"):
            assert b"<Error><Key>%s</Key><Code>FencingTokenRequired</Code>" % key in answer.body
        await delete(rig, "off/o", "renders/j/o", token=9)
        assert [(await rig.fence(key)).floor for key in ("off", "j")] == [0, 9]


async def test_a_copy_never_carries_the_sources_fence() -> None:
    """R7: neither through a gate nor past it."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/o", b"A", 33)
        source = ("x-amz-copy-source", f"{BUCKET}/renders/j/o")
        for target, token in (("renders/k/o", "7"), ("off/o", None), ("open/l/o", None)):
            said = [source] if token is None else [source, ("x-fencing-token", token)]
            assert (await rig.ask("PUT", f"/{BUCKET}/{target}", said)).status == 200
            found = dict(rig.stored(target).metadata)
            assert found.get("x-amz-meta-fencing-key") == ("k" if token else None)
            assert found.get("x-amz-meta-fencing-token") == token


async def test_a_batch_asks_for_each_object_whether_the_client_may_use_its_key() -> None:
    """R1: authorised for one key, a client cannot reach another's object through a batch."""
    async with running(rules=RULES, clients=[Client(CREDENTIALS, keys=("j",))]) as rig:
        assert (await rig.put("renders/j/o", b"A", 5)).status == 200
        answer = await delete(rig, "renders/j/o", "renders/k/o", token=5, fence_key="j")
        assert b"<Deleted><Key>renders/j/o</Key></Deleted>" in answer.body
        answer = await delete(rig, "renders/k/o", token=5)
        assert b"<Error><Key>renders/k/o</Key><Code>AccessDenied</Code>" in answer.body
        assert (await rig.fence("k")).floor == 0
