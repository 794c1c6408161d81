"""One seed: a gateway and its clients, from the first request until all is quiet, and what is wrong with it then."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.core.errors import FenceError
from gateway.service.job_errors import JobError
from gateway.service.records import LAPSE_S
from gateway.service.values import Result
from gateway.stores.values import UploadState
from tests.checker.history import Setting
from tests.checker.judge import judge
from tests.checker.rules import DATABASE_LOST, Violation
from tests.simulation.actors import Tokens, Worker, key_of
from tests.simulation.chance import BUCKET, SWITCHED, Chance
from tests.simulation.gateway import REBUILD_S, Gateway
from tests.simulation.holders import Holder
from tests.simulation.objects import ObjectStore
from tests.simulation.owners import judge_owners
from tests.simulation.quiet import busy_in
from tests.simulation.story import Story
from tests.simulation.wire import TIMING
from tests.virtual_time import VirtualClock, run

STEPS = 14
QUIET_S = 1000.0
"""After so long without faults nothing may be under way any more: longer than every time-out."""
FORGED = 10**9
"""So far apart are tokens that somebody has drawn himself, from each other and from those of leases."""
SWITCHED_WITHIN_S = (0, 0, 0.01, 0.2, 1, 5)
FRESH_TOKEN = 1000
"""Higher than all before."""
REVOKED_S = 100.0
"""After so long what has been overtaken is aborted."""


@dataclass(slots=True)
class Outcome:
    """What came of a seed."""

    seed: int
    story: Story
    violations: list[Violation]

    @property
    def guarantees(self) -> list[str]:
        return sorted({violation.guarantee for violation in self.violations})

    def told(self) -> str:
        """For people: the violations, and the story with the lines that prove them marked."""
        numbers = frozenset(n for violation in self.violations for n in violation.lines)
        return "\n".join([*map(str, self.violations), "", self.story.transcript(numbers)])


def simulate(seed: int, *, steps: int = STEPS, without: Collection[str] = ()) -> Outcome:
    """Run a seed. The same arguments bring the same story, to the letter."""
    simulation = Simulation(seed, steps, without)
    with silence():
        try:
            run(simulation.main())
        except Exception as error:
            simulation.broken.append(_breakage(error))
    return Outcome(seed, simulation.story, [*judge(simulation.story.lines), *simulation.broken])


@contextmanager
def silence() -> Iterator[None]:
    """Without the gateway's own log."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _breakage(error: BaseException) -> Violation:
    """The program itself has failed."""
    return Violation("program", f"{type(error).__name__}: {error}", (1,))


