"""The demonstration's workers, as processes of their own."""

from __future__ import annotations

import pytest

from gateway.cli.demonstration.processes import DemoFault, WorkerProcess, workers
from gateway.cli.demonstration.task import Task


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
