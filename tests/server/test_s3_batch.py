"""DeleteObjects from head to answer: whose token it is, and what each object is told."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.keys import Mode, key_of_object
from gateway.stores.values import EventKind
from gateway.upstream.probe import FixedCapabilities
from tests.server.rig import BUCKET, PROVED, Rig, rule, running

RULES = [rule("renders/{job}/**", "{job}"), rule("wild/{path:path}", "{path}")]


def batch(*keys: str) -> bytes:
    return f"<Delete>{''.join(f'<Object><Key>{key}</Key></Object>' for key in keys)}</Delete>".encode()


async def delete(rig: Rig, *keys: str, token: int | None = None, fence_key: str | None = None):
    said = [] if token is None else [("x-fencing-token", str(token))]
    said += [] if fence_key is None else [("x-fencing-key", fence_key)]
    return await rig.ask("POST", f"/{BUCKET}?delete", said, batch(*keys))


async def test_a_token_without_a_key_holds_for_objects_of_one_job() -> None:
    """All map to one key: the token is that key's, and the answer says so."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/a", b"a", 5)
        await rig.put("renders/j/b", b"b", 5)
        answer = await delete(rig, "renders/j/a", "renders/j/b", token=6)
        assert answer.status == 200
        assert answer.body.count(b"<Deleted>") == 2
        assert answer.header("x-fencing-key") == "j"
        assert answer.header("x-fencing-token") == answer.header("x-fencing-floor") == "6"
        assert (await rig.store.fence("j")).floor == 6


async def test_a_token_without_a_key_over_several_jobs_is_refused_whole() -> None:
    """R7: nobody can tell whose token it is; nothing is deleted, no floor moves."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/a", b"a", 5)
        await rig.put("renders/k/a", b"b", 5)
        answer = await delete(rig, "renders/j/a", "renders/k/a", token=6)
        assert (answer.status, answer.code, answer.xml["FencingReason"]) == (400, "InvalidArgument", "KeyMismatch")
        assert rig.stored("renders/j/a")
        assert rig.stored("renders/k/a")
        assert (await rig.store.fence("j")).floor == 5


async def test_a_key_that_is_named_refuses_the_objects_of_others() -> None:
    """Each object of another job is its own error, the rest goes through."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/a", b"a", 5)
        await rig.put("renders/k/a", b"b", 5)
        answer = await delete(rig, "renders/j/a", "renders/k/a", token=6, fence_key="j")
        assert b"<Deleted><Key>renders/j/a</Key></Deleted>" in answer.body
        assert b"<Error><Key>renders/k/a</Key><Code>InvalidArgument</Code>" in answer.body
        assert rig.stored("renders/j/a") is None
        assert rig.stored("renders/k/a")


async def test_a_stale_batch_claims_no_success() -> None:
    """The token is not the floor: no header says so, each object's error does, and the log has the floor."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/a", b"a", 5)
        answer = await delete(rig, "renders/j/a", token=4)
        assert (answer.status, answer.body.count(b"<Code>PreconditionFailed</Code>")) == (200, 1)
        assert [answer.header(f"x-fencing-{name}") for name in ("token", "key", "floor")] == [None, None, None]
        assert (rig.record["decision"], rig.record["token"], rig.record["floor"]) == ("refused", 4, 5)


async def test_an_object_that_its_rule_cannot_map_is_its_own_error() -> None:
    """A rule gives it a fencing key that is too long; the others are deleted."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/a", b"a", 5)
        unmapped = "wild/" + "x" * 600
        answer = await delete(rig, "renders/j/a", unmapped, token=5)
        assert b"<Deleted><Key>renders/j/a</Key></Deleted>" in answer.body
        assert f"<Error><Key>{unmapped}</Key><Code>InvalidArgument</Code>".encode() in answer.body


async def test_an_upstreams_error_after_admission_names_no_token() -> None:
    """The success headers belong to success."""
    async with running(rules=RULES) as rig:
        answer = await rig.ask("PUT", "/nosuchbucket/renders/j/a", [("x-fencing-token", "5")], b"a")
        assert (answer.status, answer.code) == (404, "NoSuchBucket")
        assert answer.header("x-fencing-token") is None


async def test_an_empty_batch_is_no_xml() -> None:
    """A length of nothing is a length: what is wrong with it is the document."""
    async with running(rules=RULES) as rig:
        answer = await rig.ask("POST", f"/{BUCKET}?delete", (), b"")
        assert (answer.status, answer.code) == (400, "MalformedXML")


async def test_a_key_that_is_too_long_is_no_key_in_a_batch_either() -> None:
    """S3's own error for the whole; nothing goes upstream, and no floor is kept under a name of that length."""
    async with running(rules=RULES) as rig:
        answer = await delete(rig, "b" * 1025, token=5)
        assert (answer.status, answer.code) == (400, "KeyTooLongError")
        assert rig.upstream.requests == []
        assert (await rig.fence(key_of_object(BUCKET, "b" * 1025))).floor == 0
        assert (await delete(rig, "é" * 512, token=5)).status == 200


WATCHED = [rule("watched/{job}/**", "{job}", Mode.OBSERVE), rule("renders/{job}/**", "{job}")]


async def test_a_batch_is_observed_like_a_single_delete() -> None:
    """R11: the log tells of the first object that enforcement would have refused; all are in their keys' history,
    and all are deleted."""
    async with running(rules=WATCHED) as rig:
        await rig.put("watched/k/a", b"k", 2)
        await rig.put("watched/j/a", b"a", 34)
        assert (await delete(rig, "watched/j/a", "watched/j/b", token=33)).body.count(b"<Deleted>") == 2
        told = {name: rig.record[name] for name in ("decision", "reason", "fence_key", "token", "floor")}
        assert told == {"decision": "would-refuse", "reason": "StaleToken", "fence_key": "j", "token": 33, "floor": 34}
        assert len(await rig.events("j", EventKind.WOULD_REFUSE)) == 2
        await delete(rig, "watched/j/a", token=34)
        assert rig.record["decision"] == "passed"


async def test_a_batch_that_enforcement_would_refuse_whole_raises_no_shadow_floor() -> None:
    """Its token would hold for nothing: neither does it here, whichever of the objects are only observed."""
    async with running(rules=WATCHED) as rig:
        await rig.put("watched/j/a", b"a", 5)
        for keys in (("watched/j/a", "watched/k/a"), ("watched/j/a", "renders/k/a")):
            answer = await delete(rig, *keys, token=6)
            assert answer.body.count(b"<Deleted>") == 2
            assert (rig.record["decision"], rig.record["reason"]) == ("would-refuse", "KeyMismatch")
            assert ((await rig.fence("j")).shadow_floor, (await rig.fence("k")).shadow_floor) == (5, 0)


async def test_whether_versions_are_kept_is_asked_once_for_a_batch() -> None:
    """However many of its keys have two slashes in a row: each had the store asked once more, one after another."""
    async with running(rules=RULES, capabilities=FixedCapabilities(replace(PROVED, files_paths=True))) as rig:
        answer = await delete(rig, *(f"renders/j//{number}" for number in range(20)), token=6)
        assert answer.body.count(b"<Deleted>") == 20
        assert [request.raw_query for request in rig.upstream.requests] == ["versioning", "delete"]
