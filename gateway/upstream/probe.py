"""What the store behind the gateway really does, found out by trying before the first fenced write (R4).

Of `gateway.upstream.experiments` those that the gateway relies on, in the bucket of the first fenced write. The race
takes a second and more where losers wait (SeaweedFS): it is run beside the first writes
(docs/decisions/0003-probe-on-first-write.md).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from gateway.clock import Clock
from gateway.upstream.base import Capabilities, Upstream
from gateway.upstream.experiments import Experiments, Finding
from gateway.upstream.scratch import CannotProbe, Scratch, side_by_side

RACERS = 4
RETRY_AFTER_S = 30.0
"""How long a bucket in which the probe could not be made is left alone."""

_log = structlog.get_logger(__name__)


class Prober:
    """Probes on first need and remembers (`gateway.upstream.base.CapabilitySource`).

    As soon as the race has a winner it is taken for the only one: a condition that the store honours at all makes no
    write less safe than none would. With `await_race` nobody is answered before all racers have been."""

    def __init__(self, upstream: Upstream, clock: Clock, *, await_race: bool = False) -> None:
        self._upstream = upstream
        self._clock = clock
        self._await_race = await_race
        self._proved: Capabilities | None = None
        self._not_before: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._found: asyncio.Future[None] | None = None
        self._closed = False

    async def of_bucket(self, bucket: str) -> Capabilities:
        """What has been proved. What a store does is the same in all its buckets, so one proof serves all."""
        while self._proved is None:
            if self._found is None:
                if self._closed or self._clock.monotonic() < self._not_before.get(bucket, 0.0):
                    return Capabilities()
                self._found = asyncio.get_running_loop().create_future()
                # A task of its own: who asks may go away, and the others wait for the same.
                self._task = asyncio.create_task(self._probe(bucket, self._found))
            await asyncio.shield(self._found)
        return self._proved

    async def close(self) -> None:
        """End a probe that is under way; its scratch objects are removed first. No other is begun."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _probe(self, bucket: str, found: asyncio.Future[None]) -> None:
        scratch = Scratch(self._upstream, bucket, self._clock.nonce())
        try:
            async with scratch:
                experiments = Experiments(scratch)
                _, capabilities = await first_look(experiments)
                await scratch.remove_all()
                race = await experiments.race(RACERS) if capabilities.conditional_put else None
                if not self._await_race:
                    self._proved = capabilities
                    found.set_result(None)
                if race is not None and not (finding := await race.result()).holds:
                    _log.warning("the store is not to be trusted with conditional writes", seen=finding.seen)
                    capabilities = raced(capabilities, finding)
                self._proved = capabilities
        except CannotProbe as error:
            reason, again_after_s = str(error), RETRY_AFTER_S
            _log.warning("the store cannot be probed now", bucket=bucket, reason=reason, again_after_s=again_after_s)
            self._leave_alone(bucket)
        except Exception:
            _log.exception("the probe failed")
            self._leave_alone(bucket)
        finally:
            self._found = None
            if not found.done():
                found.set_result(None)
        if scratch.left:
            _log.warning("the probe left objects behind", bucket=bucket, objects=scratch.left)

    def _leave_alone(self, bucket: str) -> None:
        now = self._clock.monotonic()
        # Clients name what buckets they like: what is over is forgotten, so that the names do not pile up.
        self._not_before = {b: t for b, t in self._not_before.items() if t > now}
        self._not_before[bucket] = now + RETRY_AFTER_S
        self._proved = None


class FixedCapabilities:
    """Capabilities that are not probed: `conditional = "off"`, and tests."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities

    async def of_bucket(self, bucket: str) -> Capabilities:
        """The same for every bucket."""
        return self._capabilities

    async def close(self) -> None:
        """Nothing is under way."""


async def first_look(experiments: Experiments) -> tuple[dict[str, Finding], Capabilities]:
    """All but the race: what was found, and what follows as long as the race ends well. Raises `CannotProbe`."""
    # Alone: the others need to know how ETags are written, and a bucket that is not there is asked once.
    match = await experiments.match()
    beside = {
        "put-absent": experiments.absence(),
        "put-moment": experiments.moment(),
        "copy": experiments.copy(),
        "delete": experiments.delete(),
        "trailers": experiments.trailers(),
        "paths": experiments.paths(),
        "subresources": experiments.subresources(),
    }
    findings = {"put-match": match} | dict(zip(beside, await side_by_side(*beside.values()), strict=True))
    conditional = all(findings[name].holds for name in ("put-match", "put-absent", "put-moment"))
    capabilities = Capabilities(
        conditional_put=conditional,
        conditional_copy=conditional and findings["copy"].holds,
        conditional_delete=conditional and findings["delete"].holds,
        trailers=experiments.kept_trailers,
        bare_etag=conditional and experiments.bare_etag,
        files_paths=not findings["paths"].holds,
        overlooks=not findings["subresources"].holds,
        overlooks_settings=experiments.is_seaweedfs,
    )
    return findings, capabilities


def raced(capabilities: Capabilities, race: Finding) -> Capabilities:
    """What is left of the capabilities after a race."""
    if race.holds:
        return capabilities
    return replace(
        capabilities, conditional_put=False, conditional_copy=False, conditional_delete=False, bare_etag=False
    )
