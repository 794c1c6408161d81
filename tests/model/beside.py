"""The model's steps and the real service side by side: the same schedule through both, and the same verdicts.

The service runs over a disk and a store that wait at each of their steps (`tests.model.waiting`). A schedule lets one
of them go on; what the service then does by itself, up to its next wait, the model has to be able to follow, and both
have to end up with the same floors, the same objects, the same memory of them, and the same answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from gateway.core.errors import FenceError, Outcome, TryAgain
from gateway.core.keys import FencingKey, Token
from gateway.core.write import ABSENT as NO_STATE
from gateway.s3.fencing import META_NONCE, META_TOKEN
from gateway.service.values import Result
from gateway.service.waits import Timing
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryUpstream
from tests.model import sending, steps
from tests.model.size import Op, Size
from tests.model.waiting import KEY, Asked, Disk, Store, asked
from tests.model.world import ABSENT, FORGOTTEN, NO_OBJECT, At, NoChange, Request, Way, first
from tests.service.rig import BUCKET, DEAF, HONEST, Payload, Rig, rig, rule
from tests.virtual_time import VirtualClock

OBJECT = f"renders/{KEY}/out"
TICK_S = 30.0
ROUNDS = 40
"""Turns of the loop after which all that can go on has gone on."""
TIMING = Timing(
    settle_timeout_s=TICK_S, settle_timeout_assembly_s=2 * TICK_S, handover_wait_s=1e9, commit_timeout_s=1e9
)
OPS = (Op.PUT, Op.PUT, Op.STREAM, Op.DELETE)


@dataclass
class Beside:
    """A schedule on its way."""

    seed: int
    honoured: bool
    size: Size
    random: random.Random = field(init=False)
    story: list[str] = field(default_factory=list)
    live: list[Asked] = field(default_factory=list)
    adrift: list[Asked] = field(default_factory=list)
    """Whose request has ended, or whose process has, and whose send may still land."""
    verdicts: dict[str, int] = field(default_factory=dict)
    service: Rig = field(init=False)
    contents: dict[str, int] = field(default_factory=dict)
    """By ETag."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.w = first(self.size)
        self.disk, self.store = Disk(self._nothing_to_raise), Store(self._chased)
        self._number = 0
        self._clock = VirtualClock()

    async def play(self, moves: int) -> None:
        """Raises `AssertionError` where the two part."""
        await self._start()
        for _ in range(moves):
            choices = list(self._choices())
            if not choices:
                break
            await self._make(self.random.choice(choices))
        await self._cut()

    # --- what may happen next

    def _choices(self) -> Iterator[tuple[Any, ...]]:
        w = self.w
        for op in OPS if w.writes else ():
            yield ("arrive", op, self.random.choice(self.size.tokens))
        if w.grants:
            yield ("arrive", Op.GRANT, self.random.choice(self.size.tokens) or 1)
        for one in self.live:
            if one.waits == "land":
                yield from (("go", one, what) for what in ("land", "land", "land"))
                yield from (("go", one, what) for what in ("reset", "500", "403") if w.faults)
            elif one.waits == "answer":
                yield ("go", one, "answer")
                yield from (("go", one, what) for what in ("reset", "500") if w.faults)
            elif one.waits:
                yield ("go", one, one.waits)
            elif one.body is not None and one.model is not None and one.model.at is At.STAGED:
                yield ("go", one, "commit")
        yield from (("land adrift", one) for one in self.adrift)
        if self.disk.lazy.get(KEY, 0) > self.disk.durable.completed_floor:
            yield ("flush",)
        if any(action[0] == "tick" for action in steps.enabled(w)):
            yield ("tick",)
        if w.crashes:
            yield ("crash",)
        if w.losses:
            yield ("lose the database",)
        if w.stops and not w.requests and not self.live:
            yield ("stop",)

    async def _make(self, move: tuple[Any, ...]) -> None:
        match move:
            case ("arrive", op, token):
                await self._arrive(op, token)
            case ("go", one, what):
                self._tell(f"{one.told}: {what}")
                await self._go(one, what)
            case ("land adrift", one):
                self._tell(f"{one.told} lands late")
                self._act("land adrift", self.w.adrift.index(one.flight))
                self.store.apply(*one.sent)
                self.adrift.remove(one)
            case ("flush",):
                self._tell("flush")
                self.disk.flush()
                self._act("flush", 0)
            case ("tick",):
                self._tell("tick")
                await asyncio.sleep(TICK_S)
                self._act("tick")
            case (name,):
                self._tell(name)
                await self._end_run(name)
        await self._follow()
        self._compare()

    async def _arrive(self, op: Op, token: int) -> None:
        self._number += 1
        content = ABSENT if op in (Op.DELETE, Op.GRANT) else self._number
        one = Asked(f"{self._number} {op.name} {token}", None)
        self._tell(f"{one.told} arrives")
        if op is Op.STREAM:
            one.data = f"c{content}".encode().ljust(100, b".")
            one.body = Payload(length=100)
            one.body.give(one.data[:60])
        elif op is Op.PUT:
            one.data = f"c{content}".encode().ljust(12, b".")
            one.body = None
        self._remember(one.data, content)
        known = set(map(id, self.w.requests))
        self.live.append(one)
        self._last_verdict = "applied"
        try:
            self._act("arrive", op, 0, 0, token, content)
        except NoChange:
            one.verdict = "refused"
        else:
            one.model = next((r for r in self.w.requests if id(r) not in known), None)
            one.verdict = one.verdict or ("" if one.model else self._last_verdict)
        one.task = asyncio.create_task(self._serve(one, op, token))

    def _remember(self, data: bytes, content: int) -> None:
        probe = MemoryUpstream(BUCKET)
        answer = probe.apply(UpstreamRequest("PUT", BUCKET, "probe", "", ()), data)
        self.contents[answer.header("etag") or ""] = content

    async def _serve(self, one: Asked, op: Op, token: int) -> str:
        asked.set(one)
        service = self.service
        try:
            if op is Op.GRANT:
                live = await service.fences.admit(FencingKey(KEY), Token(token), cause="check")
                service.fences.unpin(live)
                return "applied"
            if op is Op.DELETE:
                result = await service.delete(token, OBJECT)
            else:
                result = await service.put(token, one.body or Payload(one.data), OBJECT)
        except FenceError as error:
            return _refusal(error)
        return _verdict(result)

    async def _go(self, one: Asked, what: str) -> None:
        r = one.model
        assert r is not None
        if what == "commit":
            assert one.body is not None
            one.body.give(one.data[60:])
            one.body.end()
            return  # the model follows
        if what in ("land", "answer", "reset", "500", "403", "disk", "learn", "look", "judge"):
            assert one.go is not None
            self._act(what, self.w.requests.index(r))
            one.go.set_result(what)

    async def _end_run(self, how: str) -> None:
        await self._cut()
        if how == "stop":
            self.disk.flush()
            fences = self.service.fences
            await self.disk.stop(clean=not fences.unsettled() and not fences.earlier_run.unsettled)
        self.disk.lazy.clear()
        self.adrift += [one for one in self.live if one.sent is not None and one.flight is not None]
        self.live.clear()
        self._act(how)
        if how == "lose the database":
            self.disk = Disk(self._nothing_to_raise)
        await self._start()

    async def _start(self) -> None:
        capabilities = HONEST if self.honoured else DEAF
        self.service = await rig(
            rule(),
            capabilities=capabilities,
            timing=TIMING,
            store=self.disk,
            upstream=self.store,  # type: ignore[arg-type]
            clock=self._clock,
        )

    async def _cut(self) -> None:
        """The process is gone, and all that it was about."""
        await self.service.uploads.bindings.stop()
        await self.service.writes.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the model follows

    async def _follow(self) -> None:
        """Let the service go on to its next waits, and the model with it, request by request."""
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        moved = True
        while moved:
            moved = False
            for one in list(self.live):
                moved = self._follow_one(one) or moved
        for one in list(self.live):
            self._require(
                self._agrees(one), f"{one.told} waits for {self._place(one)!r}, in the model it is {one.model}"
            )
        self.adrift = [one for one in self.adrift if one.flight is not None and one.flight.way is Way.UNDER_WAY]

    def _follow_one(self, one: Asked) -> bool:
        """One more step of the model's by itself; whether there was one."""
        assert one.task is not None
        if not one.task.done():
            # Whether it waits for its hand-over or for its turn is not to be seen; it waits for no more than it has to.
            admitted = one.model is None or one.model.at not in (At.HAND_OVER, At.UNCONTESTED)
            return not (admitted and self._agrees(one)) and self._step(one)
        if self._step(one):
            return True
        r = one.model
        if r is not None and r in self.w.requests:
            return False
        self.live.remove(one)
        one.verdict = one.verdict or self._verdicts.get(id(r), "applied")
        told = one.task.result()
        self._require(told == one.verdict, f"{one.told} is answered {told}, by the model {one.verdict}")
        self.verdicts[told] = self.verdicts.get(told, 0) + 1
        if one.sent is not None and one.flight is not None:
            self.adrift.append(one)
        return True

    def _step(self, one: Asked) -> bool:
        """What a request in the model does next without anybody's help."""
        r = one.model
        if r is None or r not in self.w.requests or r.at not in _BY_ITSELF:
            return False
        try:
            self._act(_BY_ITSELF[r.at], self.w.requests.index(r))
        except NoChange:
            return False
        one.flight = r.flight
        return True

    def _agrees(self, one: Asked) -> bool:
        place, r = self._place(one), one.model
        if r is None or r not in self.w.requests:
            return place == "done" and r is None
        if r.at is At.SENT:
            assert r.flight is not None
            return place == ("land" if r.flight.way is Way.UNDER_WAY else "answer")
        return place == _PLACES.get(r.at, "")

    def _place(self, one: Asked) -> str:
        assert one.task is not None
        if one.task.done():
            return "done"
        staged = one.body is not None and one.body.wanted.is_set() and one.sent is None
        return one.waits or ("body" if staged else "")

    def _nothing_to_raise(self, one: Asked) -> None:
        """The floor is on disk already: the service goes on at once."""
        r = one.model
        if r is not None and r in self.w.requests and r.at is At.RAISING:
            self._act("disk", self.w.requests.index(r))
            self._act("learn", self.w.requests.index(r))

    def _chased(self, one: Asked) -> None:
        """The service looks for the nonce of a send in doubt, by itself."""
        assert one.sent is None or one.flight is not None
        if one.flight in self.w.adrift and one.flight.nonce == self.w.objects[0][3] != 0:
            self._act("chase", self.w.adrift.index(one.flight))

    def _act(self, *action: Any) -> None:
        steps.act(self.w, action)

    # --- both have come to the same

    def _compare(self) -> None:
        w, live = self.w, self.service.fences.gates.get(FencingKey(KEY))
        gate = w.gates[0]
        if live is not None:
            real = live.gate
            mine = (real.floor, real.completed_floor, real.sealed_token, sorted(s.token for s in real.unsettled()))
            its = (gate.floor, gate.completed_floor, gate.sealed_token, sorted(s.token for s in gate.unsettled()))
            self._require(mine == its, f"the gate is {mine}, in the model {its}")
        fence, durable = w.fences[0], self.disk.durable
        self._require(
            (durable.floor, durable.completed_floor) == (fence.floor, fence.completed_floor),
            f"on disk is {durable}, in the model {fence}",
        )
        stored = self.store.buckets[BUCKET].get(OBJECT)
        borne = {} if stored is None else dict(stored.metadata)
        seen = (ABSENT, 0) if stored is None else (self.contents[stored.etag], int(borne.get(META_TOKEN, "0")))
        self._require(seen == (w.objects[0][0], w.objects[0][2]), f"the object is {seen}, in the model {w.objects[0]}")
        self._require((META_NONCE in borne) == bool(w.objects[0][3]), "the object's nonce")
        entry = self.service.writes.objects._entries.get((BUCKET, OBJECT))
        state = None if entry is None else entry.state
        if state is None:
            memory = FORGOTTEN
        elif state is NO_STATE:
            memory = NO_OBJECT
        else:
            memory = (self.contents[state.etag or ""], 0, state.token, 0)
        self._require(memory == w.memory[0], f"remembered is {memory}, in the model {w.memory[0]}")

    def _require(self, holds: bool, what: str) -> None:
        assert holds, f"seed {self.seed}: {what}\n" + "\n".join(self.story)

    def _tell(self, what: str) -> None:
        self.story.append(what)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear how the model answers."""
        self._verdicts: dict[int, str] = {}
        self._last_verdict = ""
        self._kept: list[Request] = []
        end = sending.end

        def heard(w: Any, r: Request, *, applied: bool = False, again: bool = False, unknown: bool = False) -> None:
            told = "applied" if applied else "again" if again else "refused"
            self._verdicts[id(r)] = self._last_verdict = told + (" unknown" if unknown else "")
            self._kept.append(r)  # so that no other takes its id
            end(w, r, applied=applied, again=again, unknown=unknown)

        with patch.object(sending, "end", heard):
            yield


_BY_ITSELF = {
    At.HAND_OVER: "hand over",
    At.UNCONTESTED: "uncontested",
    At.READY: "commit",
    At.STAGED: "commit",
}
_PLACES = {
    At.RAISING: "disk",
    At.RAISED: "learn",
    At.LOOKING: "look",
    At.LOOKED: "judge",
    At.STAGED: "body",
}


def _refusal(error: FenceError) -> str:
    told = "again" if isinstance(error, TryAgain) else "refused"
    return told + (" unknown" if error.outcome is Outcome.UNKNOWN else "")


def _verdict(result: Result) -> str:
    return "applied" if result.status < 300 else "refused"


def sized(seed: int) -> tuple[Size, bool]:
    """How much may happen."""
    draw = random.Random(f"size {seed}")
    honoured = draw.random() < 0.7
    size = Size(
        "beside", OPS, tokens=draw.choice([(1, 2), (1, 2, 3), (0, 1, 2)]), writes=draw.choice([2, 3, 5, 8]),
        grants=draw.choice([0, 1, 2]), faults=draw.choice([0, 1, 3]), crashes=draw.choice([0, 0, 1]),
        stops=draw.choice([0, 0, 1]), losses=draw.choice([0, 0, 0, 1]), honoured=honoured, retries=0,
    )  # fmt: skip
    return replace(size), honoured
