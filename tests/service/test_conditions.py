"""R4: what a send is conditioned on, and what happens when the state has moved."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.errors import Reason
from gateway.s3.errors import S3Error
from gateway.s3.fencing import object_metadata
from gateway.service.waits import Timing
from gateway.upstream.memory import MemoryResponse
from tests.service.rig import BUCKET, DEAF, HONEST, JOB, Fault, Payload, refusal, rig, rule
from tests.virtual_time import run


def conditions(r) -> list[tuple[str, str]]:
    """The preconditions that went upstream, in order."""
    return [(n, v) for request in r.upstream.sent for n, v in request.headers if n in ("if-match", "if-none-match")]


async def elsewhere(r, token: int, data: bytes, key: str = JOB, fence_key: str = "j") -> None:
    """Another gateway, or one with a database that is lost, writes the object."""
    write = r.write("PUT", key, token, None)
    from gateway.upstream.base import UpstreamRequest

    headers = object_metadata(fence_key, token, f"elsewhere{token}") if token else ()
    r.upstream.apply(UpstreamRequest("PUT", BUCKET, write.head.raw_key, "", headers), data)


def test_a_new_object_costs_one_request_and_an_overwrite_is_conditioned_on_the_last_state() -> None:
    """Nothing known: If-None-Match; afterwards If-Match on the ETag that was answered."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        etag = r.object().etag
        await r.put(33, b"A2")
        assert conditions(r) == [("if-none-match", "*"), ("if-match", etag)]

    run(main())


def test_a_fenced_object_bears_key_token_and_nonce() -> None:
    """The object remembers who wrote it."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        metadata = dict(r.object().metadata)
        assert metadata["x-amz-meta-fencing-key"] == "j"
        assert metadata["x-amz-meta-fencing-token"] == "33"
        assert metadata["x-amz-meta-fencing-nonce"]

    run(main())


@pytest.mark.parametrize("size", [10, 100], ids=["at hand", "streamed"])
def test_an_object_with_a_higher_token_refuses_and_raises_the_floor(size) -> None:
    """G4: the database knows nothing, the object bears 34: 33 is stale, and the floor is 34 from then on."""

    async def main() -> None:
        r = await rig()
        await elsewhere(r, 34, b"B")
        error = await refusal(r.put(33, b"a" * size))
        assert error.reason is Reason.STALE_TOKEN
        assert error.floor == 34
        assert r.data() == b"B"
        assert await r.floor() == 34

    run(main())


def test_a_higher_token_that_another_write_has_found_is_no_condition() -> None:
    """G4, found by the explorer: while the floor is being raised to what a look has found, a write that waits for its
    body does not take what was found for the state to replace."""

    async def main() -> None:
        r = await rig()
        body = Payload(length=10)
        slow = asyncio.create_task(r.put(33, body))
        await body.wanted.wait()
        await elsewhere(r, 34, b"B")
        learning, learn = asyncio.Event(), asyncio.Event()
        raise_floor = r.store.raise_floor

        async def slow_raise(key, token, event=None):
            learning.set()
            await learn.wait()
            return await raise_floor(key, token, event)

        r.store.raise_floor = slow_raise
        finder = asyncio.create_task(r.delete(33))
        await learning.wait()
        body.give(b"a" * 10)
        body.end()
        await asyncio.sleep(1)
        assert r.data() == b"B"
        learn.set()
        assert (await refusal(finder)).reason is Reason.STALE_TOKEN
        assert (await refusal(slow)).reason is Reason.STALE_TOKEN
        assert r.data() == b"B"

    run(main())


def test_a_moved_state_is_looked_at_and_sent_again() -> None:
    """The object changed past the gateway: a body at hand goes again with the fresh condition."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await elsewhere(r, 33, b"other")
        other = r.object().etag
        assert (await r.put(33, b"A2")).status == 200
        assert r.data() == b"A2"
        assert conditions(r)[-1] == ("if-match", other)

    run(main())


