"""What has not come to rest in a gateway, once nothing is asked of it any more."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.job import JobState
from tests.simulation.gateway import Gateway


def busy_in(gateway: Gateway) -> Iterator[str]:
    """What is pinned, staged, unsettled or locked."""
    rig = gateway.rig
    for live in rig.fences.gates:
        if live.pins or live.passages or not live.gate.idle:
            yield f"the gate of {live.gate.key!r} has {live.pins} pins, {len(live.passages)} passages"
    for (_, name), entry in rig.writes.objects._entries.items():
        if not entry.idle or entry.owning.locked():
            yield f"the object {name} has {entry.pins} pins, or is locked"
    if rig.uploads.bindings._under_way or rig.uploads.bindings._over:
        yield "Completes are under way, or not recorded"
    if not (rig.writes.doubts.idle and rig.writes.marks.idle) or rig.fences.gates._loading:
        yield "something is still looked for"
    for line in gateway.leases._lines._lines.values():
        if line.users or line.deciding:
            yield f"the line of {line.key!r} has {line.users} users, or is being decided"
    jobs = gateway.jobs
    idle = jobs._beside.idle and jobs._delays._beside.idle and jobs.deliveries._beside.idle
    if not idle or jobs.deliveries._repeats._asked or jobs.waiting:
        yield "somebody is still given a job, or one is taken back"
    if not gateway.completions._beside.idle:
        yield "a completion is still under way"
    for job in gateway.disk.jobs._jobs.values():
        if job.state is JobState.RUNNING:
            yield f"the job {job.key!r} is still with a worker"
    if gateway.leases._repeats._asked:
        yield "somebody is still answered who has asked for a lease"
    for bucket in rig.writes.records._buckets.values():
        if bucket.pins or bucket.looking is not None:
            yield f"the record of {bucket.name} has {bucket.pins} pins, or is looked at"
