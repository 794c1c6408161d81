"""Writes under keys whose tokens the gateway's own leases issue, from head to answer (R10, R3)."""

from __future__ import annotations

from gateway.core.keys import FencingKey, Rule, compile_rule
from gateway.stores.values import EventKind
from tests.server.rig import BUCKET, running
from tests.server.test_s3_batch import delete

RULES = [Rule(*compile_rule("renders/{job}/**", "{job}"))]
J = FencingKey("j")


async def test_a_lease_is_all_that_a_writer_needs() -> None:
    """Its token writes; who held the key before is refused from the grant on, and it itself from its release on."""
    async with running(rules=RULES) as rig:
        assert (await rig.put("renders/j/o", b"old", 33)).status == 200
        lease = await rig.gateway.leases.acquire(J, "A", 30)
        stale = await rig.put("renders/j/o", b"late", 33)
        assert (stale.status, stale.xml["FencingReason"], stale.xml["FencingFloor"]) == (412, "StaleToken", "34")
        assert (await rig.put("renders/j/o", b"new", lease.token)).status == 200
        await rig.gateway.leases.release(J, lease.token)
        sealed = await rig.put("renders/j/o", b"late", lease.token)
        assert (sealed.status, sealed.xml["FencingReason"]) == (412, "Sealed")


async def test_a_token_that_no_lease_has_issued_is_refused_whatever_it_would_do() -> None:
    """400 TokenNotIssued for a PUT, a delete, a batch, an upload and a copy; nothing is sent, and no floor rises."""
    async with running(rules=RULES) as rig:
        lease = await rig.gateway.leases.acquire(J, "A", 30)
        await rig.put("renders/j/o", b"A", lease.token)
        sent = len(rig.upstream.writes)
        token, target = lease.token + 1, f"/{BUCKET}/renders/j/o"
        said = [("x-fencing-token", str(token))]
        copy = ("x-amz-copy-source", f"{BUCKET}/renders/j/o")
        for answer in (
            await rig.put("renders/j/o", b"x", token),
            await rig.ask("DELETE", target, said),
            await rig.ask("POST", f"{target}?uploads", said),
            await rig.ask("PUT", target, [*said, copy]),
        ):
            assert (answer.status, answer.code, answer.xml["FencingReason"]) == (
                400,
                "InvalidArgument",
                "TokenNotIssued",
            )
            assert (answer.xml["FencingToken"], answer.xml["FencingFloor"]) == (str(token), str(lease.token))
            assert answer.header("retry-after") is None
        assert b"No lease has been granted with token 2" in (await delete(rig, "renders/j/o", token=token)).body
        assert len(rig.upstream.writes) == sent
        assert (await rig.fence("j")).floor == lease.token
        refused = await rig.events("j", EventKind.REFUSED)
        assert {event.detail.split(":")[0] for event in refused} == {"TokenNotIssued"}


async def test_an_object_without_a_rule_is_leased_by_its_own_name() -> None:
    """Then its writes need the token alone."""
    async with running(rules=()) as rig:
        key = FencingKey(f"object:{BUCKET}/frame.exr")
        first = await rig.gateway.leases.acquire(key, "A", 30)
        assert (await rig.put("frame.exr", b"A", first.token)).status == 200
        await rig.gateway.leases.release(key, first.token)
        second = await rig.gateway.leases.acquire(key, "B", 30)
        assert (await rig.put("frame.exr", b"late", first.token)).status == 412
        assert (await rig.put("frame.exr", b"B", second.token)).status == 200