def test_a_streamed_body_cannot_be_sent_again_and_says_so() -> None:
    """503 StateMoved, nothing written; the client's retry passes."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        body = Payload(length=100)
        writing = asyncio.create_task(r.put(33, body))
        await body.wanted.wait()
        await elsewhere(r, 33, b"other")
        body.give(b"x" * 100)
        body.end()
        error = await refusal(writing)
        assert error.reason is Reason.STATE_MOVED
        assert r.data() == b"other"
        assert (await r.put(33, b"x" * 100)).status == 200

    run(main())


def test_a_resend_is_admitted_anew() -> None:
    """Counterexample of R4: overtaken while it looked at the moved state, a writer does not send again."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await elsewhere(r, 33, b"other")
        looked = asyncio.Event()
        go_on = asyncio.Event()
        read = r.upstream.read

        async def slow_read(request, body=b""):
            looked.set()
            await go_on.wait()
            return await read(request, body)

        r.upstream.read = slow_read
        old = asyncio.create_task(r.put(33, b"A2"))
        await looked.wait()
        live = await r.fences.admit("j", 34, cause="check")
        r.fences.unpin(live)
        go_on.set()
        assert (await refusal(old)).reason is Reason.STALE_TOKEN
        assert r.data() == b"other"

    run(main())


def test_bodies_at_hand_go_one_after_another_for_each_object() -> None:
    """Twenty writes of one token to one object: each conditioned on the one before, none sent twice."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"0")
        await asyncio.gather(*(r.put(33, b"%d" % n) for n in range(20)))
        assert len(r.upstream.sent) == 21

    run(main())


def test_a_delete_is_conditioned_and_absence_is_answered_only_after_a_look() -> None:
    """A DELETE of what is gone sends nothing; one of what has come back since is sent."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        etag = r.object().etag
        assert (await r.delete(33)).status == 204
        assert conditions(r)[-1] == ("if-match", etag)
        sent = len(r.upstream.sent)
        assert (await r.delete(33)).status == 204
        assert len(r.upstream.sent) == sent
        await elsewhere(r, 33, b"back")
        assert (await r.delete(33)).status == 204
        assert r.data() is None

    run(main())


def test_a_delete_in_a_bucket_that_does_not_exist_is_passed_on() -> None:
    """Absence of the bucket is not absence of the object."""

    async def main() -> None:
        r = await rig()
        write = r.write("DELETE", JOB, 33, None)
        write.bucket = "nosuchbucket"
        result = await r.writes.fenced(write)
        assert result.status == 404
        assert result.code == "NoSuchBucket"

    run(main())


def test_a_stale_delete_is_refused_by_the_object() -> None:
    """G4 for DELETE: the object bears a higher token."""

    async def main() -> None:
        r = await rig()
        await elsewhere(r, 34, b"B")
        assert (await refusal(r.delete(33))).reason is Reason.STALE_TOKEN
        assert r.data() == b"B"

    run(main())


