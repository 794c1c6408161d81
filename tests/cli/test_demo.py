"""How the demonstration is judged, and what it is made of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import aiohttp
import pytest
from standardwebhooks import Webhook

from gateway.cli import demo
from gateway.cli.demo import Timeline, run
from gateway.cli.demo_gateway import DemoGateway
from gateway.cli.demo_processes import DemoFault, Endpoint, WorkerProcess, workers
from gateway.cli.demo_receiver import Receiver
from gateway.cli.demo_task import Task
from gateway.cli.demo_verdict import Answer, WithGateway, WithoutGateway

OK = Answer(200)
AS_TOLD = WithGateway(
    tokens=(1, 2, 3),
    attempts_a=2,
    left_by_x=None,
    upload_b=OK,
    completion_b=OK,
    late_upload=Answer(412, "PreconditionFailed", "StaleToken", "2", "3"),
    late_completion=Answer(409, "", "completed", 3),
    status_a=1,
    winner="B",
    completed_by=3,
    announced=("completed:job-1:3",),
)


def test_the_story_has_no_fault() -> None:
    """What the story tells is as told, in both parts."""
    assert AS_TOLD.faults() == []
    assert WithoutGateway(OK, OK, "A").faults() == []


@pytest.mark.parametrize(
    ("otherwise", "fault"),
    [
        ({"tokens": (1, 1, 3)}, "higher"),
        ({"attempts_a": 1}, "second attempt"),
        ({"left_by_x": "X"}, "no object"),
        ({"upload_b": Answer(503)}, "B's upload"),
        ({"completion_b": Answer(409, "", "output-not-verified")}, "B's completion"),
        ({"late_upload": OK}, "412"),
        ({"late_upload": Answer(412, "PreconditionFailed", "Sealed")}, "412"),
        ({"late_upload": Answer(0, "ConnectionClosedError")}, "412"),
        ({"late_completion": OK}, "409"),
        ({"late_completion": Answer(409, "", "completed", 2)}, "409"),
        ({"late_completion": Answer(412, "", "stale")}, "409"),
        ({"status_a": 0}, "stopped itself"),
        ({"winner": "A"}, "object should be"),
        ({"completed_by": 2}, "name worker B's token"),
        ({"announced": ()}, "announced"),
        ({"announced": ("completed:job-1:2",)}, "announced"),
        ({"announced": ("completed:job-1:2", "completed:job-1:3")}, "announced"),
    ],
)
def test_whatever_goes_otherwise_is_a_fault(otherwise: dict[str, Any], fault: str) -> None:
    """One thing that is not as told is one fault, which says what should have been."""
    (found,) = replace(AS_TOLD, **otherwise).faults()
    assert fault in found


def test_without_the_gateway_the_late_write_must_win() -> None:
    """If the late write is refused there, or the object is another's, the second part shows nothing."""
    late = "worker A's late write should have won"
    assert WithoutGateway(OK, Answer(412), "B").faults() == [late]
    assert WithoutGateway(OK, OK, "B").faults() == [late]
    assert WithoutGateway(Answer(503), OK, "A").faults() == ["worker B's upload should have been accepted"]


def test_a_demonstration_that_does_not_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Past its bound it is over, with status 1 and the reason; its store is stopped."""
    store = Mock(start=AsyncMock(), stop=AsyncMock(), url="http://127.0.0.1:9")
    monkeypatch.setattr(demo, "EmbeddedStore", lambda directory: store)
    monkeypatch.setattr(demo, "BOUND_S", 0.01)

    @asynccontextmanager
    async def never(directory: Path, behind: Endpoint, receiver: Receiver) -> AsyncIterator[DemoGateway]:
        await asyncio.Event().wait()
        yield Mock()

    assert run(Timeline(silent=False), never, as_json=False) == 1
    assert "not as told: it was not over within 0.01 s" in capsys.readouterr().err
    store.stop.assert_awaited_once()


async def test_a_worker_that_does_otherwise_is_a_fault() -> None:
    """It says what the story did not expect, or has ended when it is to report or to be frozen."""
    async with workers("W") as (worker,):
        assert isinstance(worker, WorkerProcess)
        worker.begin(Task("http://127.0.0.1:9", "b", object_key="k", access_key="a", secret_key="s"))
        with pytest.raises(DemoFault, match="EndpointConnectionError"):
            await worker.report("job")
        with pytest.raises(DemoFault, match="worker W ended before its report of 'job'"):
            await worker.report("job")
        assert await worker.ended() == 0
        with pytest.raises(DemoFault, match="worker W had ended when it was to be sent SIGSTOP"):
            await worker.freeze()


async def test_the_receiver_believes_what_is_signed_once() -> None:
    """What bears no good signature is refused; the same id again is taken, and is the same announcement."""
    async with Receiver() as receiver, aiohttp.ClientSession() as session:

        async def post(body: dict[str, Any], secret: str) -> int:
            text, now = json.dumps(body), datetime.now(UTC)
            headers = {
                "webhook-id": body["id"],
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": Webhook(secret).sign(body["id"], now, text),
            }
            async with session.post(receiver.url, data=text, headers=headers) as answer:
                return answer.status

        assert await post({"id": "completed:job-1:2"}, Receiver().secret) == 401
        assert receiver.told == []
        for _ in range(2):
            assert await post({"id": "completed:job-1:3"}, receiver.secret) == 204
        await receiver.first()
        assert receiver.told == ["completed:job-1:3"]
