"""The report: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict

from rich.box import HORIZONTALS
from rich.table import Table

from bench.figures import Figures, Outcome, Verdict, ratio

NOTE = (
    "CPU is that of the one process, median over the rounds. Store, gateway and load generator share this machine: "
    "compare the lines of a row with each other; absolute rates tell little, and so does a ratio where 'bare' beats "
    "'direct'. 'direct' shows times and rates as they are, the other lines what they add to these, and their part of "
    "that throughput."
)


def table(outcomes: list[Outcome]) -> Table:
    """Three lines an outcome: direct, bare, gateway."""
    title = f"{os.cpu_count()} CPUs, Python {platform.python_version()}"
    made = Table(title=title, caption=NOTE, caption_justify="left", box=HORIZONTALS, show_lines=True)
    made.add_column("", max_width=36)
    for name in ("through", "CPU", "throughput", "median ms", "p99 ms", "peak MB", "target"):
        made.add_column(name, justify="left" if name in ("through", "target") else "right", no_wrap=True)
    for outcome in outcomes:
        lines = [_cells(figure, outcome.direct) for figure in outcome.figures]
        made.add_row(
            outcome.title,
            *("\n".join(column) for column in zip(*lines, strict=True)),
            "\n".join(map(_told, outcome.verdicts)),
        )
    return made


def _told(verdict: Verdict) -> str:
    mark = "[green]✓[/]" if verdict.met else "[red]✗[/]"
    value = f"{verdict.value:,.0f}" if verdict.value >= 100 else f"{verdict.value:.3g}"
    return f"{mark} {value} ({verdict.text})"


def _cells(figure: Figures, direct: Figures | None) -> list[str]:
    cpu = ""
    if figure.cpu_s_per_gb is not None:
        cpu = f"{figure.cpu_s_per_gb:.2f} s/GB"
    elif figure.cpu_us is not None:
        cpu = f"{figure.cpu_us:.0f} µs"
    rate = f"{figure.per_s:,.0f}/s" if figure.gb_per_s is None else f"{figure.gb_per_s:.2f} GB/s"
    base = None if figure is direct else direct
    return [
        figure.door,
        cpu,
        rate if base is None else f"× {ratio(base, figure):.2f}",
        _time(figure.median_ms, base.median_ms if base else None),
        _time(figure.p99_ms, base.p99_ms if base else None),
        "" if figure.peak_mb is None else f"{figure.peak_mb:.0f}",
    ]


def _time(value_ms: float | None, direct_ms: float | None) -> str:
    if value_ms is None:
        return ""
    digits = 2 if value_ms < 100 else 0
    return f"{value_ms:,.{digits}f}" if direct_ms is None else f"{value_ms - direct_ms:+,.{digits}f}"


def as_json(outcomes: list[Outcome]) -> str:
    machine = {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    return json.dumps({"machine": machine, "rows": [asdict(outcome) for outcome in outcomes]}, indent=1)