def test_without_conditions_nothing_is_conditioned() -> None:
    """Where the upstream has proved nothing the gate alone orders."""

    async def main() -> None:
        r = await rig(capabilities=DEAF)
        await r.put(33, b"A")
        await r.put(33, b"A2")
        await r.delete(33)
        assert conditions(r) == []

    run(main())


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ((("if-none-match", "*"),), "PreconditionFailed"),
        ((("if-match", '"0123456789abcdef0123456789abcdef"'),), "PreconditionFailed"),
        ((("if-match", 'W/"7fc56270e7a70fa81a5935b72eacbe29"'),), "PreconditionFailed"),
        ((("if-none-match", '"0123456789abcdef0123456789abcdef"'),), "NotImplemented"),
        ((("if-match", '"x"'), ("if-none-match", "*")), "NotImplemented"),
    ],
)
def test_the_clients_own_condition_keeps_its_meaning(headers, code) -> None:
    """S3's own answer, without a fencing reason; the object stays."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        with pytest.raises(S3Error) as caught:
            await r.put(33, b"A2", headers=headers)
        assert caught.value.code == code
        assert r.data() == b"A"

    run(main())


def test_the_head_is_judged_before_the_clients_own_condition() -> None:
    """G4: If-Match on the very ETag that a higher token wrote is stale all the same."""

    async def main() -> None:
        r = await rig()
        await elsewhere(r, 34, b"B")
        error = await refusal(r.put(33, b"A", headers=(("if-match", r.object().etag),)))
        assert error.reason is Reason.STALE_TOKEN
        assert r.data() == b"B"

    run(main())


@pytest.mark.parametrize("size", [1, 100], ids=["at hand", "streamed"])
@pytest.mark.parametrize("files_paths", [True, False], ids=["files paths", "plain"])
def test_a_folder_in_the_objects_place_takes_the_write(files_paths, size) -> None:
    """Where keys are filed as paths a folder may be absent to a HEAD and there to a demand of absence: a PUT would
    never get through. A streamed one does when sent again. Elsewhere nothing goes without its condition."""

    async def main() -> None:
        r = await rig(capabilities=replace(HONEST, files_paths=files_paths))
        apply = r.upstream.apply

        def with_a_folder(request, body):
            if request.method == "PUT" and ("if-none-match", "*") in request.headers:
                return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
            return apply(request, body)

        r.upstream.apply = with_a_folder
        if not files_paths:
            assert (await refusal(r.put(33, b"x" * size))).reason is Reason.STATE_MOVED
            assert r.data() is None
            return
        if size > 16:
            assert (await refusal(r.put(33, b"x" * size))).reason is Reason.STATE_MOVED
        assert (await r.put(33, b"x" * size)).status == 200
        assert (await r.put(34, b"B")).status == 200
        assert conditions(r)[-1][0] == "if-match"
        r.upstream.apply = apply
        assert (await r.delete(34)).status == 204
        assert (await r.put(34, b"C")).status == 200
        assert conditions(r)[-1] == ("if-none-match", "*"), "what was believed of the folder ended with the first write"

    run(main())


def test_a_412_to_a_look_that_demands_nothing_is_no_object() -> None:
    """R4: what a store cannot mean is not taken for a state of the object; nothing is sent on the strength of it."""

    async def main() -> None:
        r = await rig()
        apply = r.upstream.apply
        r.upstream.apply = lambda request, body: (
            MemoryResponse(412, [], b"") if request.method == "HEAD" else apply(request, body)
        )
        assert (await refusal(r.put(33, b"x" * 100))).reason is Reason.UPSTREAM_UNAVAILABLE
        assert r.data() is None

    run(main())


def test_the_clients_own_condition_can_hold() -> None:
    """If-Match on the present ETag and If-None-Match on an absent object write."""

    async def main() -> None:
        r = await rig()
        assert (await r.put(33, b"A", headers=(("if-none-match", "*"),))).status == 200
        assert (await r.put(33, b"A2", headers=(("if-match", r.object().etag),))).status == 200
        several = f'"another", {r.object().etag}'
        assert (await r.put(33, b"A3", headers=(("if-match", several),))).status == 200
        assert r.data() == b"A3"

    run(main())


def test_a_late_landing_does_not_replace_what_came_after() -> None:
    """G3: what was sent before the doubt is conditioned on a state that has gone."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(33, b"A2"))
        await r.put(33, b"A3")
        r.upstream.land()
        assert r.data() == b"A3"

    run(main())


# --- whose object it is


def test_without_a_rule_an_object_belongs_to_the_key_that_wrote_it() -> None:
    """R9: another key is a mismatch; none, with a token, is a mismatch; none without is told that one is required."""

    async def main() -> None:
        r = await rig(rule("nothing", None))
        await r.put(5, b"K", key="o", fence_key="K")
        assert (await refusal(r.put(6, b"M", key="o", fence_key="M"))).reason is Reason.KEY_MISMATCH
        assert (await refusal(r.put(6, b"x", key="o"))).reason is Reason.KEY_MISMATCH
        assert (await refusal(r.put(0, b"x", key="o"))).reason is Reason.TOKEN_REQUIRED
        assert r.data("o") == b"K"
        assert (await r.put(6, b"K2", key="o", fence_key="K")).status == 200

    run(main())


def test_the_object_itself_says_whose_it_is() -> None:
    """R9: the store knows nothing, the metadata does."""

    async def main() -> None:
        r = await rig(rule("nothing", None))
        await elsewhere(r, 5, b"K", key="o", fence_key="K")
        assert (await refusal(r.put(6, b"M", key="o", fence_key="M"))).reason is Reason.KEY_MISMATCH
        assert r.data("o") == b"K"

    run(main())


