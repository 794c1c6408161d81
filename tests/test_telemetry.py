"""What the log must not do."""

from __future__ import annotations

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


def test_a_log_that_takes_no_line_costs_nothing_but_the_line() -> None:
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
        stream.full = False
        log.warning("settled")
        log.warning("settled too")
    finally:
        structlog.reset_defaults()
        configure_logging("warning")
    assert b"in-doubt" not in stream.getvalue()
    *_, first, second = stream.getvalue().splitlines()
    assert [json.loads(line)["event"] for line in (first, second)] == ["settled", "settled too"]
