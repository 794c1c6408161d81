"""Workers of a run that write: each holds a lease now and then and changes the objects of its job.

They are honest: they look at their lease before each write. A worker that is stopped between its look and its write, or
in the middle of it, is a zombie when it goes on; a stubborn one does not look at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from gateway.s3.claim import STREAMING_SIGNED, UNSIGNED_PAYLOAD
from gateway.s3.xml import parse_batch_result
from tests.chaos.client import Client, Pause, told
from tests.chaos.recorder import Recorder
from tests.chaos.referee import next_token
from tests.chaos.world import BUCKET, CLIENT, FOR_GOOD, JOBS, OBJECTS, PASSING, RULED_JOBS, World, claim, payload, place
from tests.end_to_end.wire import Answer

LEASE_S = 1.0
ATTEMPTS = 3
FINAL = range(200, 500)


@dataclass(frozen=True, slots=True)
class Lease:
    job: str
    token: int
    until: float
    """By the holder's own monotonic clock, from before it asked."""

    @property
    def held(self) -> bool:
        return time.monotonic() < self.until


class Writer:
    """One worker."""

    def __init__(self, directory: Path, name: str, seed: str) -> None:
        self._directory = directory
        self._name = name
        self._random = random.Random(seed)
        self._recorder = Recorder(directory, name)
        self._client = Client(World.load(directory).gateway, CLIENT)
        self._serial = 0

    async def run(self) -> None:
        """For ever."""
        while True:
            lease = await self._lease()
            stubborn = self._random.random() < 0.3
            writes = self._random.randint(2, 8)
            while writes and (lease.held or stubborn):
                writes -= 1
                if not await self._write(lease) and not stubborn:
                    break  # refused: the job is another's

    async def _lease(self) -> Lease:
        while True:
            job, since = self._random.choice(JOBS), time.monotonic()
            if token := await next_token(self._directory, job, LEASE_S):
                return Lease(job, token, since + LEASE_S)
            await asyncio.sleep(self._random.uniform(0.01, 0.1))

    def _value(self, size: int) -> str:
        self._serial += 1
        return f"{self._name}-{self._serial}.{size}"

    async def _write(self, lease: Lease) -> bool:
        """Some write, sent again as SDKs do; whether the job still seems to be ours."""
        do = self._random.choices((self._small, self._large, self._copy, self._delete, self._batch), (8, 5, 2, 2, 1))[0]
        return await do(lease)

    async def _small(self, lease: Lease) -> bool:
        name = self._random.choice(OBJECTS)
        token = 0 if lease.job in RULED_JOBS and self._random.random() < 0.05 else lease.token
        return await self._put(lease.job, token, name, self._random.randint(100, 3000))

    async def _large(self, lease: Lease) -> bool:
        async def pause() -> None:
            await asyncio.sleep(self._random.uniform(0, 0.4))

        name = self._random.choice(FOR_GOOD)
        return await self._put(lease.job, lease.token, name, self._random.randint(66_000, 400_000), pause)

    async def _put(self, job: str, token: int, name: str, size: int, pause: Pause | None = None) -> bool:
        value = self._value(size)
        mode = self._random.choice(("hex", UNSIGNED_PAYLOAD, STREAMING_SIGNED))
        headers = (*claim(job, token), ("x-amz-meta-value", value))

        async def attempt() -> Answer | None:
            call = self._begin("PutObject", job, token, name, value)
            answer = await self._client.send(
                "PUT", place(job, name), payload(value), headers=headers, mode=mode, pause=pause
            )
            told(self._recorder, call, answer)
            return answer

        return await self._attempts(attempt)

    async def _copy(self, lease: Lease) -> bool:
        """A copy of what is written for it alone, so that it is known what it brings."""
        value = self._value(self._random.randint(100, 3000))
        source = f"sources/{value}"
        meta = (("x-amz-meta-value", value),)
        call = self._recorder.call("PutObject", "", 0, f"{BUCKET}/{source}", value, fenced=False)
        made = await self._client.send("PUT", source, payload(value), headers=meta)
        told(self._recorder, call, made)
        if made is None or made.status != 200:
            return True
        name = self._random.choice(("copied", "gone"))
        headers = (*claim(lease.job, lease.token), ("x-amz-copy-source", f"/{BUCKET}/{source}"))

        async def attempt() -> Answer | None:
            call = self._begin("CopyObject", lease.job, lease.token, name, value)
            answer = await self._client.send("PUT", place(lease.job, name), headers=headers)
            told(self._recorder, call, answer)
            return answer

        return await self._attempts(attempt)

    async def _delete(self, lease: Lease) -> bool:
        name = self._random.choice(PASSING)

        async def attempt() -> Answer | None:
            call = self._begin("DeleteObject", lease.job, lease.token, name, None)
            answer = await self._client.send("DELETE", place(lease.job, name), headers=claim(lease.job, lease.token))
            told(self._recorder, call, answer)
            return answer

        return await self._attempts(attempt)

    async def _batch(self, lease: Lease) -> bool:
        keys = {place(lease.job, name): name for name in PASSING}
        listed = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
        body = f"<Delete>{listed}</Delete>".encode()
        digest = b64encode(hashlib.md5(body).digest()).decode()
        headers = (*claim(lease.job, lease.token), ("content-md5", digest))

        async def attempt() -> Answer | None:
            calls = {key: self._begin("DeleteObjects", lease.job, lease.token, keys[key], None) for key in keys}
            answer = await self._client.send("POST", "", body, query="delete=", headers=headers)
            self._batch_told(calls, answer)
            return answer

        return await self._attempts(attempt)

    def _batch_told(self, calls: dict[str, str], answer: Answer | None) -> None:
        """Each object's own outcome. That the fence refused it says its code; of any other error nobody knows more."""
        if answer is None or answer.status != 200:
            for call in calls.values():
                told(self._recorder, call, answer)
            return
        deleted, errors = parse_batch_result(answer.body)
        for one in deleted:
            self._recorder.answer(calls[one.key], 200)
        for error in errors:
            stale = error.code == "PreconditionFailed"
            self._recorder.answer(calls[error.key], 412 if stale else 500, "NotApplied" if stale else "Unknown")

    def _begin(self, operation: str, job: str, token: int, name: str, value: str | None) -> str:
        return self._recorder.call(operation, job, token, f"{BUCKET}/{place(job, name)}", value)

    async def _attempts(self, attempt: Pause) -> bool:
        """Again while it is not refused; whether it is not."""
        for _ in range(ATTEMPTS):
            answer = await attempt()
            if answer is not None and answer.status in FINAL:
                return bool(answer.status < 300)
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
        return True
