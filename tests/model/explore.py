"""Breadth first through all that can happen: the first violation found is one of the shortest."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from tests.model import steps
from tests.model.canonical import canonical
from tests.model.encoding import decode, encode
from tests.model.guarantees import Violation
from tests.model.size import Size
from tests.model.world import Encoded, NoChange, World, first

Progress = Callable[[int, int, int], None]
"""Told now and then: the depth, the states found, those of them still to be looked at."""
TELL_EVERY = 20_000


@dataclass(frozen=True)
class Found:
    """What an exploration has found."""

    size: Size
    states: int
    steps: int
    """How many steps were tried."""
    depth: int
    complete: bool
    """All states were looked at."""
    violation: Violation | None = None
    path: tuple[int, ...] = ()
    """The states that lead to the violation, by their fingerprints."""


def explore(size: Size, *, progress: Progress | None = None, enough: Callable[[], bool] = lambda: False) -> Found:
    """Look at every state of a world of this size, until it is `enough`; end at the first violation."""
    start = canonical(size, encode(first(size)))
    came_from = {fingerprint(start): 0}
    level, tried, depth = [start], 0, 0
    while level:
        following: list[Encoded] = []
        met: set[bytes] = set()
        """By this level's steps, under the very same names: more than half of what they lead to."""
        for state in level:
            for _, outcome in successors(size, state):
                tried += 1
                if isinstance(outcome, Violation):
                    path = _path(came_from, fingerprint(state))
                    return Found(size, len(came_from), tried, depth + 1, False, outcome, path)
                raw = marshal.dumps(outcome, 2)
                if raw in met:
                    continue
                met.add(raw)
                form = canonical(size, outcome)
                name = fingerprint(form)
                if name not in came_from:
                    came_from[name] = fingerprint(state)
                    following.append(form)
                    if progress is not None and len(came_from) % TELL_EVERY == 0:
                        progress(depth, len(came_from), len(following))
            if enough():
                return Found(size, len(came_from), tried, depth, False)
        level, depth = following, depth + 1
    return Found(size, len(came_from), tried, depth, True)


def successors(size: Size, state: Encoded) -> Iterator[tuple[steps.Action, Encoded | Violation]]:
    """What can happen next, and what comes of it."""
    world = decode(size, state)
    untouched = True
    for action in list(steps.enabled(world)):
        if not untouched:
            world = decode(size, state)
        untouched = False
        try:
            steps.act(world, action)
        except NoChange:
            continue
        except Violation as violation:
            yield action, violation
        else:
            yield action, encode(world)


def fingerprint(state: Encoded) -> int:
    """64 bits that stand for a state; among 10^7 states two share them with a chance of 3 in a million."""
    return int.from_bytes(blake2b(marshal.dumps(state, 2), digest_size=8).digest(), "big")


def _path(came_from: dict[int, int], name: int) -> tuple[int, ...]:
    path = []
    while name:
        path.append(name)
        name = came_from[name]
    return tuple(reversed(path))


def replay(found: Found) -> list[tuple[World, steps.Action, World | Violation]]:
    """The way to the violation again: the world before, what happens, the world after. Under the same switch, if any.

    Names stay from step to step, unless worlds that count as one lead on under different numbers; then they may not."""
    return _replay(found, keep_names=True) or _replay(found, keep_names=False)


def _replay(found: Found, *, keep_names: bool) -> list[tuple[World, steps.Action, World | Violation]]:
    size = found.size
    way: list[tuple[World, steps.Action, World | Violation]] = []
    state = encode(first(size))
    for wanted in (*found.path[1:], None):
        step = next(
            (
                (action, outcome)
                for action, outcome in successors(size, state)
                if (wanted is None) is isinstance(outcome, Violation)
                and (isinstance(outcome, Violation) or fingerprint(canonical(size, outcome)) == wanted)
            ),
            None,
        )
        if step is None:
            return []
        action, outcome = step
        if isinstance(outcome, Violation):
            way.append((decode(size, state), action, outcome))
        else:
            following = outcome if keep_names else canonical(size, outcome)
            way.append((decode(size, state), action, decode(size, following)))
            state = following
    return way
