"""What the encoding leaves out makes no difference to what can happen."""

from __future__ import annotations

import random
from copy import deepcopy

from tests.model import steps
from tests.model.canonical import canonical
from tests.model.encoding import decode, encode
from tests.model.guarantees import Violation
from tests.model.walk import everything
from tests.model.world import Encoded, NoChange, World, first

WAYS = 30
LONGEST = 40


def following(w: World) -> set[Encoded | str]:
    """All that can come next, and that nothing does, each in one form."""
    found: set[Encoded | str] = {canonical(w.size, encode(w))}
    for action in list(steps.enabled(w)):
        after = deepcopy(w)
        try:
            steps.act(after, action)
        except NoChange:
            continue
        except Violation as violation:
            found.add(str(violation))
        else:
            found.add(canonical(w.size, encode(after)))
    return found


def test_the_same_can_happen_without_what_is_left_out() -> None:
    """From worlds on random ways that have never been encoded, and from the same after they have been."""
    for seed in range(WAYS):
        draw, w = random.Random(seed), first(everything(seed))
        for _ in range(LONGEST):
            assert following(w) == following(decode(w.size, encode(w))), seed
            actions = list(steps.enabled(w))
            draw.shuffle(actions)
            for action in actions:
                after = deepcopy(w)
                try:
                    steps.act(after, action)
                except NoChange:
                    continue
                w = after
                break
            else:
                break
