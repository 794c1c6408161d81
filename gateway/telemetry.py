"""What the gateway tells of itself: one log line a request, and metrics with bounded labels.

No line and no label holds a secret, a signature, a session token or a customer's encryption key: a line is made of the
fields named here, never of a request's headers.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import TextIO

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.clock import Clock

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _Output:
    """Where lines go, once `configure_logging` has said so."""

    stream: TextIO = sys.stderr
    requests = True


_output = _Output()


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """JSON, one object a line, on `stream` (standard error by default)."""
    _output.stream = stream or sys.stderr
    _output.requests = LEVELS[level] <= logging.INFO
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(_output.stream),
        cache_logger_on_first_use=False,
    )


@lru_cache(maxsize=2)
def _second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _timestamp(epoch_s: float) -> str:
    """RFC 3339 with microseconds, as structlog writes it."""
    second = int(epoch_s)
    return f"{_second(second)}.{int((epoch_s - second) * 1e6):06d}Z"


def _json(line: object, **_: object) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # bytes of a client or an upstream that are no UTF-8: orjson takes no lone surrogates
        return json.dumps(line, default=str)


@dataclass(slots=True)
class RequestRecord:
    """What is known of one S3 request when it is over."""

    request_id: str
    started: float
    """Monotonic seconds."""
    method: str = ""
    client: str = ""
    """The access key, also of a request whose signature failed."""
    address: str = ""
    """The peer's IP address."""
    operation: str = "Unknown"
    bucket: str | None = None
    object_key: str | None = None
    fence_key: str | None = None
    token: int | None = None
    floor: int | None = None
    decision: str = "passed"
    """passed: no fence applies; admitted; refused; would-refuse (mode observe); failed."""
    reason: str | None = None
    """The fence's reason, or the S3 error code."""
    message: str | None = None
    upstream_request_id: str | None = None
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Telemetry:
    """Metrics and the request log of one gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = registry = CollectorRegistry()
        self._log = structlog.get_logger().bind()  # else it is built anew for each line
        self._requests = Counter(
            "fencing_requests", "S3 requests answered.", ["operation", "status"], registry=registry
        )
        self._seconds = Histogram(
            "fencing_request_seconds", "Time from head to answer.", ["effect"], buckets=_SECONDS, registry=registry
        )
        self._refusals = Counter("fencing_refusals", "Refusals of the fence.", ["reason"], registry=registry)
        self._would_refuse = Counter(
            "fencing_would_refuse", "What rules in mode observe would have refused.", ["reason"], registry=registry
        )
        self._bytes = Counter("fencing_bytes", "Bytes of bodies.", ["direction"], registry=registry)
        self._bytes_in, self._bytes_out = self._bytes.labels("in"), self._bytes.labels("out")
        self.running = Gauge("fencing_requests_running", "S3 requests being served now.", registry=registry)
        self.unsettled = Gauge("fencing_sends_unsettled", "Sends that may still take effect.", registry=registry)
        self.in_doubt = Gauge("fencing_sends_in_doubt", "Sends whose answer was lost.", registry=registry)
        self.settled_by_timeout = Gauge(
            "fencing_sends_settled_by_timeout",
            "Sends in doubt that only the settle time-out settled.",
            registry=registry,
        )
        self.ready = Gauge("fencing_ready", "1 while the gateway takes requests.", registry=registry)
        # Looking a child up by its labels costs more than counting in it.
        self._count_request = cache(self._requests.labels)
        self._time_request = cache(self._seconds.labels)
        self._count_refusal = cache(self._refusals.labels)

    def finished(self, record: RequestRecord, effect: str, seconds: float) -> None:
        """Count and log a request that has been answered."""
        self._count_request(record.operation, record.status).inc()
        self._time_request(effect).observe(seconds)
        if record.bytes_in:
            self._bytes_in.inc(record.bytes_in)
        if record.bytes_out:
            self._bytes_out.inc(record.bytes_out)
        if record.decision == "refused":
            self._count_refusal(record.reason).inc()
        elif record.decision == "would-refuse":
            self._would_refuse.labels(record.reason).inc()
        if _output.requests:
            self._log_request(record, seconds)

    def _log_request(self, record: RequestRecord, seconds: float) -> None:
        # The one line that is written for every request goes past structlog's chain, which costs more than the line.
        line = {
            "request_id": record.request_id,
            "upstream_request_id": record.upstream_request_id,
            "client": record.client,
            "address": record.address,
            "method": record.method,
            "operation": record.operation,
            "bucket": record.bucket,
            "object": record.object_key,
            "fence_key": record.fence_key,
            "token": record.token,
            "floor": record.floor,
            "decision": record.decision,
            "reason": record.reason,
            "message": record.message,
            "status": record.status,
            "bytes_in": record.bytes_in,
            "bytes_out": record.bytes_out,
            "duration_s": round(seconds, 6),
            "event": "request",
            "level": "info",
            "timestamp": _timestamp(self._clock.wall()),
        }
        _output.stream.write(_json(line) + "\n")
        _output.stream.flush()

    def event(self, name: str, **fields: object) -> None:
        """Something that happened to the gateway as a whole."""
        self._log.info(name, **fields)

    def failure(self, name: str, **fields: object) -> None:
        """A fault of the program, with its traceback."""
        self._log.exception(name, **fields)
