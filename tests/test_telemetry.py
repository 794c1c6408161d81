"""What the log must not do."""

from __future__ import annotations

import asyncio
import errno
import io
import json

import structlog

from gateway.clock import SystemClock
from gateway.telemetry import RequestRecord, Telemetry, configure_logging


class FullDisk(io.BytesIO):
    """A log file that takes no more lines for a while."""

    full = True

    def write(self, line: bytes) -> int:
        if self.full:
            super().write(line[:9])  # a disk takes what fits
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(line)


async def test_a_log_that_takes_no_line_costs_nothing_but_the_line() -> None:
    """Neither a request nor the fence is interrupted by a full disk; when there is space, lines come again, each whole,
    whatever part of an earlier one has been taken."""
    stream = FullDisk()
    configure_logging("info", stream)
    try:
        log = structlog.get_logger("fence")
        log.warning("in-doubt")
        telemetry = Telemetry(SystemClock())
        telemetry.event("lost")
        telemetry.finished(RequestRecord("r", operation="PutObject", status=200), "commits", 0.1)
        await asyncio.sleep(0)
        stream.full = False
        log.warning("settled")
        log.warning("settled too")
    finally:
        structlog.reset_defaults()
        configure_logging("warning")
    assert b"in-doubt" not in stream.getvalue()
    *_, first, second = stream.getvalue().splitlines()
    assert [json.loads(line)["event"] for line in (first, second)] == ["settled", "settled too"]


class Counted(io.BytesIO):
    """A log whose writes are counted."""

    writes = 0

    def write(self, line: bytes) -> int:
        self.writes += 1
        return super().write(line)


async def test_the_lines_of_one_turn_go_out_together() -> None:
    """Requests that are answered in one turn of the event loop share a write; what befalls the gateway is written at
    once, behind all that came before it."""
    stream = Counted()
    configure_logging("info", stream)
    try:
        telemetry = Telemetry(SystemClock())
        for number in range(3):
            telemetry.finished(RequestRecord(str(number), status=200), "commits", 0.1)
        assert stream.writes == 0
        await asyncio.sleep(0)
        assert stream.writes == 1
        telemetry.finished(RequestRecord("3", status=200), "commits", 0.1)
        telemetry.event("stopped")
    finally:
        structlog.reset_defaults()
        configure_logging("warning")
    *requests, last = map(json.loads, stream.getvalue().splitlines())
    assert [line["request_id"] for line in requests] == ["0", "1", "2", "3"]
    assert last["event"] == "stopped"
