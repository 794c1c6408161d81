"""A client of the gateway: each request recorded with its answer, and sent again as SDKs do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gateway.core.errors import FenceError, Refused
from gateway.core.write import Answer as Meaning
from gateway.s3.errors import S3Error, of_fence
from gateway.s3.xml import parse_batch_result
from gateway.service.job_errors import JobError
from gateway.service.lease_errors import LeaseError, Lost
from gateway.service.leases import Lease
from gateway.service.refusals import store_unavailable
from gateway.service.values import Result
from gateway.stores.base import StoreUnavailable
from tests.checker.history import ANY, Answer, Call
from tests.service.rig import Payload
from tests.simulation.chance import BUCKET, Chance
from tests.simulation.gateway import ConnectionLost, Gateway
from tests.simulation.objects import attempt

ATTEMPTS = 3
BACKOFF_S = (0.1, 1, 5, 25)


@dataclass(slots=True)
class Wish:
    """What is asked for; every attempt asks for the same."""

    operation: str
    key: str
    token: int
    object: str = ""
    value: str | None = ANY
    bytes: str = ""
    fenced: bool = True

    def call(self, name: str, at: tuple[float, float]) -> Call:
        where = f"{BUCKET}/{self.object}" if self.object else ""
        return Call(at, name, self.operation, self.key, self.token, where, self.value, self.bytes, self.fenced)


@dataclass(slots=True)
class Reply:
    """What the last attempt came to."""

    result: Any = None
    error: Exception | None = None

    @property
    def stop(self) -> bool:
        """The fence has said that somebody else holds the job."""
        return isinstance(self.error, Refused | Lost)


class Client:
    """One who sends requests."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self.gateway, self.name = gateway, name
        self.chance: Chance = gateway.chance
        self._calls = 0

    async def ask(self, wish: Wish, send: Callable[[], Awaitable[Any]], *, attempts: int = ATTEMPTS) -> Reply:
        """Send until there is an answer that tells to stop, as SDKs do: again after a 500, 503 or a reset."""
        reply = Reply()
        for left in reversed(range(attempts)):
            reply = await self.once(wish, send)
            again = isinstance(reply.error, ConnectionLost) or (
                isinstance(reply.error, FenceError) and of_fence(reply.error).status >= 500
            )
            if not again or not left:
                break
            await asyncio.sleep(self.chance.pause(self.name, *BACKOFF_S))
        return reply

    async def once(self, wish: Wish, send: Callable[[], Awaitable[Any]]) -> Reply:
        """One attempt."""
        await self.gateway.up.wait()
        name = self._begin(wish)
        attempt.set({wish.object: (name, wish.token)} if wish.object else {})
        reply = await self._served(send)
        if reply.error is not None:
            self._refused(name, reply.error)
        else:
            self._answered(name, wish, reply.result)
        return reply

    async def ask_of_each(
        self, wishes: dict[str, Wish], send: Callable[[dict[str, FenceError]], Awaitable[Any]]
    ) -> Reply:
        """One attempt at a DeleteObjects: in the history a call for each object. `send` notes what is refused."""
        await self.gateway.up.wait()
        names = {one: self._begin(wish) for one, wish in wishes.items()}
        attempt.set({one: (name, wishes[one].token) for one, name in names.items()})
        refused: dict[str, FenceError] = {}
        reply = await self._served(lambda: send(refused))
        if reply.error is not None or reply.result.status >= 300:
            for one, wish in wishes.items():
                if reply.error is not None:
                    self._refused(names[one], reply.error)
                else:
                    self._answered(names[one], wish, reply.result)
            return reply
        deleted, failed = parse_batch_result(reply.result.body)
        codes = {error.key: error.code for error in failed}
        for one, name in names.items():
            story = self.gateway.story
            if one in refused:
                self._refused(name, refused[one])
            elif one in codes:
                story.add(Answer(name, story.now, 403 if codes[one] == "AccessDenied" else 500))
            else:
                assert one in {each.key for each in deleted}, f"the answer says nothing of {one}"
                token = wishes[one].token
                story.add(Answer(name, story.now, 200, floor=token if token and wishes[one].fenced else -1))
        return Reply(error=next(iter(refused.values()), None))

    def _begin(self, wish: Wish) -> str:
        self._calls += 1
        name = f"{self.name}.{self._calls}"
        call = wish.call(name, self.gateway.story.now)
        if not wish.object and not self.covered(wish):
            call.fenced = False  # G2 covers what one gateway tells; the record keeps another's writes out, not its word
        self.gateway.story.add(call)
        return name

    def covered(self, wish: Wish) -> bool:
        """Whether the gateway is the one that the wish is for."""
        return self.gateway.rules_bucket

    async def _served(self, send: Callable[[], Awaitable[Any]]) -> Reply:
        async def run() -> Any:
            return await send()

        try:
            return Reply(result=await self.gateway.serve(run()))
        except (ConnectionLost, FenceError, S3Error, LeaseError, JobError) as error:
            return Reply(error=error)
        except StoreUnavailable as error:
            return Reply(error=store_unavailable(error))

    def _refused(self, name: str, error: Exception) -> None:
        story = self.gateway.story
        if isinstance(error, S3Error):
            story.add(Answer(name, story.now, error.status))
            story.note(f"   {error.code}")
        elif isinstance(error, FenceError):
            floor = -1 if error.floor is None else error.floor
            story.add(Answer(name, story.now, of_fence(error).status, error.outcome.value, floor))
            story.note(f"   {error.reason}: {error.message}")
        elif isinstance(error, LeaseError | JobError):
            story.add(Answer(name, story.now, 409))
            story.note(f"   {type(error).__name__}: {error}")
        else:
            story.note(f"<< {name} no answer")

    def _answered(self, name: str, wish: Wish, result: Any) -> None:
        story = self.gateway.story
        if isinstance(result, Result):
            # What no fence covers is answered as the store answered; its client reads the document.
            empty = not wish.fenced and wish.operation == "CopyObject" and b"<ETag>" not in result.body
            lost = result.answer is Meaning.LOST or (result.status == 200 and empty)
            status = 500 if lost else result.status
            tells = wish.fenced and bool(wish.token) and status < 300 and wish.operation != "AbortMultipartUpload"
            story.add(Answer(name, story.now, status, floor=wish.token if tells else -1))
        else:
            token = result.token if isinstance(result, Lease) else 0
            story.add(Answer(name, story.now, 200, token=token, by=self.gateway.disk.authority.database))


class SlowBody(Payload):
    """A body that comes in pieces, with pauses, and may turn out not to be what its head promised."""

    def __init__(self, data: bytes, gateway: Gateway, name: str) -> None:
        super().__init__(length=len(data))
        self._data, self._chance, self._name = data, gateway.chance, name
        self._story = gateway.story

    async def pieces(self) -> AsyncIterator[list[bytes]]:
        for start in range(0, len(self._data), 40):
            if pause_s := self._pause_s():
                await asyncio.sleep(pause_s)
            yield [self._data[start : start + 40]]
        if self._chance.happens(self._name, "bad-body", self._chance.weather.client):
            self._story.fault("bad-body", self._name)
            raise S3Error("BadDigest", "The Content-MD5 you specified did not match what we received.", 400)
        if pause_s := self._pause_s():
            await asyncio.sleep(pause_s)

    def _pause_s(self) -> float:
        return self._chance.pause(self._name, *self._chance.pace.body_s)
