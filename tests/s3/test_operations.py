"""The table of operations: complete against botocore's model of S3, and recognised without a second reading (R8)."""

from __future__ import annotations

import itertools

import pytest

from gateway.s3.errors import S3Error
from gateway.s3.operations import OPERATIONS, Body, Effect, Fences, Level, Operation
from gateway.s3.recognise import recognise
from gateway.s3.request import RequestHead
from tests.s3.model import head_of, model, request_of

ROWS = {row.name: row for row in OPERATIONS}
ALIASES = {alias: row for row in OPERATIONS for alias in row.aliases}
NOT_IN_THE_MODEL = {"PostObject", "PreflightObject", "PreflightBucket"}


@pytest.mark.parametrize("name", model().operation_names)
def test_complete(name: str) -> None:
    """Every operation of botocore's model has a row, and its request is recognised as that row and no other."""
    assert name in ROWS or name in ALIASES, f"{name} has no row in gateway/s3/operations.py: {told(name)}"
    row = ALIASES.get(name) or ROWS[name]
    assert recognise(request_of(name)) is row
    assert [one.name for one in candidates(request_of(name))][:1] == [row.name]


@pytest.mark.parametrize("name", model().operation_names)
def test_optional_members(name: str) -> None:
    """What an operation may bear besides does not make it another one, and is not refused."""
    head = request_of(name, everything=True)
    assert recognise(head) is (ALIASES.get(name) or ROWS[name])


@pytest.mark.parametrize("name", model().operation_names)
def test_parameters(name: str) -> None:
    """What a write may bear in its query is what the model lets it bear: nothing else goes to a store, which might make
    something of it."""
    row = ALIASES.get(name) or ROWS[name]
    if row.method in ("GET", "HEAD"):
        return
    borne = {parameter for parameter, _ in request_of(name, everything=True).query}
    assert borne == {*filter(None, [row.subresource]), *row.requires, *row.parameters}


def told(name: str) -> str:
    """What botocore's model says of an operation, for whoever adds its row."""
    http = model().operation_model(name).http
    return f"{http['method']} {http['requestUri']}"


def candidates(head: RequestHead) -> list[Operation]:
    """The rows whose every demand a request meets, the most demanding first. Read from the table alone."""
    names = {name for name, _ in head.query}
    level = Level.SERVICE if head.bucket is None else Level.BUCKET if head.key is None else Level.OBJECT
    fitting = [
        row
        for row in OPERATIONS
        if (row.method, row.level) == (head.method, level)
        and names.issuperset(row.requires)
        and (row.subresource is None or row.subresource in names)
        and (row.header is None or row.header in head.headers)
    ]
    return sorted(fitting, key=demands, reverse=True)


def recognised(head: RequestHead) -> Operation | None:
    """None where the request is refused."""
    try:
        return recognise(head)
    except S3Error:
        return None


def demands(row: Operation) -> int:
    return (row.subresource is not None) + len(row.requires) + (row.header is not None)


MARKERS = {
    level: sorted(
        {name for row in OPERATIONS if row.level is level for name in (row.subresource, *row.requires) if name}
    )
    for level in Level
}


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_no_request_is_two_operations(row: Operation) -> None:
    """To the plainest request of a row come, one by one, in pairs and all at once, the parameters that mark others, and
    the source of a copy. It stays what it was, becomes the one other row that asks for more, or is refused: never
    recognised as a row whose demands it does not meet, nor while another row that it meets as well asks as much."""
    target = {Level.SERVICE: "/", Level.BUCKET: "/b", Level.OBJECT: "/b/k"}[row.level]
    own = [name for name in (row.subresource, *row.requires) if name]
    others = [marker for marker in MARKERS[row.level] if marker not in own]
    subsets = [*itertools.chain.from_iterable(itertools.combinations(others, n) for n in (0, 1, 2)), tuple(others)]
    for more, copies in itertools.product(subsets, (False, True) if row.method == "PUT" else (False,)):
        headers = {*filter(None, [row.header]), *(["x-amz-copy-source"] if copies else [])}
        head = head_of(row.method, f"{target}?{'&'.join(f'{name}=1' for name in (*own, *more))}", *headers)
        found = recognised(head)
        if found is None:
            assert more or copies, row.name
            continue
        if row.method == "OPTIONS":
            assert found is row
            continue
        fitting = candidates(head)
        assert found in fitting, (row.name, more, found.name)
        rivals = [one.name for one in fitting if one is not found and demands(one) >= demands(found)]
        assert not rivals, (row.name, more, found.name, rivals)


def test_nothing_invented() -> None:
    """Rows and aliases are operations of the model, but for the form post and the preflights; each name is one row."""
    assert {*ROWS, *ALIASES} - NOT_IN_THE_MODEL <= set(model().operation_names)
    assert len(ROWS) == len(OPERATIONS)
    assert not ROWS.keys() & ALIASES.keys()


def signature(row: Operation) -> tuple[object, ...]:
    return row.method, row.level, row.subresource, frozenset(row.requires), row.header


def test_no_two_rows_match_alike() -> None:
    """No two rows ask for the same; where one asks for more, it is the one that is recognised."""
    assert len({signature(row) for row in OPERATIONS}) == len(OPERATIONS)
    for one, other in itertools.permutations(OPERATIONS, 2):
        if signature(one)[:3] == signature(other)[:3]:
            ones = {*one.requires, one.header} - {None}
            others = {*other.requires, other.header} - {None}
            assert ones < others or others < ones, (one.name, other.name)


def test_the_fence_covers_every_effect_on_objects() -> None:
    """A row fences an object exactly if it has an effect on one; what is not passed needs no more."""
    for row in OPERATIONS:
        writes = row.effect in (Effect.COMMIT, Effect.STAGE, Effect.DISCARD)
        assert writes <= (row.fences is not Fences.NOTHING), row.name
        assert (row.effect in (Effect.READ, Effect.CONFIGURE)) <= (row.fences is Fences.NOTHING), row.name
        assert row.conditional <= (row.effect is Effect.COMMIT), row.name
        assert (row.body is Body.PAYLOAD) <= (row.method in ("PUT", "POST")), row.name
        if row.method in ("GET", "HEAD", "OPTIONS"):
            assert row.effect in (Effect.READ, Effect.NEVER), row.name
        elif row.level is Level.OBJECT:
            assert row.effect is not Effect.READ or row.name == "SelectObjectContent", row.name


@pytest.mark.parametrize("name", ["RenameObject", "PostObject", "CreateSession", "WriteGetObjectResponse"])
def test_ways_around_the_fence(name: str) -> None:
    """What acts past the fence, or hands out a way around it, is never passed."""
    assert ROWS[name].effect is Effect.NEVER
