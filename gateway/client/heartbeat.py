"""Renewing a lease until it is given back or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.client.calls import FIRST_PAUSE_S, LONGEST_PAUSE_S
from gateway.client.errors import JobCompleted, LeaseLost, Refused, StaleToken, Unreachable
from gateway.client.held import RENEWALS_IN_TERM, Held
from gateway.clock import Clock

LONGEST_NAP_S = 1.0
"""A timer stands still while the machine sleeps; the lease's clock does not."""
NEVER_GRANTED = "TokenNotIssued"
"""The gateway has another database: whatever holds there, this lease does not."""
LEAST_ATTEMPT_S = 1.0


async def beat(held: Held, renew: Callable[[float], Awaitable[float]], clock: Clock) -> None:
    """Renew at a third of the term, and what fails again and again until the deadline, at the latest after half of what
    is left; return when the lease is lost.

    `renew` is given how long it may take, and answers for how long the lease then lasts. Whether a call failed for
    a reason that will pass makes no difference: until its deadline the lease is held, and at it it is lost. While its
    holder ends the lease himself, that call decides, not what is heard here."""
    pause_s = FIRST_PAUSE_S
    while True:
        now = clock.monotonic()
        if now >= held.deadline and not held.finishing:
            held.lose(held.run_out())
            return
        due_in_s = min(held.renew_at, held.deadline) - now
        if due_in_s > 0 or now >= held.deadline:
            await asyncio.sleep(min(due_in_s if due_in_s > 0 else FIRST_PAUSE_S, LONGEST_NAP_S))
            continue
        bound_s = min(max(held.term_s / RENEWALS_IN_TERM, LEAST_ATTEMPT_S), held.deadline - now)
        try:
            held.renewed(now, await renew(bound_s))
            pause_s = FIRST_PAUSE_S
            continue
        except (LeaseLost, StaleToken, JobCompleted) as error:
            if not held.finishing:
                held.lose(LeaseLost(str(error), error.problem))
                return
            wait_s = pause_s
        except Unreachable as error:
            held.last_failure = error
            wait_s = max(pause_s, error.retry_after_s or 0)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except Refused as error:
            if error.reason == NEVER_GRANTED and not held.finishing:
                held.lose(LeaseLost(str(error), error.problem))
                return
            held.last_failure = error
            wait_s = held.term_s / RENEWALS_IN_TERM
        now = clock.monotonic()
        held.renew_at = now + min(wait_s, max((held.deadline - now) / 2, FIRST_PAUSE_S))
