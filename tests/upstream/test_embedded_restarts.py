"""When the embedded store is started again, in virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.upstream.embedded import LONGEST_RESTART_DELAY_S, RESTART_DELAY_S, EmbeddedStore, EmbeddedStoreError
from gateway.upstream.embedded_ports import Ports
from tests.virtual_time import run

FAILURES = 8


def test_ever_more_slowly_while_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be started is tried again, twice as late each time up to a bound, and the log says why; once
    it has run, soon again."""

    async def story() -> list[float]:
        loop = asyncio.get_running_loop()
        tried, done = [loop.time()], asyncio.Event()

        async def fails(store: EmbeddedStore, weed: Path, ports: Ports) -> None:
            tried.append(loop.time())
            if len(tried) == FAILURES + 3:
                done.set()
            if len(tried) != FAILURES + 2:
                raise EmbeddedStoreError("the volume is broken")

        monkeypatch.setattr(EmbeddedStore, "_run", fails)
        store = EmbeddedStore(tmp_path)
        store._ports = Ports.reserve()
        supervisor = asyncio.create_task(store._keep_running(tmp_path / "weed"))
        await done.wait()
        supervisor.cancel()
        return tried

    with capture_logs() as logs:
        waited = [later - earlier for earlier, later in pairwise(run(story()))]
    slower = [min(RESTART_DELAY_S * 2**failures, LONGEST_RESTART_DELAY_S) for failures in range(FAILURES + 1)]
    assert waited == pytest.approx([*slower, RESTART_DELAY_S])
    assert slower[-1] == LONGEST_RESTART_DELAY_S
    assert {(line["event"], line["error"]) for line in logs} == {
        ("the embedded store does not start", "the volume is broken")
    }
