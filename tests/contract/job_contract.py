"""What every store promises of jobs (gateway/stores/job_base.py), a test for each promise.

Run as `tests.contract.stores` says.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.job import Completion, Job, JobState, Output, RetryPolicy
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.job_base import JobChange, Place, QueueLength
from gateway.stores.values import Event, EventKind, GrantWanted
from tests.contract.stores import RULES, Clock, OpenStore

POLICY = RetryPolicy(max_attempts=2, backoff_s=10)
NOW = 1_700_000_000.0


def job(key: str = "job", *, queue: str = "q", priority: int = 0, payload: str | None = '{"frame":1}') -> Job:
    return Job(key, queue, priority=priority, payload=payload, submitted_at=NOW, submission="once")


def wanted(holder: str = "A", *, instead_of: int = 0, delivery: str = "d1") -> GrantWanted:
    return GrantWanted(holder, 30.0, delivery, instead_of)


def completion(token: int = 1, result: str | None = '"done"') -> Completion:
    return Completion(token, "A", result, (Output("b", "renders/ä/1"),), NOW)


async def deliver(store: Store, key: str, wanted: GrantWanted) -> JobChange:
    return await store.jobs.deliver(key, wanted, Event(key, EventKind.GRANTED, 0, 0, wanted.holder))


async def delivered(store: Store, key: str = "job") -> Job:
    """A job that runs."""
    await store.jobs.submit(job(key))
    change = await deliver(store, key, wanted())
    assert change.done
    assert change.job is not None
    return change.job


async def kinds(store: Store, key: str = "job") -> list[EventKind]:
    await store.check()
    return [event.kind for event in await store.events(key, None, 20)]


class JobContract:
    # --- in line ------------------------------------------------------------------------------------------------

    async def test_submitted_once(self, store: Store) -> None:
        """The same key again changes nothing, whatever else it says; of many at once one is made."""
        changes = await asyncio.gather(*(store.jobs.submit(job(priority=n)) for n in range(16)))
        assert [change.done for change in changes].count(True) == 1
        kept = next(change.job for change in changes if change.done)
        assert all(change.job == kept for change in changes)
        assert await store.jobs.job("job") == kept

    async def test_an_unknown_job(self, store: Store) -> None:
        """There is none."""
        assert await store.jobs.job("job") is None

    async def test_line(self, store: Store) -> None:
        """The highest priority first, and among equals who came first; each queue for itself."""
        for key, priority in (("a", 0), ("b", 5), ("c", 0), ("d", -5), ("e", 5)):
            await store.jobs.submit(job(key, priority=priority))
        await store.jobs.submit(job("other", queue="r", priority=9))
        line = await store.jobs.waiting("q", 4)
        assert [(place.key, place.precedence) for place in line] == [("b", -5), ("e", -5), ("a", 0), ("c", 0)]
        assert line == sorted(line)
        assert [place.key for place in await store.jobs.waiting("r", 4)] == ["other"]
        assert await store.jobs.waiting("none", 4) == []

    async def test_lists_and_lengths(self, store: Store) -> None:
        """Pages by key, of a queue, of a state, of all; how many there are of each."""
        for key in ("c", "a", "b"):
            await store.jobs.submit(job(key))
        await store.jobs.submit(job("z", queue="r"))
        await deliver(store, "b", wanted())

        async def keys(queue: str | None, state: JobState | None, after: str = "", limit: int = 9) -> list[str]:
            return [one.key for one in await store.jobs.jobs(queue, state, after, limit)]

        assert await keys(None, None) == ["a", "b", "c", "z"]
        assert await keys("q", None, "a", 1) == ["b"]
        assert await keys("q", JobState.WAITING) == ["a", "c"]
        assert await keys(None, JobState.RUNNING) == ["b"]
        assert await store.jobs.queues() == [
            QueueLength("q", JobState.RUNNING, 1),
            QueueLength("q", JobState.WAITING, 2),
            QueueLength("r", JobState.WAITING, 1),
        ]

    # --- delivery -----------------------------------------------------------------------------------------------

    async def test_a_delivery_is_a_lease(self, store: Store, clock: Clock) -> None:
        """A fresh token above the floor, and the job runs under it; both in one."""
        await store.raise_floor("job", 33)
        await store.jobs.submit(job())
        change = await deliver(store, "job", wanted())
        assert change.done
        held = (await store.fence("job")).held
        assert held is not None
        assert (held.token, held.holder, held.id, held.at) == (34, "A", "d1", clock.now)
        assert change.job == await store.jobs.job("job") == (await store.jobs.running("", 9))[0]
        assert (change.job.state, change.job.token, change.job.attempts) == (JobState.RUNNING, 34, 1)
        assert await store.jobs.waiting("q", 9) == []
        await store.check()
        told = (await store.events("job", None, 1))[0]
        assert (told.kind, told.token, told.detail) == (EventKind.GRANTED, 34, "A")

    async def test_of_many_deliveries_at_once_one_is_made(self, store: Store) -> None:
        """Two workers never get the same job."""
        await store.jobs.submit(job())
        changes = await asyncio.gather(*(deliver(store, "job", wanted(f"w{n}")) for n in range(16)))
        assert sorted(change.done for change in changes) == [False] * 15 + [True]
        assert {change.fence.floor for change in changes} == {0, 1} or {c.fence.floor for c in changes} == {1}

    async def test_what_is_not_delivered(self, store: Store) -> None:
        """Neither what is not there, nor what somebody leases, nor what has been completed without the queue."""
        assert not (await deliver(store, "none", wanted())).done
        await store.jobs.submit(job())
        await store.grant("job", wanted("B"))
        refused = await deliver(store, "job", wanted())
        assert (refused.done, refused.fence.floor) == (False, 1)
        assert refused.job is not None
        assert refused.job.state is JobState.WAITING
        assert (await store.jobs.complete("job", completion())).done
        assert not (await deliver(store, "job", wanted())).done

    async def test_delivered_by(self, store: Store) -> None:
        """A delivery's jobs are found by the request that it answered, as long as they run by it."""
        for key in "ba":
            await delivered(store, key)
        assert [one.key for one in await store.jobs.delivered_by("d1")] == ["b", "a"]
        await store.jobs.release("a", 1)
        await deliver(store, "a", wanted(delivery="d2"))
        assert [one.key for one in await store.jobs.delivered_by("d1")] == ["b"]

    async def test_running_pages(self, store: Store) -> None:
        """All that run, key after key."""
        for key in "cab":
            await delivered(store, key)
        assert [one.key for one in await store.jobs.running("", 2)] == ["a", "b"]
        assert [one.key for one in await store.jobs.running("b", 2)] == ["c"]

    # --- what becomes of it ---------------------------------------------------------------------------------------

    async def test_lapse(self, store: Store) -> None:
        """The job waits at its old place; its token is not sealed and may go on, until another is delivered."""
        first = await delivered(store)
        change = await store.jobs.lapse("job", 1, POLICY)
        assert change.done
        assert await store.jobs.waiting("q", 9) == [Place(0, first.serial, "job")]
        assert (await store.fence("job")).held is not None
        assert not (await store.jobs.lapse("job", 1, POLICY)).done
        assert (await store.jobs.renew("job", 1)).done
        assert not (await store.jobs.renew("job", 1)).done
        await store.jobs.lapse("job", 1, POLICY)
        assert (await deliver(store, "job", wanted("B", instead_of=1))).done
        assert not (await store.jobs.renew("job", 1)).done
        assert not (await store.jobs.lapse("job", 1, POLICY)).done

    async def test_dead_after_the_last_attempt(self, store: Store) -> None:
        """What lapses too often is dead, and its end is in the history in the same transaction."""
        await delivered(store)
        await store.jobs.lapse("job", 1, POLICY)
        await deliver(store, "job", wanted(instead_of=1))
        change = await store.jobs.lapse("job", 2, POLICY)
        assert change.job is not None
        assert change.job.state is JobState.DEAD
        assert (await kinds(store))[0] is EventKind.DEAD_LETTERED
        assert await store.jobs.waiting("q", 9) == []

    async def test_undelivered(self, store: Store) -> None:
        """A delivery that nobody was told of counts no attempt, and its job waits a while."""
        await delivered(store)
        change = await store.jobs.undeliver("job", 1, NOW + 5)
        assert change.job is not None
        assert (change.job.state, change.job.attempts, change.job.available_at) == (JobState.DELAYED, 0, NOW + 5)
        assert not (await store.jobs.undeliver("job", 1, NOW + 5)).done

    async def test_release(self, store: Store) -> None:
        """Given back at once: the token is sealed, no attempt counts; a second time it does nothing."""
        await delivered(store)
        change = await store.jobs.release("job", 1)
        assert change.done
        assert change.job is not None
        assert (change.job.state, change.job.attempts) == (JobState.WAITING, 0)
        assert (await store.fence("job")).sealed_token == 1
        assert not (await store.jobs.release("job", 1)).done
        assert (await deliver(store, "job", wanted())).done

    async def test_failure_and_delay(self, store: Store) -> None:
        """A failed job waits for its moment, and then stands in line again."""
        await delivered(store)
        change = await store.jobs.fail("job", 1, POLICY, now=NOW, error="no disk")
        assert change.job is not None
        assert (change.job.state, change.job.error) == (JobState.DELAYED, "no disk")
        assert (await store.fence("job")).sealed_token == 1
        assert (await kinds(store))[0] is EventKind.FAILED
        assert await store.jobs.next_due() == NOW + 10
        assert await store.jobs.due(NOW + 9.9, 10) == []
        assert [one.key for one in await store.jobs.due(NOW + 10, 10)] == ["job"]
        assert await store.jobs.next_due() is None
        assert [place.key for place in await store.jobs.waiting("q", 9)] == ["job"]

    async def test_failure_for_good(self, store: Store) -> None:
        """No other attempt: dead, and told as dead."""
        await delivered(store)
        change = await store.jobs.fail("job", 1, POLICY, now=NOW, error="broken scene", retry=False)
        assert change.job is not None
        assert change.job.state is JobState.DEAD
        assert (await kinds(store))[0] is EventKind.DEAD_LETTERED

    async def test_delays_go_by_their_moment(self, store: Store) -> None:
        """What is due first comes first, and no more than asked for."""
        for key, delay_s in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
            await delivered(store, key)
            await store.jobs.fail(key, 1, POLICY, now=NOW, error="", delay_s=delay_s)
        assert [one.key for one in await store.jobs.due(NOW + 100, 2)] == ["b", "c"]
        assert await store.jobs.next_due() == NOW + 30

    @pytest.mark.parametrize("token", [0, 2, 7])
    async def test_another_token_changes_nothing(self, store: Store, token: int) -> None:
        """No decision is taken for a token that is not the holder's."""
        before = await delivered(store)
        fence = await store.fence("job")
        for change in (
            await store.jobs.renew("job", token),
            await store.jobs.lapse("job", token, POLICY),
            await store.jobs.release("job", token),
            await store.jobs.fail("job", token, POLICY, now=NOW, error=""),
            await store.jobs.complete("job", completion(token)),
        ):
            assert (change.done, change.fence, change.job) == (False, fence, before)

    async def test_an_overtaken_token_changes_nothing(self, store: Store) -> None:
        """Who has been replaced ends nobody else's job."""
        await delivered(store)
        await store.jobs.lapse("job", 1, POLICY)
        await deliver(store, "job", wanted("B", instead_of=1))
        now = await store.jobs.job("job")
        for change in (
            await store.jobs.release("job", 1),
            await store.jobs.fail("job", 1, POLICY, now=NOW, error=""),
            await store.jobs.complete("job", completion(1)),
        ):
            assert (change.done, change.job) == (False, now)

    # --- completion -----------------------------------------------------------------------------------------------

    async def test_completed_once(self, store: Store) -> None:
        """Token, result and outputs are recorded and the token sealed, in one; the first of two is kept."""
        await delivered(store)
        first, second = await asyncio.gather(
            store.jobs.complete("job", completion()), store.jobs.complete("job", completion(result='"other"'))
        )
        assert (first.done, second.done) == (True, False)
        fence = await store.fence("job")
        assert (fence.completed_token, fence.sealed_token) == (1, 1)
        kept = await store.jobs.job("job")
        assert kept is not None
        assert (kept.state, kept.completion) == (JobState.COMPLETED, completion())
        assert second.job == kept
        assert (await kinds(store)).count(EventKind.COMPLETED) == 1

    async def test_completed_after_it_ran_out(self, store: Store) -> None:
        """A holder whom nobody has replaced may complete: waiting, or dead, the job is done."""
        await delivered(store)
        await store.jobs.lapse("job", 1, replace(POLICY, max_attempts=1))
        assert (await store.jobs.complete("job", completion())).done
        assert await store.jobs.waiting("q", 9) == []

    async def test_a_key_without_a_queue_is_completed(self, store: Store) -> None:
        """A plain lease, and a token that came from elsewhere, complete a job that no queue knows."""
        await store.grant("leased", wanted())
        await store.raise_floor("foreign", 33)
        for key, token in (("leased", 1), ("foreign", 33)):
            change = await store.jobs.complete(key, completion(token, None))
            assert change.done
            assert change.job is not None
            assert (change.job.queue, change.job.completion) == (None, completion(token, None))
            assert not (await store.jobs.submit(job(key))).done
            assert (await store.grant(key, wanted())).token == 0
        assert await store.jobs.queues() == []

    async def test_a_sealed_token_completes_nothing(self, store: Store) -> None:
        """What has been released is not completed."""
        await delivered(store)
        await store.jobs.release("job", 1)
        assert not (await store.jobs.complete("job", completion())).done

    async def test_reopened(self, store: Store) -> None:
        """On an operator's word a job is delivered again, with a higher token and all its attempts."""
        await delivered(store)
        assert not (await store.jobs.reopen("job", "too early")).done
        await store.jobs.complete("job", completion())
        change = await store.jobs.reopen("job", "wrong scene")
        assert change.done
        assert change.job is not None
        assert (change.job.state, change.job.attempts, change.job.completion) == (JobState.WAITING, 0, None)
        assert (await kinds(store))[0] is EventKind.REOPENED
        again = await deliver(store, "job", wanted())
        assert (again.done, again.fence.floor) == (True, 2)
        assert not (await store.jobs.complete("job", completion(1))).done

    async def test_reopened_without_a_queue(self, store: Store) -> None:
        """There is no job any more, and the key may be leased again."""
        await store.grant("leased", wanted())
        await store.jobs.complete("leased", completion())
        change = await store.jobs.reopen("leased", "again")
        assert (change.done, change.job) == (True, None)
        assert await store.jobs.job("leased") is None
        assert (await store.grant("leased", wanted())).token == 2

    async def test_reopened_and_submitted_at_once(self, store: Store) -> None:
        """The new job of a queue has nothing of the one without a queue whose place it takes."""
        await store.grant("leased", wanted())
        await store.jobs.complete("leased", completion())
        new = job("leased", payload='"new"', priority=7)
        _, change = await asyncio.gather(store.jobs.reopen("leased", "again"), store.jobs.submit(new))
        assert change.done
        assert await store.jobs.job("leased") == change.job
        assert [place.key for place in await store.jobs.waiting("q", 9)] == ["leased"]

    async def test_dead_jobs_are_reopened(self, store: Store) -> None:
        """A dead letter may be tried again."""
        await delivered(store)
        await store.jobs.fail("job", 1, POLICY, now=NOW, error="", retry=False)
        assert (await store.jobs.reopen("job", "fixed")).done
        assert [place.key for place in await store.jobs.waiting("q", 9)] == ["job"]

    # --- restart and bad input ------------------------------------------------------------------------------------

    async def test_a_restart_keeps_all(self, open_store: OpenStore) -> None:
        """Waiting, running, delayed, completed: as they were, also after a crash; serials go on."""
        store = await open_store()
        await store.start(RULES)
        for key in ("run", "done", "late"):
            await delivered(store, key)
        await store.jobs.complete("done", completion())
        await store.jobs.fail("late", 1, POLICY, now=NOW, error="e")
        await store.jobs.submit(job("wait", payload=None))
        before = await store.jobs.jobs(None, None, "", 9)
        await store.stop(clean=False)
        store = await open_store()
        await store.start(RULES)
        assert await store.jobs.jobs(None, None, "", 9) == before
        new = (await store.jobs.submit(job("new"))).job
        assert new is not None
        assert new.serial > max(one.serial for one in before)
        await store.stop(clean=True)

    async def test_a_closed_store_refuses(self, open_store: OpenStore) -> None:
        """Every call says that the store cannot be used."""
        store = await open_store()
        await store.start(RULES)
        await store.stop(clean=True)
        for call in (store.jobs.submit(job()), store.jobs.job("job"), store.jobs.waiting("q", 1), store.jobs.queues()):
            with pytest.raises(StoreUnavailable):
                await call

    async def test_text_without_utf_8_is_refused(self, store: Store) -> None:
        """Before anything is written."""
        for call in (
            store.jobs.submit(job("\ud800")),
            store.jobs.submit(job(payload='"\ud800"')),
            deliver(store, "job", wanted("\ud800")),
            store.jobs.complete("job", completion(result="\ud800")),
        ):
            with pytest.raises(ValueError, match="UTF-8"):
                await call
