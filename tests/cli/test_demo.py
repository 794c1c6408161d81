"""The command ends, whatever becomes of what it plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from gateway.cli import demo
from gateway.cli.demo import Timeline, run
from gateway.cli.demonstration.gateway import DemoGateway
from gateway.cli.demonstration.processes import Endpoint
from gateway.cli.demonstration.receiver import Receiver


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
