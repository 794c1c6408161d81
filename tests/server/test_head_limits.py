"""The bounds of a head, to the byte: what is just borne is a request like any other, one byte more is refused."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.listener import Limits
from gateway.server.receiving import MAX_FIELDS
from tests.fuzz.memory_wire import World, quiet
from tests.server.rig import HOST, Pairs, raw
from tests.server.test_connection import play

LIMITS = Limits(max_header_bytes=8192, max_header_field_bytes=4096)
HOST_FIELD = ("host", HOST)
HOST_BYTES = len("host") + len(HOST)


def refused(target: str, fields: Pairs, limits: Limits = LIMITS) -> str:
    """S3's code for a request that nobody has signed: AccessDenied for one whose head is borne."""
    codes: list[str] = []

    async def story(world: World) -> None:
        client, _ = world.connect()
        client.data_received(raw(f"GET {target} HTTP/1.1", fields))
        await quiet()
        codes.extend(code for _, _, code in world.outcome.answered)
        await asyncio.sleep(100)

    play(story, limits=limits)
    (code,) = codes
    return code


@pytest.mark.parametrize(("more", "code"), [(0, "AccessDenied"), (1, "RequestHeaderSectionTooLarge")])
def test_all_fields_together(more: int, code: str) -> None:
    """`max_header_bytes` counts names and values, and nothing between them."""
    left = LIMITS.max_header_bytes - HOST_BYTES - len("x-ax-bx-c") - 8000
    assert refused("/b/k", [HOST_FIELD, ("x-a", "a" * 4000), ("x-b", "b" * 4000), ("x-c", "c" * (left + more))]) == code


@pytest.mark.parametrize(("more", "code"), [(0, "AccessDenied"), (1, "RequestHeaderSectionTooLarge")])
def test_all_fields_together_where_one_may_have_more(more: int, code: str) -> None:
    """The bound for all of them holds, also where it is lower than the one for each."""
    limits = Limits(max_header_bytes=1000, max_header_field_bytes=4096)
    left = limits.max_header_bytes - HOST_BYTES - len("x-a")
    assert refused("/b/k", [HOST_FIELD, ("x-a", "a" * (left + more))], limits) == code


@pytest.mark.parametrize(("more", "code"), [(0, "AccessDenied"), (1, "BadRequest")])
@pytest.mark.parametrize("part", ["name", "value"])
def test_one_field(part: str, more: int, code: str) -> None:
    """`max_header_field_bytes` holds for a name and for a value."""
    long = "x" * (LIMITS.max_header_field_bytes + more)
    assert refused("/b/k", [HOST_FIELD, (long, "v") if part == "name" else ("n", long)]) == code


@pytest.mark.parametrize(("more", "code"), [(0, "AccessDenied"), (1, "BadRequest")])
def test_the_target(more: int, code: str) -> None:
    """The same bound holds for a target, its query included."""
    start = "/b/k?prefix="
    assert refused(start + "x" * (LIMITS.max_header_field_bytes - len(start) + more), [HOST_FIELD]) == code


@pytest.mark.parametrize(("more", "code"), [(0, "AccessDenied"), (1, "BadRequest")])
def test_the_number_of_fields(more: int, code: str) -> None:
    """MAX_FIELDS of them are borne."""
    fields = [(f"x{number}", "") for number in range(MAX_FIELDS - 1 + more)]
    assert refused("/b/k", [HOST_FIELD, *fields]) == code
