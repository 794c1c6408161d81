"""Two and three writes on one and two objects with what may happen beside them: nothing, each ingredient alone, all
pairs of them, and so on, as far as one asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

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
_WORDS = {2: "two", 3: "three"}


def worlds(
    most: int, *, least: int = 0, writes: Iterable[int] = (2, 3), objects: Iterable[int] = (1, 2)
) -> Iterator[Size]:
    """Those with `least` to `most` ingredients, the small ones first; each at a store that honours conditions, and at
    one that does not."""
    for count in range(least, most + 1):
        for so_many, places, chosen in product(writes, objects, combinations(INGREDIENTS, count)):
            yield world(so_many, places, chosen)
            yield world(so_many, places, chosen, honoured=False)


def world(writes: int, objects: int, chosen: Iterable[str], *, honoured: bool = True) -> Size:
    """So many writes on so many objects, with these ingredients."""
    budgets: dict[str, int] = {}
    for ingredient in chosen:
        budgets |= INGREDIENTS[ingredient]
    where = "one object" if objects == 1 else "two objects"
    name = ", ".join([f"{_WORDS[writes]} writes on {where}", *chosen]) + ("" if honoured else "; unconditional")
    return Size(name, (Op.PUT,), writes=writes, objects=objects, honoured=honoured, **budgets)  # type: ignore[arg-type]
