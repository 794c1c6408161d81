"""Nobody can tell the gateway from the store behind it, but for what `tests.differential.allowed` explains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.s3.operations import OPERATIONS, Effect
from tests.differential.search import search
from tests.differential.sequences import every_operation
from tests.differential.sides import sides
from tests.differential.world import World

REQUESTS = 300
"""What CI sends; `make differential` sends as many as one likes."""
LEFT_OUT = {
    "PostObject": "a browser form is 501 where a fence may apply",
    "RenameObject": "the fence cannot follow it",
    "CreateSession": "it hands out the store's own credentials",
    "WriteGetObjectResponse": "it answers for another server",
}
"""What the generator never produces, and why: the gateway passes none of these on."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two stores and a gateway."""
    with sides(tmp_path_factory.mktemp("differential") / "sides") as running:
        world = World(running)
        yield world
        world.close()


def test_nobody_can_tell(world: World) -> None:
    """Generated requests have the same answers, and leave the same state, past the gateway and through it."""
    seed = 0
    while world.requests < REQUESTS:
        assert (difference := search(world, seed, 20)) is None, difference
        seed += 1
    assert world.used["fence on objects"], "no fenced object was ever written"
    assert sum(world.succeeded.values()) > REQUESTS // 2


def test_every_operation_is_generated() -> None:
    """Each row of the operation table has a generator, but for those that no gateway passes on."""
    assert {row.name for row in OPERATIONS} - every_operation() == set(LEFT_OUT)
    assert {row.name for row in OPERATIONS if row.effect is Effect.NEVER} == set(LEFT_OUT)
