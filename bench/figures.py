"""What is made of the samples: figures of each way to the store, and how they stand to the targets."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from bench.load import Sample


@dataclass(frozen=True)
class Figures:
    """One row, through one door. None: not measured, or without a meaning there."""

    door: str
    rounds: int
    per_s: float
    """Requests a second."""
    gb_per_s: float | None = None
    """Only of large bodies, in GB of 10^9 bytes."""
    median_ms: float | None = None
    p99_ms: float | None = None
    """Only of 100 requests and more."""
    cpu_us: float | None = None
    """CPU time of the measured process for each request, in µs."""
    cpu_s_per_gb: float | None = None
    peak_mb: float | None = None
    """Peak resident memory of the measured process during the row, in MB."""


def figures(
    door: str, samples: list[Sample], size_bytes: int, *, large: bool, measured: bool, peak_mb: float | None
) -> Figures:
    """Medians over the rounds; latencies over all requests."""
    took_s = sorted(t for sample in samples for t in sample.took_s)
    per_s = median(s.requests / s.wall_s for s in samples)
    cpu_s = median(s.cpu_s / s.requests for s in samples) if measured else None
    return Figures(
        door=door,
        rounds=len(samples),
        per_s=per_s,
        gb_per_s=per_s * size_bytes / 1e9 if large else None,
        median_ms=1000 * took_s[len(took_s) // 2],
        p99_ms=1000 * took_s[int(len(took_s) * 0.99)] if len(took_s) >= 100 else None,
        cpu_us=None if cpu_s is None else cpu_s * 1e6,
        cpu_s_per_gb=None if cpu_s is None or not large else cpu_s * 1e9 / size_bytes,
        peak_mb=peak_mb,
    )


@dataclass(frozen=True)
class Verdict:
    """One target and what was measured against it."""

    text: str
    value: float
    met: bool


def at_most(text: str, value: float, bound: float) -> Verdict:
    return Verdict(text, value, value <= bound)


def at_least(text: str, value: float, bound: float) -> Verdict:
    return Verdict(text, value, value >= bound)


@dataclass(frozen=True)
class Outcome:
    """One row of the report."""

    title: str
    figures: tuple[Figures, ...]
    """The gateway's last, the direct ones first, where there are any."""
    verdicts: tuple[Verdict, ...]

    @property
    def gateway(self) -> Figures:
        return self.figures[-1]

    @property
    def direct(self) -> Figures | None:
        return self.figures[0] if self.figures[0].door == "direct" else None


def ratio(direct: Figures, other: Figures) -> float:
    """Throughput as a part of the direct one."""
    return other.per_s / direct.per_s
