"""Rules that stand beside the way of a write, each with what switches it off: the bucket's record, leases, jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.gate import Gate
from gateway.core.keys import UNLIMITED
from gateway.service.fences import Fences
from gateway.service.rebuild import Rebuilds
from gateway.service.records import Records
from gateway.service.returns import Returns
from gateway.stores import rules as store_rules
from gateway.stores.memory import store as memory
from tests.simulation import disk

Off = pytest.MonkeyPatch
Switch = Callable[[Off], None]


async def nothing(*_: Any, **__: Any) -> None:
    return None


# --- the bucket's record


def records_name_nobody(off: Off) -> None:
    """The record: whoever comes makes the bucket his."""

    async def nobodys(self, name, seen):
        return ""

    off.setattr(Records, "fault", nobodys)


def records_not_looked_at_again(off: Off) -> None:
    """The record: what it said at first is believed for ever, also at the commit point."""
    off.setattr(Records, "_admits", lambda self, bucket, token, now: bucket.looked_at > -math.inf)
    off.setattr(Records, "_keep", nothing)
    off.setattr(Records, "before_commit", lambda self, name: None)


def rebuilds_wait_for_nothing(off: Off) -> None:
    """The record: objects are looked at while the gateway before goes on."""
    off.setattr(Rebuilds, "_wait", nothing)


def rebuilds_raise_no_floor(off: Off) -> None:
    """G0: the bucket is taken over, and its objects are not looked at."""
    off.setattr(Rebuilds, "_learn", nothing)


# --- leases


def tokens_drawn_by_anybody(off: Off) -> None:
    """R10: a token that no lease has issued raises the floor."""
    admit = Gate.admit
    off.setattr(Gate, "admit", lambda self, token, limits=UNLIMITED, **_: admit(self, token, limits, issued=True))


def grants_answered_at_once(off: Off) -> None:
    """R3: a lease is told to its holder while something lower may still land."""

    admit = Fences.admit

    async def at_once(self, key, token, *, cause, **more):
        if cause != "lease":
            return await admit(self, key, token, cause=cause, **more)
        live = await self.gates.of(key)
        live.gate.refuse_overtaken(token)
        live.pins += 1
        return live

    off.setattr(Fences, "admit", at_once)


def released_leases_write_on(off: Off) -> None:
    """R3: to give a lease up seals nothing."""
    off.setattr(memory, "sealed", lambda fence, token: fence)


def jobs_never_come_back(off: Off) -> None:
    """A job whose worker is not heard of any more is delivered to nobody else."""
    off.setattr(Returns, "ended", lambda *_: None)


def completed_jobs_are_given_again(off: Off) -> None:
    """R3: nobody remembers that a job is done."""
    granted = memory.granted
    off.setattr(memory, "granted", lambda fence, *more: granted(replace(fence, completed_token=0), *more))


def completed_tokens_write_on(off: Off) -> None:
    """R3: a completion does not seal."""
    completed = store_rules.completed
    off.setattr(
        store_rules, "completed", lambda fence, token: replace(completed(fence, token), sealed_token=fence.sealed_token)
    )


def generations_forgotten(off: Off) -> None:
    """R10: a database that takes a bucket over begins with its tokens where it likes."""
    off.setattr(memory, "next_generation", lambda generation, above: generation)
    off.setattr(disk, "next_generation", lambda generation, above: generation)


OF_LEASES_AND_RECORDS: list[Switch] = [
    records_name_nobody,
    records_not_looked_at_again,
    rebuilds_wait_for_nothing,
    rebuilds_raise_no_floor,
    tokens_drawn_by_anybody,
    grants_answered_at_once,
    released_leases_write_on,
    jobs_never_come_back,
    completed_jobs_are_given_again,
    completed_tokens_write_on,
    generations_forgotten,
]