@pytest.mark.parametrize("size", [10, 100], ids=["at hand", "streamed"])
def test_a_refused_key_is_refused_again(size) -> None:
    """R9, of the same kind: what the first refusal has seen does not become the second write's condition."""

    async def main() -> None:
        r = await rig(rule("nothing", None))
        await elsewhere(r, 5, b"K", key="o", fence_key="K")
        for _ in range(2):
            error = await refusal(r.put(6, b"M" * size, key="o", fence_key="M"))
            assert error.reason is Reason.KEY_MISMATCH
            assert r.data("o") == b"K"

    run(main())


def test_what_another_key_has_seen_of_a_higher_token_is_no_condition() -> None:
    """G4 under `rekey`, of the same kind: the head that M has looked at bears K's 9; K's 5 does not replace it."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        await elsewhere(r, 9, b"K", key="o", fence_key="K")
        r.upstream.faults.append(Fault.REFUSED_403)
        assert (await r.delete(1, key="o", fence_key="M")).status == 403
        assert (await refusal(r.put(5, b"old", key="o", fence_key="K"))).reason is Reason.STALE_TOKEN
        assert r.data("o") == b"K"

    run(main())


def test_rekey_lets_an_object_move() -> None:
    """R9: with `rekey` the next key takes the object over, and then it is its own."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        await r.put(5, b"K", key="o", fence_key="K")
        assert (await r.put(1, b"M", key="o", fence_key="M")).status == 200
        assert r.data("o") == b"M"
        assert await r.store.owner(BUCKET, "o") == "M"

    run(main())


def test_a_move_waits_for_the_other_keys_unsettled_send() -> None:
    """R9: K's send on the object is in doubt; M's waits, is told to come again, and passes when it is settled."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(5, b"K", key="o", fence_key="K"))
        error = await refusal(r.put(1, b"M", key="o", fence_key="M"))
        assert error.reason is Reason.HANDOVER_PENDING
        assert r.data("o") is None
        assert (await r.put(1, b"M", key="o", fence_key="M")).status == 200

    run(main())


def test_who_waits_for_another_key_is_told_which() -> None:
    """R9: an operator finds the send in doubt by it, and can settle it there."""

    async def main() -> None:
        r = await rig(rule("loose/**", None, rekey=True), timing=Timing(handover_wait_s=0.1), capabilities=DEAF)
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(5, b"K", "loose/o", fence_key="k"))
        error = await refusal(r.put(1, b"M", "loose/o", fence_key="m"))
        assert error.reason is Reason.HANDOVER_PENDING
        assert "A write of 'k' on this object" in error.message
        assert len(await r.fences.settle("k", None, "the store was wiped")) == 1
        assert (await r.put(1, b"M", "loose/o", fence_key="m")).status == 200

    run(main())


def test_of_two_keys_that_claim_at_once_one_is_refused() -> None:
    """R9 also where the upstream honours no condition: K and M meet on an unowned object."""

    async def main() -> None:
        r = await rig(rule("nothing", None), capabilities=DEAF)
        r.upstream.faults = [Fault.SILENT]
        tasks = [asyncio.create_task(r.put(5, key.encode(), key="o", fence_key=key)) for key in ("K", "M")]
        await r.upstream.reached.wait()
        await asyncio.sleep(0)
        r.upstream.silent.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if isinstance(result, Exception)]
        assert [error.reason for error in refused] == [Reason.KEY_MISMATCH]
        assert len(r.upstream.sent) == 1

    run(main())


def test_after_a_crash_an_object_that_may_move_waits() -> None:
    """R9: M would take the object over, and K's doubt from before the crash is known to nobody."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        await r.put(1, b"M", key="other", fence_key="M")
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(5, b"K", key="o", fence_key="K"))
        await r.store.stop(clean=False)
        r = await rig(rule("**", None, rekey=True), store=r.store, upstream=r.upstream)
        assert (await refusal(r.put(1, b"M", key="o", fence_key="M"))).reason is Reason.HANDOVER_PENDING
        await asyncio.sleep(30)
        assert (await r.put(1, b"M", key="o", fence_key="M")).status == 200

    run(main())
