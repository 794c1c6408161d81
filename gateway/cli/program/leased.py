"""A program tied to a lease: each renewal keeps it, the loss of the lease ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.cli.program.supervise import awaiting, follow
from gateway.cli.program.terminal import Terminal
from gateway.cli.program.ward import Ward
from gateway.client.blocking import SyncLease
from gateway.client.guarded import Guarded

GRACE_OF_TERM = 0.25
"""A grace that is longer than this part of the lease would end the command between two heartbeats."""


def guarded(
    command: Sequence[str], environ: Mapping[str, str], lease: SyncLease, grace_s: float, terminal: Terminal | None
) -> int:
    """Run it, on our own terminal if we have one; its exit status. Raises `LeaseLost` if it was ended for that."""
    with awaiting() as mask:
        ward = Ward(
            command,
            environ,
            lease.deadline,
            grace_s,
            terminal=terminal.descriptor if terminal is not None and terminal.is_ours else -1,
            mask=sorted(mask),
        )
        guard_with(ward, lease)
        status = follow(ward, terminal)
    judge(ward, lease)
    return status


def guard_with(ward: Ward, lease: Guarded) -> None:
    """Tie the program to the lease."""
    lease.on_renewed(ward.keep_until)
    ward.keep_until(lease.deadline)
    lease.on_lost(lambda _: ward.stop())


def judge(ward: Ward, lease: Guarded, *, told_to_end: bool = False) -> bool:
    """The program has ended; whether its guard has ended it, told to by us. Raises `LeaseLost` if that was for its
    lease, or should have been."""
    ended_by_guard = ward.finish()
    lease.check()
    if ended_by_guard and not told_to_end:
        raise lease.run_out()
    return ended_by_guard