class Simulation:
    """One seed on its way."""

    def __init__(self, seed: int, steps: int, without: Collection[str]) -> None:
        self.chance = Chance(seed, without)
        self.story = Story(Setting(self.chance.conditional, onlooker=True, lapse_s=LAPSE_S))
        self.broken: list[Violation] = []
        self._steps = steps
        self._stream = self.chance.stream("main")
        self._tokens = Tokens()
        self._marks: Counter[str] = Counter()
        self._workers: dict[asyncio.Task[None], None] = {}
        self._hired = 0
        self._forged = 0
        self.gateway: Gateway
        """The one whose floors hold."""
        self._gateways: list[Gateway] = []
        """All that are about: another one is put before the bucket, and takes it over."""

    async def main(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._fault)
        self._objects, self._clock = ObjectStore(self.story, self.chance), VirtualClock()
        self.gateway = await self._begin_gateway()
        for _ in range(self._steps):
            self._step()
            await self._pass(self._stream.choice(self.chance.pace.between_s))
            if self.chance.happens("crash", "crash", self.chance.weather.crash):
                self.gateway.died.set()
            elif self.chance.happens("crash", "stop", self.chance.weather.crash / 2):
                stopped = self.gateway  # by the time that it has, another may have the bucket
                await stopped.stop()
                await stopped.start()
            for gateway in list(self._gateways):
                if gateway.died.is_set():
                    await self._restart(gateway)
            if self.chance.versioned:
                self._switch_versioning()
            if self.chance.recorded:
                await self._meddle()
        await self._calm_down()
        for gateway in self._gateways:
            await gateway.end()

    async def _begin_gateway(self) -> Gateway:
        gateway = Gateway(self.chance, self._objects, self._clock)
        gateway.rules_bucket = not self._gateways
        self._gateways.append(gateway)
        await gateway.start()
        return gateway

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Whatever ends in the loop's own hands is a fault, but for a raise or a completion that failed after its
        caller had gone."""
        error = context.get("exception") or AssertionError(context["message"])
        if not isinstance(error, FenceError | JobError):
            self.broken.append(_breakage(error))

    async def _pass(self, seconds: float) -> None:
        """Let time go by, or until the gateway dies."""
        try:
            async with asyncio.timeout(seconds):
                await self.gateway.died.wait()
        except TimeoutError:
            pass

    async def _restart(self, gateway: Gateway) -> None:
        await gateway.crash()
        alone = len(self._gateways) == 1
        lost = alone and self.chance.happens("crash", DATABASE_LOST, self.chance.database_lost)
        to_rebuild = lost and gateway.lose_database()
        await asyncio.sleep(self.chance.pause("crash", 0, 0, 1, 20))
        await gateway.start()
        if self.chance.happens("crash", "stop", 0.4):
            await self._pass(self._stream.choice((0, 1, 5)))
            await gateway.stop()
            await gateway.start()
        if to_rebuild:
            await self._perhaps_until(self._work(gateway.rebuild()))

    def _work(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(what)
        self._workers[task] = None
        return task

    async def _perhaps_until(self, rebuilt: asyncio.Task[None]) -> None:
        """Let the bucket be rebuilt, or the gateway die, before anything else comes in; or not."""
        if self.chance.stream("operator").random() < 0.7:
            died = asyncio.create_task(self.gateway.died.wait())
            await asyncio.wait({rebuilt, died}, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
            died.cancel()

    def _switch_versioning(self) -> None:
        """Soon, while requests are under way."""
        if self.chance.happens("versions", "versioning-switched", SWITCHED):
            self.story.faults["versioning-switched"] += 1
            soon_s = self.chance.stream("versions").choice(SWITCHED_WITHIN_S)
            asyncio.get_running_loop().call_later(soon_s, self._objects.switch_versioning)

    # --- whose the bucket is

    async def _meddle(self) -> None:
        """A backup is made, the bucket's record deleted, another gateway put before the bucket."""
        alone = len(self._gateways) == 1
        if self.chance.stream("record").random() < 0.15:
            self.gateway.keep_backup()
        if alone and self._objects.recorded and self.chance.happens("record", "record-lost", 0.02):
            self.story.fault("record-lost")
            self._objects.lose_record()
        if alone and self._objects.recorded and self.chance.happens("record", "taken-over", 0.03):
            self.gateway.given_up = True
            rival = await self._begin_gateway()
            await self._perhaps_until(self._work(self._take_over(rival)))

    async def _take_over(self, rival: Gateway) -> None:
        def taken_over() -> None:
            self.gateway.rules_bucket, rival.rules_bucket = False, True
            self.gateway = rival

        self._objects.takes_over = rival.disk.authority.database
        self._objects.on_taken_over = taken_over
        await asyncio.sleep(self.chance.pause("operator", 0, 5, 40))
        await rival.rebuild()

    # --- who comes in

    def _step(self) -> None:
        if self.chance.happens("clients", "client-gone", self.chance.weather.client):
            self.gateway.disconnect_one()
        what = self._stream.choices((self._next, self._late, self._tokenless, self._release), (6, 5, 2, 1))[0]
        self._work(what(self._hire))

    def _hire(self, key: str | None, token: int) -> Worker:
        self._hired += 1
        return Worker(self._door(), f"w{self._hired}", key, token, self._marks)

    def _door(self) -> Gateway:
        """The gateway that somebody asks; some go on asking one that has lost its bucket."""
        if len(self._gateways) > 1 and self.chance.stream("operator").random() < 0.2:
            return self.chance.stream("operator").choice(self._gateways)
        return self.gateway

    def _a_key(self) -> str | None:
        return self._stream.choice(("j", "j", "k", None))

    async def _next(self, hire: Any) -> None:
        """A job changes hands, by the gateway's own lease or by another service's, of which the first write tells."""
        key, name = self._a_key(), self._stream.choice(self.chance.objects)
        if self.chance.leased:
            await self._holder(key, name).work_under_lease()
            return
        worker = hire(key, self._tokens.next(key_of(key, name)))
        leased = self._stream.random() < 0.5
        if leased and (await worker.grant(name)).stop:
            return
        await worker.work()

    def _holder(self, key: str | None, name: str, gateway: Gateway | None = None) -> Holder:
        self._hired += 1
        return Holder(gateway or self._door(), f"h{self._hired}", key, name, self._marks, self._tokens)

    async def _late(self, hire: Any) -> None:
        """One who holds a token that may long have been overtaken."""
        key, name = self._a_key(), self._stream.choice(self.chance.objects)
        newest = self._tokens.last[key_of(key, name)]
        token = max(0, newest - self._stream.choice((0, 0, 1, 2)))
        if self.chance.leased and self.chance.stream("lease").random() < 0.15:
            await self._forge(key, name)
        elif self.chance.leased and self.chance.stream("lease").random() < 0.1:
            await self._holder(key, name).reopen()
        else:
            await hire(key, token).work()

    async def _forge(self, key: str | None, name: str) -> None:
        """One who has drawn his token himself: where a lease has been granted, none that no lease has issued passes
        (R10)."""
        self._forged += 1
        worker = self._hire(key, FORGED * self._forged)
        leased = self._tokens.leased.get(key_of(key, name))
        reply = await worker.put_plain(name)
        passed = isinstance(reply.result, Result) and reply.result.status < 300
        if passed and leased == worker.gateway.disk.authority.database:
            self.broken.append(Violation("R10", f"{worker.name} has drawn its token itself", (len(self.story.lines),)))

    async def _tokenless(self, hire: Any) -> None:
        await hire(self._a_key(), 0).work()

    async def _release(self, hire: Any) -> None:
        key, name = self._a_key(), self._stream.choice(self.chance.objects)
        token = self._tokens.last[key_of(key, name)]
        if token:
            await hire(key, token).seal(name)

    # --- the end

    async def _calm_down(self) -> None:
        """No more faults: everybody ends, everything settles, and a fresh token can write."""
        for gateway in self._gateways:
            await gateway.calm()
        self.story.note("calm")
        if self._workers:
            await asyncio.wait(list(self._workers), timeout=QUIET_S)
        self._wait_for_ever()
        # A record that a gateway had sent when its database was lost may land after the next one has looked.
        if self.chance.recorded and await self.gateway.rig.writes.records.look_at(BUCKET):
            try:
                await asyncio.wait_for(self.gateway.rebuild(), 3 * REBUILD_S)
            except TimeoutError:
                self._break("the bucket cannot be rebuilt")
        for _ in range(10):
            await asyncio.sleep(QUIET_S / 10)
            young = any(gateway.age_s <= TIMING.settle_timeout_assembly_s for gateway in self._gateways)
            if not (busy := list(self._busy())) and not young:
                break
        for what in busy:
            self._break(what)
        await self._writable()
        await asyncio.sleep(REVOKED_S)
        for what in self._busy():
            self._break(what)
        await self._not_revoked()
        self.broken.extend(judge_owners(self.story.lines))
        for what in self._objects.misfenced:
            self.broken.append(Violation("R4", what, (1,)))

    def _break(self, what: str) -> None:
        self.broken.append(Violation("quiet", what, (len(self.story.lines),)))

    def _wait_for_ever(self) -> None:
        for task in self._workers:
            if not task.done():
                self._break("a client waits for ever")
            elif not task.cancelled() and (error := task.exception()) is not None:
                self.broken.append(_breakage(error))

    def _busy(self) -> Iterator[str]:
        """What is pinned, staged, unsettled or locked."""
        for gateway in self._gateways:
            yield from busy_in(gateway)
        if self._objects.under_way:
            yield "a request is still on its way"

    async def _writable(self) -> None:
        """A fresh token writes every object, without waiting. Not what no rule maps, once its owner has been forgotten
        with the database and not been read from the objects."""
        for name in self.chance.objects:
            told = self.chance.recorded and not self.story.faults["record-lost"]
            if name.startswith("free/") and self.story.faults[DATABASE_LOST] and not told:
                continue
            owner = self._objects.owner(name) or self.gateway.disk._owners.get((BUCKET, name), "j")
            key = None if owner.startswith("object:") else owner
            worker = Worker(self.gateway, f"last/{name}", key, FRESH_TOKEN, self._marks)
            began = asyncio.get_running_loop().time()
            if self.chance.leased:
                await self._write_under_lease(key, name)
                if self._objects.value(name) != f"v{self._marks['values']}" and self.story.faults[DATABASE_LOST]:
                    await self._write_under_lease(key, name)  # the object has told of a higher token
            else:
                await worker.put_plain(name)
            if (seen := self._objects.value(name)) != f"v{self._marks['values']}":
                self._break(f"after all is over {name} is {seen} and cannot be written under {key or 'its own key'}")
            if asyncio.get_running_loop().time() > began:
                self._break(f"after all is over a write of {name} has to wait")

    async def _write_under_lease(self, key: str | None, name: str) -> None:
        holder = self._holder(key, name, self.gateway)
        holder.queued = False
        await holder.reopen()
        if not await holder.acquire(0):
            self._break(f"after all is over there is no lease to be had for {name}")
        await holder.put_plain(name)
        await holder.release()

    async def _not_revoked(self) -> None:
        """What has been overtaken is aborted."""
        for upload in await self.gateway.disk.uploads.unfinished(None, 1000):
            floor = self.gateway.disk.durable(upload.fence_key).floor
            if upload.state is UploadState.REVOKED or (upload.state is UploadState.OPEN and upload.token < floor):
                self._break(f"the upload {upload.upload_id} of token {upload.token} is left, the floor is {floor}")
