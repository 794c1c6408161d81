"""The gateway with one rule off: `python -m tests.chaos.mutants MUTANT serve …`, to see that its harm is found."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from gateway.cli import main
from gateway.clock import SystemClock
from gateway.core import write
from gateway.core.gate import Gate
from gateway.core.write import Answer, Phase
from gateway.service import earlier_run, fences, passages, refusals, sending, writes


@dataclass(frozen=True)
class Mutant:
    """What is replaced by what, and the settings that go with it."""

    replaced: tuple[tuple[object, str, object], ...] = ()
    settings: tuple[str, ...] = ()

    def apply(self) -> None:
        for owner, name, new in self.replaced:
            assert hasattr(owner, name), f"{owner} has no {name} any more"
            setattr(owner, name, new)


UNCONDITIONAL = ("upstream.conditional=off",)
"""Without it the store's own condition often stops what the gateway has let through."""


def _commit_unasked(self: passages.Passage) -> None:
    self._send.phase = Phase.COMMITTING
    self._entry.begin(self._live.gate.key)


async def _hand_over_at_once(self: fences.Fences, live: passages.LiveGate, token: int, wait_s: float) -> None:
    live.gate.completed_floor = token


async def _raise_in_memory(self: fences.Fences, live: passages.LiveGate, token: int, event: object) -> None:
    live.cancel_overtaken(live.gate.raised(token))


async def _certain_in_doubt(self: writes.Writes, *_: Any) -> Any:
    raise refusals.unavailable("its answer was lost")


def _refused_if_5xx(status: int, code: str | None) -> Answer:
    return Answer.REFUSED if status >= 500 else write.classify(status, code)


MUTANTS = {
    # R3: the token is checked at the head alone.
    "check-then-forward": Mutant(
        (
            (passages.Passage, "commit", _commit_unasked),
            (passages.Passage, "cancel", lambda self: None),
        ),
        UNCONDITIONAL,
    ),
    # R3: what raises a floor goes on at once.
    "hand-over-not-awaited": Mutant(
        ((fences.Fences, "_hand_over", _hand_over_at_once), (Gate, "_lower_unsettled", lambda self, token: []))
    ),
    # R5: a 5xx is taken for a refusal.
    "server-errors-settle": Mutant(((sending, "classify", _refused_if_5xx),)),
    # R5: a connection that breaks is taken for a refusal.
    "lost-answers-settle": Mutant(((passages.Passage, "lost", passages.Passage.refused),)),
    # R5: at the start the completed floor is ignored.
    "unclean-starts-ignored": Mutant(((earlier_run.EarlierRun, "started_unclean", lambda self, bound: None),)),
    # R1: a raised floor does not reach the disk.
    "floors-in-memory": Mutant(((fences.Fences, "_raise_durably", _raise_in_memory),)),
    # G5: a lost answer is told as a refusal.
    "doubt-told-as-not-applied": Mutant(((writes.Writes, "_in_doubt", _certain_in_doubt),)),
    # The wall clock decides when a send is settled.
    "wall-clock": Mutant(((SystemClock, "monotonic", staticmethod(time.time)),)),
    # R4, G4: nothing but the database knows of the tokens.
    "unconditional": Mutant(settings=UNCONDITIONAL),
}


def program(mutant: str) -> tuple[str, ...]:
    """What `GatewayProcess` runs for the mutant; for none the gateway itself."""
    return ("tests.chaos.mutants", mutant) if mutant else ("gateway",)


def settings(mutant: str) -> tuple[str, ...]:
    """What it is configured with."""
    return MUTANTS[mutant].settings if mutant else ()


if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)].apply()
    main()
