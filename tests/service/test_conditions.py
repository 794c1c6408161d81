"""R4: what a send is conditioned on, and what happens when the state has moved."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.errors import Reason
from gateway.upstream.memory import MemoryResponse
from tests.service.between import held
from tests.service.rig import DEAF, HONEST, JOB, Fault, Payload, refusal, rig
from tests.service.sent import conditions, elsewhere
from tests.virtual_time import run


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
        learning = held(r.store, "raise_floor")
        finder = asyncio.create_task(r.delete(33))
        await learning.reached.wait()
        body.give(b"a" * 10)
        body.end()
        await asyncio.sleep(1)
        assert r.data() == b"B"
        learning.go_on.set()
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
        look = held(r.upstream, "read")
        old = asyncio.create_task(r.put(33, b"A2"))
        await look.reached.wait()
        live = await r.fences.admit("j", 34, cause="check")
        r.fences.unpin(live)
        look.go_on.set()
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


@pytest.mark.parametrize("name", ["if-modified-since", "if-unmodified-since"])
def test_a_date_is_no_condition_of_a_write(name) -> None:
    """S3 knows none of a PUT or DELETE. A store that knows them (SeaweedFS) would refuse the state that it is in, again
    and again."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        for method, body in (("PUT", Payload(b"B")), ("DELETE", None)):
            said = [(name, "Mon, 01 Jan 2035 00:00:00 GMT")]
            await r.writes.fenced(r.write(method, JOB, 33, body, headers=said))
            sent = dict(r.upstream.sent[-1].headers)
            assert "if-match" in sent
            assert name not in sent

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


def test_where_conditions_are_required_and_not_proved_nothing_is_sent() -> None:
    """`conditional = "require"`: 503 before the write."""

    async def main() -> None:
        r = await rig(capabilities=DEAF)
        r.writes.conditions._require = True
        assert (await refusal(r.put(33, b"A"))).reason is Reason.UPSTREAM_UNAVAILABLE
        assert r.upstream.sent == []

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
