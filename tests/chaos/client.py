"""An S3 client of a run: signs, sends in pieces, records. What it sends it sends once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.s3.sigv4 import Credentials
from tests.chaos.recorder import Recorder
from tests.chaos.world import BUCKET, address, value_of
from tests.end_to_end.wire import Answer, Conversation, request

ANSWER_BOUND_S = 12.0
LOST = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError, IndexError)
"""How a connection ends without a whole answer."""
Headers = tuple[tuple[str, str], ...]
Pause = Callable[[], Awaitable[Any]]


class Client:
    """Requests under one pair of credentials to one bucket."""

    def __init__(self, url: str, credentials: Credentials, bucket: str = BUCKET) -> None:
        self.bucket = bucket
        self._address = address(url)
        self._host = "{}:{}".format(*self._address)
        self._credentials = credentials

    async def send(
        self,
        method: str,
        key: str,
        data: bytes = b"",
        *,
        query: str = "",
        headers: Headers = (),
        mode: str = "hex",
        pause: Pause | None = None,
    ) -> Answer | None:
        """One request to the bucket's object `key`, or to the bucket; None: no whole answer came. `pause` is awaited
        before the last byte of the body is sent, all others having been."""
        path = f"/{self.bucket}/{key}" if key else f"/{self.bucket}"
        made = request(method, self._host, path, data, self._credentials, mode=mode, query=query, headers=headers)
        conversation = None
        try:
            conversation = await Conversation.open(self._address)
            if pause is not None and made.body:
                await conversation.send(made.head + made.body[:-1])
                await pause()
                await conversation.send(made.body[-1:])
            else:
                await conversation.send(made.head + made.body)
            return await conversation.answer(ANSWER_BOUND_S, bodiless=method == "HEAD")
        except LOST:
            return None
        finally:
            if conversation is not None:
                conversation.close()


def told(recorder: Recorder, call: str, answer: Answer | None) -> None:
    """Record what a call was answered."""
    if answer is not None:
        floor = answer.headers.get("x-fencing-floor", "-1")
        recorder.answer(call, answer.status, answer.headers.get("x-fencing-outcome", ""), int(floor))


async def look(client: Client, recorder: Recorder, name: str) -> None:
    """Read an object and record what is there. What is not there is recorded only where the answer names the key."""
    since = time.monotonic()
    answer = await client.send("GET", name)
    if answer is None:
        return
    if answer.status == 200:
        value = value_of(answer.body)
        if value != answer.headers.get("x-amz-meta-value"):
            value = f"{value} under the metadata of {answer.headers.get('x-amz-meta-value')}"
        recorder.seen(since, f"{client.bucket}/{name}", value)
    elif answer.status == 404 and b"<Code>NoSuchKey</Code>" in answer.body:
        recorder.seen(since, f"{client.bucket}/{name}", None)


async def glance(client: Client, recorder: Recorder, name: str) -> None:
    """The same by a HEAD, whose metadata names the value."""
    since = time.monotonic()
    answer = await client.send("HEAD", name)
    if answer is not None and answer.status == 200:
        recorder.seen(since, f"{client.bucket}/{name}", answer.headers.get("x-amz-meta-value", "nobody's"))
