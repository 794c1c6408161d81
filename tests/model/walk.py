"""Random ways through worlds that are too large to be looked at whole: everything at once, step by step.

What the explorer does for small worlds, this does for large ones without a claim to have seen all: the same steps, the
same guarantees after each, schedules drawn from seeds.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.model import steps
from tests.model.encoding import decode, encode
from tests.model.guarantees import Violation
from tests.model.size import Op, Size
from tests.model.transcript import changes, told
from tests.model.world import Encoded, NoChange, first

LONGEST = 120
RARE = {"crash": 0.1, "lose the database": 0.1, "stop": 0.2, "give up": 0.2, "tick": 0.4}
"""What ends most of what is under way is chosen less often than the rest."""


@dataclass
class Walk:
    """One way, as far as it went."""

    seed: int
    steps: int = 0
    violation: Violation | None = None
    story: list[str] = field(default_factory=list)
    """Where a guarantee was broken: how."""


def everything(seed: int) -> Size:
    """Three or four writes of any kind with all that may happen beside them, some of it left out by chance; in some
    worlds beside a job of a queue."""
    draw = random.Random(f"everything {seed}")
    keys = draw.choice([1, 1, 2])
    jobs = keys == 1 and draw.random() < 0.3
    ops = tuple(draw.sample([Op.PUT, Op.STREAM, Op.DELETE, Op.COPY, Op.CREATE], 3))
    return Size(
        "everything at once",
        ops,
        tokens=draw.choice([(1, 2), (1, 2), (0, 1, 2), (1, 2, 3)]),
        writes=draw.choice([3, 4]),
        grants=draw.choice([0, 1]),
        seals=draw.choice([0, 0, 1]),
        leases=draw.choice([0, 0, 2]),
        finishes=draw.choice([0, 0, 1]),
        receives=draw.choice([2, 3]) if jobs else 0,
        extends=draw.choice([0, 1, 2]),
        ends=draw.choice([0, 1, 2]),
        reopens=draw.choice([0, 0, 1]),
        retries=draw.choice([0, 1, 2]),
        faults=draw.choice([0, 1, 2]),
        crashes=draw.choice([0, 1, 2]),
        stops=draw.choice([0, 0, 1]),
        losses=0 if jobs else draw.choice([0, 0, 1]),
        recorded=draw.random() < 0.7,
        objects=draw.choice([1, 2]),
        keys=keys,
        rekey=draw.random() < 0.5,
        honoured=draw.random() < 0.7,
        equal_bytes=draw.random() < 0.2,
    )


def walk(seed: int, size: Size | None = None) -> Walk:
    """The way of a seed; the same for the same seed."""
    size, draw = size or everything(seed), random.Random(f"walk {seed}")
    world, done = first(size), Walk(seed)
    taken: list[tuple[Encoded, steps.Action, Encoded | None]] = []
    while done.steps < LONGEST:
        before = encode(world)
        choices = list(steps.enabled(world))
        moved = False
        while choices and not moved:
            action = _drawn(draw, choices)
            choices.remove(action)
            try:
                steps.act(world, action)
                moved = True
            except NoChange:
                world = decode(size, before)
            except Violation as violation:
                done.violation = violation
                done.story = list(_story([*taken, (before, action, None)], size, violation))
                return done
        if not moved:
            return done
        after = encode(world)
        taken.append((before, action, after))
        world = decode(size, after)  # times are told from now on
        done.steps += 1
    return done


def _drawn(draw: random.Random, choices: list[steps.Action]) -> steps.Action:
    weights = [RARE.get(str(action[0]), 1.0) for action in choices]
    return draw.choices(choices, weights)[0]


def _story(
    taken: Iterable[tuple[Encoded, steps.Action, Encoded | None]], size: Size, violation: Violation
) -> Iterable[str]:
    for number, (before, action, after) in enumerate(taken, 1):
        world = decode(size, before)
        yield f"{number:3} {told(world, action)}"
        yield from (f"      {line}" for line in changes(world, violation if after is None else decode(size, after)))
