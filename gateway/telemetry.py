"""What the gateway tells of itself: one log line a request, and metrics with bounded labels.

No line and no label holds a secret, a signature, a session token or a customer's encryption key: a line is made of the
fields named here, never of a request's headers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO, ClassVar, cast

import orjson
import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.clock import Clock

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


Line = dict[str, object]
"""One line of the log, field by field."""
RECENT_REQUESTS = 1000
"""Lines of requests that are kept for those who ask after them."""
MAX_LINES_WAITING = 1000
"""For one who follows; beyond that the newest are dropped."""


class Follower:
    """Somebody who is told the log's lines as they are written, if he wants them."""

    def __init__(self, wanted: Callable[[Line], bool]) -> None:
        self._wanted = wanted
        self._lines: deque[Line] = deque()
        self._more = asyncio.Event()
        self.dropped = 0

    def tell(self, line: Line) -> None:
        if not self._wanted(line):
            return
        if len(self._lines) < MAX_LINES_WAITING:
            self._lines.append(dict(line))
        else:
            self.dropped += 1
        self._more.set()

    def take(self) -> list[Line]:
        """What has come since the last time."""
        self._more.clear()
        lines = list(self._lines)
        self._lines.clear()
        return lines

    async def wait(self, timeout_s: float) -> None:
        """Until more has come, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._more.wait()


class _Lines:
    """The log's stream. A line that it does not take, its disk full or its reader gone, is lost, and nothing else
    suffers from it: no request, no book-keeping of the fence, and not the next line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._waiting: list[bytes] = []
        self._torn = False
        """Part of the last line may have been taken."""

    def write(self, line: bytes) -> int:
        """Write it at once."""
        self._waiting.append(line)
        self.flush()
        return len(line)

    def write_soon(self, line: bytes) -> None:
        """Write it at the event loop's next turn, with all that have come by then: each write may wake who reads the
        log, which costs more than the line."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(line)

    def flush(self) -> None:
        lines, self._waiting = b"".join(self._waiting), []
        if not lines:
            return
        try:
            self._stream.write(b"\n" + lines if self._torn else lines)
            self._stream.flush()
        except OSError:
            self._torn = True
        else:
            self._torn = False


class _Output:
    """Where lines go, once `configure_logging` has said so, and to whom besides."""

    stream: _Lines
    requests = False
    followers: ClassVar[list[Follower]] = []


_output = _Output()


def configure_logging(level: str, stream: BinaryIO | None = None) -> None:
    """JSON, one object a line, on `stream` (standard error by default)."""
    _output.stream = _Lines(stream or sys.stderr.buffer)
    _output.requests = LEVELS[level] <= logging.INFO
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _tell,
            structlog.processors.JSONRenderer(serializer=as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.BytesLoggerFactory(cast(BinaryIO, _output.stream)),
        cache_logger_on_first_use=False,
    )


def _tell(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for follower in _output.followers:
        follower.tell(dict(line))
    return line


@lru_cache(maxsize=2)
def _second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _timestamp(epoch_s: float) -> str:
    """RFC 3339 with microseconds, as structlog writes it."""
    second = int(epoch_s)
    return f"{_second(second)}.{int((epoch_s - second) * 1e6):06d}Z"


def as_json(line: object, **_: object) -> bytes:
    """A line of the log, whatever bytes are in it."""
    try:
        return orjson.dumps(line, default=str)
    except TypeError:  # bytes of a client or an upstream that are no UTF-8: orjson takes no lone surrogates
        return json.dumps(vars(line) if isinstance(line, RequestRecord) else line, default=str).encode()


@dataclass
class RequestRecord:
    """What is known of one S3 request when it is over: its log line, field by field.

    Without slots, because the line's encoder reads an instance's dictionary three times as fast."""

    request_id: str
    upstream_request_id: str | None = None
    client: str = ""
    """The access key, also of a request whose signature failed."""
    address: str = ""
    """The peer's IP address."""
    method: str = ""
    operation: str = "Unknown"
    bucket: str | None = None
    object: str | None = None
    fence_key: str | None = None
    token: int | None = None
    floor: int | None = None
    decision: str = "passed"
    """passed: no fence applies; admitted; refused; would-refuse (mode observe); failed."""
    reason: str | None = None
    """The fence's reason, or the S3 error code."""
    message: str | None = None
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duration_s: float = 0.0
    body_wait_s: float = 0.0
    """How long of that the client was waited for with its body."""
    event: str = "request"
    level: str = "info"
    timestamp: str = ""
    """When the line was written."""


