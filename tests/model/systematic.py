"""Two and three writes on one and two objects with what may happen beside them: nothing, each ingredient alone, all
pairs of them, and so on, as far as one asks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from tests.model.size import Op, Size

INGREDIENTS: dict[str, dict[str, int]] = {
    "a grant": {"grants": 1},
    "a retry": {"retries": 1},
    "a delete": {"deletes": 1},
    "a Complete": {"creates": 1, "completes": 1},
    "a fault": {"faults": 1},
    "a crash": {"crashes": 1},
    "a lost database": {"losses": 1},
}
WRITES = {2: "two", 3: "three"}
OBJECTS = {1: "one object", 2: "two objects"}


def worlds(most: int, *, least: int = 0) -> Iterator[Size]:
    """Those with `least` to `most` ingredients, the small ones first; each at a store that honours conditions, and at
    one that does not."""
    for count in range(least, most + 1):
        for writes in WRITES:
            for objects in OBJECTS:
                for chosen in combinations(INGREDIENTS, count):
                    yield world(writes, objects, chosen, honoured=True)
                    yield world(writes, objects, chosen, honoured=False)


def world(writes: int, objects: int, chosen: tuple[str, ...], *, honoured: bool) -> Size:
    """With these ingredients."""
    budgets: dict[str, int] = {}
    for ingredient in chosen:
        budgets |= INGREDIENTS[ingredient]
    name = f"{WRITES[writes]} writes on {OBJECTS[objects]}" + "".join(f", {ingredient}" for ingredient in chosen)
    return Size(name + ("" if honoured else "; unconditional"), (Op.PUT,), writes=writes, objects=objects,
                honoured=honoured, **budgets)  # fmt: skip
