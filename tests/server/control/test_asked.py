"""Keys, tokens and bodies on the wire."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from yarl import URL

from gateway.server.control.calls import MAX_BODY_BYTES
from tests.server.control.rig import (
    AWKWARD,
    AWKWARD_RAW,
    HUGE,
    Listener,
    listener,
    make,
    told,
)

__all__ = ["listener", "make"]


async def test_a_key_is_one_percent_encoded_segment(listener: Listener) -> None:
    """Slashes, percent signs, dots, question marks, braces and non-ASCII are part of the key when encoded."""
    for call, body in (("check", {"token": 1}), ("raise", {"token": 2, "reason": "x"}), ("seal", {"reason": "x"})):
        status, answer = await listener.post(f"/v1/fences/{AWKWARD_RAW}/{call}", body)
        assert (status, answer["key"]) == (200, AWKWARD)
    assert (await listener.get(f"/v1/fences/{AWKWARD_RAW}"))[1]["floor"] == 2
    assert len((await listener.get(f"/v1/fences/{AWKWARD_RAW}/events"))[1]["events"]) == 3
    assert (await listener.get("/v1/fences"))[1]["fences"][0]["key"] == AWKWARD


async def test_no_character_is_too_odd_for_a_key(listener: Listener) -> None:
    """Whatever a header, an object or a job can name as a key, every call finds."""
    odd = ["e\u0301", "\u2028", "\ufffd", "\U0010ffff", "a;b", "a=b&c", "%7B"]
    for key in [*(f"{chr(code)}x" for code in range(0x20, 0x7F)), *odd]:
        status, answer = await listener.get(f"/v1/fences/{quote(key, safe='')}/events")
        assert (status, answer) == (200, {"events": [], "next": None}), key
        status, answer = await listener.get(f"/v1/fences/{quote(key, safe='')}")
        assert (status, answer["key"]) == (200, key)


async def test_the_key_of_an_object_may_be_looked_at(listener: Listener) -> None:
    """The namespace that no header can name is open here: an object's own key can be shown and raised."""
    status, answer = await listener.post("/v1/fences/object:b%2Fdir%2Fo/raise", {"token": 3, "reason": "x"})
    assert (status, answer["key"], answer["floor"]) == (200, "object:b/dir/o", 3)


@pytest.mark.parametrize("raw", ["%FF", "%00", "a%0Ab", "k" * 513])
async def test_a_bad_key(listener: Listener, raw: str) -> None:
    """What no key can be is 400 KeyInvalid."""
    status, problem = await listener.get(f"/v1/fences/{raw}")
    assert (status, problem["reason"]) == (400, "KeyInvalid")


@pytest.mark.parametrize(
    ("token", "shown"), [(2**53, 2**53), (2**53 + 1, str(2**53 + 1)), (str(HUGE), str(HUGE)), (HUGE, str(HUGE))]
)
async def test_tokens_past_what_json_readers_have_exact_are_strings(
    listener: Listener, token: int | str, shown: int | str
) -> None:
    """Up to 2^53 a token is a number, above a string; both are accepted, and none loses a digit."""
    assert (await listener.post("/v1/fences/k/check", {"token": token}))[1] == {
        "key": "k",
        "token": shown,
        "floor": shown,
    }
    assert (await listener.get("/v1/fences/k"))[1]["floor"] == shown
    assert (await listener.get("/v1/fences/k/events"))[1]["events"][0]["token"] == shown


async def test_a_number_is_a_number(listener: Listener) -> None:
    """JSON knows no integers apart: 5.0 is 5, as its schemas say, up to where readers have them exact."""
    body = b'{"token": 5.0}'
    assert await listener.post("/v1/fences/k/check", body) == (200, {"key": "k", "token": 5, "floor": 5})
    assert (await listener.post("/v1/fences/k/check", {"token": 2.0**53 - 1}))[1]["floor"] == 2**53 - 1
    assert (await listener.get("/v1/fences?limit=1.0"))[1]["next"] == "k"


@pytest.mark.parametrize("token", [0, -1, 2**63, 1.5, 2.0**53, 1e300, True, None, "", "01", "+1", " 1", "１", [1], {}])
async def test_a_bad_token(listener: Listener, token: object) -> None:
    """What is no token is 400 TokenInvalid and raises nothing."""
    status, problem = await listener.post("/v1/fences/k/check", {"token": token})
    assert (status, problem["reason"]) == (400, "TokenInvalid")
    assert (await listener.store.fence("k")).floor == 0


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("check", b""),
        ("check", b"token=34"),
        ("check", b"[34]"),
        ("check", {"token": 34, "reason": "x"}),
        ("raise", {"token": 34}),
        ("raise", {"token": 34, "reason": " "}),
        ("raise", {"token": 34, "reason": 7}),
        ("raise", {"token": 34, "reason": "red \x1b[31m"}),
        ("raise", {"token": 34, "reason": "red \x9b31m"}),
        ("raise", {"token": 34, "reason": "x" * 501}),
        ("seal", {}),
        ("settle", {}),
        ("settle", {"reason": ""}),
    ],
)
async def test_a_bad_body(listener: Listener, call: str, body: object) -> None:
    """A body that says less, more or something else is 400 and changes nothing."""
    await listener.post("/v1/fences/k/check", {"token": 1})
    status, problem = await listener.post(f"/v1/fences/k/{call}", body)
    assert (status, problem["reason"]) == (400, "invalid")
    fence = await listener.store.fence("k")
    assert (fence.floor, fence.sealed_token) == (1, 0)


@pytest.mark.parametrize("reason", [" ", "a\nb", "a\n", "\x9b", "\xa0"])
async def test_what_a_text_must_be_is_told_in_words(listener: Listener, reason: str) -> None:
    """Not as a pattern; and what is one is taken to its last character."""
    status, problem = await listener.post("/v1/fences/k/raise", {"token": 1, "reason": reason})
    assert (status, problem["reason"]) == (400, "invalid")
    assert problem["detail"] == "`reason`: must be text without control characters, and not blank"
    status, problem = await listener.get("/v1/fences/k/events?before=x")
    assert (status, problem["detail"]) == (400, "`before`: must be the `next` of the page before")
    path, named = URL("/v1/fences/k/check"), {"X-Request-Id": "a b"}
    status, problem = await told(await listener.client.post(path, json={"token": 1}, headers=named))
    assert (status, problem["detail"]) == (
        400,
        "the header X-Request-Id must come once, as 1 to 128 visible characters of ASCII",
    )


async def test_a_body_past_the_limit(listener: Listener) -> None:
    """A body is bounded: 413, as a problem like any other."""
    status, problem = await listener.post("/v1/fences/k/raise", {"token": 1, "reason": "x" * MAX_BODY_BYTES})
    assert (status, problem["reason"]) == (413, "too-large")


async def test_what_is_not_there(listener: Listener) -> None:
    """Unknown paths and methods are problems, too."""
    assert (await listener.get("/v1/nothing"))[0] == 404
    assert (await listener.post("/v1/fences", {}))[0] == 405