class _RequestMetrics(Collector):
    """What every request counts, in plain dictionaries: all of it happens in the event loop's thread, where the locks
    of `prometheus_client`'s own counters cost more than the counting."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.refusals: Counter[str | None] = Counter()
        self.would_refuse: Counter[str | None] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(_SECONDS) + 1))
        """For each effect, how many requests lie between one bound and the next."""
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("fencing_requests", "S3 requests answered.", labels=["operation", "status"])
        for (operation, status), count in self.requests.items():
            requests.add_metric([operation, str(status)], count)
        yield requests
        seconds = HistogramMetricFamily("fencing_request_seconds", "Time from head to answer.", labels=["effect"])
        for effect, counts in self.buckets.items():
            bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            seconds.add_metric([effect], buckets, sum_value=self.seconds[effect])
        yield seconds
        for name, told, counter in (
            ("fencing_refusals", "Refusals of the fence.", self.refusals),
            ("fencing_would_refuse", "What rules in mode observe would have refused.", self.would_refuse),
        ):
            family = CounterMetricFamily(name, told, labels=["reason"])
            for reason, count in counter.items():
                family.add_metric([str(reason)], count)
            yield family
        moved = CounterMetricFamily("fencing_bytes", "Bytes of bodies.", labels=["direction"])
        moved.add_metric(["in"], self.bytes_in)
        moved.add_metric(["out"], self.bytes_out)
        yield moved


class Telemetry:
    """Metrics and the request log of one gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = registry = CollectorRegistry()
        self._log = structlog.get_logger().bind()  # else it is built anew for each line
        self._metrics = _RequestMetrics()
        self._recent: deque[RequestRecord] = deque(maxlen=RECENT_REQUESTS)
        registry.register(self._metrics)
        self.running = Gauge("fencing_requests_running", "S3 requests being served now.", registry=registry)
        self.connections = Gauge("fencing_connections", "Connections of S3 clients.", registry=registry)
        self.unsettled = Gauge("fencing_sends_unsettled", "Sends that may still take effect.", registry=registry)
        self.in_doubt = Gauge("fencing_sends_in_doubt", "Sends whose answer was lost.", registry=registry)
        self.settled_by_timeout = Gauge(
            "fencing_sends_settled_by_timeout",
            "Sends in doubt that only the settle time-out settled.",
            registry=registry,
        )
        self.settled_by_operator = Gauge(
            "fencing_sends_settled_by_operator", "Sends in doubt that an operator settled.", registry=registry
        )
        self.handovers_waiting = Gauge(
            "fencing_handovers_waiting", "Jobs whose new token waits for lower ones to settle.", registry=registry
        )
        self.handover_wait = Gauge(
            "fencing_handover_wait_seconds", "How long the longest of them has waited.", registry=registry
        )
        self.ready = Gauge("fencing_ready", "1 while the gateway takes requests.", registry=registry)

    def finished(self, record: RequestRecord, effect: str, seconds: float) -> None:
        """Count and log a request that has been answered."""
        metrics = self._metrics
        metrics.requests[record.operation, record.status] += 1
        metrics.buckets[effect][bisect_left(_SECONDS, seconds)] += 1
        metrics.seconds[effect] += seconds
        metrics.bytes_in += record.bytes_in
        metrics.bytes_out += record.bytes_out
        if record.decision == "refused":
            metrics.refusals[record.reason] += 1
        elif record.decision == "would-refuse":
            metrics.would_refuse[record.reason] += 1
        # The line of every request goes past structlog's chain, which costs more than the line.
        record.duration_s = round(seconds, 6)
        record.timestamp = _timestamp(self._clock.wall())
        self._recent.append(record)
        if _output.requests:
            _output.stream.write_soon(as_json(record) + b"\n")
        for follower in _output.followers:
            follower.tell(vars(record))

    @contextmanager
    def follow(self, wanted: Callable[[Line], bool]) -> Iterator[Follower]:
        """Follow the log: the lines of the last requests, then all that come while inside."""
        follower = Follower(wanted)
        for record in self._recent:
            follower.tell(vars(record))
        _output.followers.append(follower)
        try:
            yield follower
        finally:
            _output.followers.remove(follower)

    def event(self, name: str, **fields: object) -> None:
        """Something that happened to the gateway as a whole."""
        self._log.info(name, **fields)

    def warning(self, name: str, **fields: object) -> None:
        """Something that somebody has to look after, though the gateway goes on."""
        self._log.warning(name, **fields)

    def failure(self, name: str, **fields: object) -> None:
        """A fault of the program, with its traceback."""
        self._log.exception(name, **fields)
