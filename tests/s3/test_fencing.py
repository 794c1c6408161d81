"""What a request says to the fence, and what an object tells of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import MAX_TOKEN, FencingKey, Token, key_fault, parse_key
from gateway.core.write import ObjectState
from gateway.s3.fencing import (
    KEY_HEADERS,
    META_KEY,
    META_NONCE,
    META_TOKEN,
    NOTHING_CLAIMED,
    SPOKEN,
    TOKEN_HEADERS,
    Claimed,
    claimed,
    key_in_header,
    object_metadata,
    object_state,
)
from gateway.s3.request import Headers

Fields = list[tuple[str, str]]


def refusal(fields: Fields, signed: frozenset[str] | None = None) -> Malformed:
    headers = Headers(fields)
    with pytest.raises(Malformed) as caught:
        claimed(headers, signed)
    return caught.value


# --- what a request says


def test_nothing_said() -> None:
    """A request without the headers claims nothing, whatever else it bears."""
    assert claimed(Headers([]), frozenset()) == NOTHING_CLAIMED
    fields = [("x-amz-meta-fencing", "1"), ("x-amz-meta-a", "1"), ("x-fencing-tokens", "1")]
    assert claimed(Headers(fields), frozenset()) == NOTHING_CLAIMED


@pytest.mark.parametrize("name", TOKEN_HEADERS)
@pytest.mark.parametrize("key_name", [None, *KEY_HEADERS])
def test_equal_names(name: str, key_name: str | None) -> None:
    """Each name of the token goes with each name of the key, or with none."""
    fields = [(name, "33")] + ([(key_name, "job%207")] if key_name else [])
    assert claimed(Headers(fields), SPOKEN) == Claimed(Token(33), FencingKey("job 7") if key_name else None)


@pytest.mark.parametrize("name", KEY_HEADERS)
def test_key_alone(name: str) -> None:
    """A key may be named without a token."""
    assert claimed(Headers([(name, "j")]), None) == Claimed(None, FencingKey("j"))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        *((pair, Reason.TOKEN_INVALID) for pair in itertools.product(TOKEN_HEADERS, repeat=2)),
        *((pair, Reason.KEY_INVALID) for pair in itertools.product(KEY_HEADERS, repeat=2)),
    ],
)
@pytest.mark.parametrize("second", ["33", "34"])
def test_said_twice(names: tuple[str, str], reason: Reason, second: str) -> None:
    """Token or key sent twice is refused in any mix of names, also with equal values."""
    error = refusal([(names[0], "33"), (names[1], second)])
    assert error.reason is reason
    assert "more than once" in error.message


@pytest.mark.parametrize("name", sorted(SPOKEN))
def test_unsigned(name: str) -> None:
    """Each header must be among the signed ones, unless the client need not sign them."""
    fields = [(name, "33")]
    error = refusal(fields, frozenset({"host"}) | (SPOKEN - {name}))
    assert (error.reason, error.argument) == (Reason.NOT_SIGNED, (name, "33"))
    assert claimed(Headers(fields), None) == claimed(Headers(fields), frozenset({name})) != NOTHING_CLAIMED


def test_unsigned_beside_signed() -> None:
    """A signed token does not cover an unsigned key."""
    error = refusal([("x-fencing-token", "33"), ("x-fencing-key", "j")], frozenset({"x-fencing-token"}))
    assert error.argument == ("x-fencing-key", "j")


@pytest.mark.parametrize(
    "name",
    [
        META_NONCE,
        "x-amz-meta-fencing-",
        "x-amz-meta-fencing-other",
        "x-amz-meta-fencing_token",
        "x-amz_meta_fencing-key",
    ],
)
def test_the_gateways_metadata(name: str) -> None:
    """A client may not write the gateway's own metadata, signed or not."""
    for signed in (None, frozenset({name})):
        error = refusal([(name, "v" * 100)], signed)
        assert (error.reason, error.argument) == (Reason.KEY_INVALID, (name, "v" * 64))


@pytest.mark.parametrize("value", ["", "0", "-1", "33, 34", "33,33", "9" * 400, "\udcff"])
def test_bad_token(value: str) -> None:
    """A bad token is refused under the name it came with."""
    error = refusal([("fencing-token", value)])
    assert (error.reason, error.argument) == (Reason.TOKEN_INVALID, ("fencing-token", value[:64]))


@pytest.mark.parametrize("value", ["", "%FF", "object:b/k", "a%0A", "a" * 513])
def test_bad_key(value: str) -> None:
    """So is a bad key."""
    error = refusal([("x-fencing-token", "33"), (META_KEY, value)])
    assert (error.reason, error.argument) == (Reason.KEY_INVALID, (META_KEY, value[:64]))


# --- what an object tells


@given(st.text(min_size=1, max_size=300), st.integers(1, MAX_TOKEN), st.text("0123456789abcdef", min_size=1))
def test_round_trip(key: str, token: int, nonce: str) -> None:
    """What is written onto an object is read back from its head, in ASCII that every server keeps."""
    metadata = object_metadata(FencingKey(key), Token(token), nonce)
    assert all(value.isascii() and value == value.strip() for _, value in metadata)
    state = object_state([("etag", '"e"'), *metadata])
    assert state == ObjectState('"e"', dict(metadata)[META_KEY], token, nonce)


@pytest.mark.parametrize(
    "forged",
    [
        {META_TOKEN: ""},
        {META_TOKEN: "0"},
        {META_TOKEN: "-1"},
        {META_TOKEN: "+3"},
        {META_TOKEN: "03"},
        {META_TOKEN: "3.0"},
        {META_TOKEN: "3 "},
        {META_TOKEN: "٣"},
        {META_TOKEN: "²"},
        {META_TOKEN: str(MAX_TOKEN + 1)},
        {META_TOKEN: "9" * 19},
        {META_TOKEN: "9" * 5000},
        {META_KEY: ""},
        {META_KEY: "a b"},
        {META_KEY: "é"},
        {META_KEY: "object:b/k"},
        {META_KEY: "sha256:short"},
        {META_KEY: "sha256:" + "A" * 64},
    ],
)
def test_forged_metadata(forged: dict[str, str]) -> None:
    """Metadata that the gateway cannot have written counts as none: it raises no floor and owns no object."""
    fields = {"etag": "e", META_KEY: "k", META_TOKEN: "3", META_NONCE: "n"}
    assert object_state((fields | forged).items()) == ObjectState("e")
    assert object_state(fields.items()) == ObjectState("e", "k", 3, "n")


def test_incomplete_metadata() -> None:
    """A token without a key, or a key without a token, is none; a nonce may be missing."""
    assert object_state([("etag", "e"), (META_TOKEN, "3"), (META_NONCE, "n")]) == ObjectState("e")
    assert object_state([("etag", "e"), (META_KEY, "k"), (META_NONCE, "n")]) == ObjectState("e")
    assert object_state([("etag", "e"), (META_KEY, "k"), (META_TOKEN, "3")]) == ObjectState("e", "k", 3)


@pytest.mark.parametrize(
    ("fields", "versioned"),
    [([], False), ([("x-amz-version-id", "null")], False), ([("x-amz-version-id", "v1")], True)],
)
def test_versioned(fields: Fields, versioned: bool) -> None:
    """A version id other than null tells of a versioned bucket."""
    assert object_state([("etag", "e"), *fields]).versioned is versioned


def test_an_object_is_never_absent() -> None:
    """An existing object without an ETag is not taken for an absent one."""
    assert object_state([]).etag == ""


# --- what readers see


@given(st.text(min_size=1).filter(lambda key: key_fault(key) is None))
def test_key_in_header(key: str) -> None:
    """A key in an answer can be sent back as it is, also with spaces at its ends."""
    value = key_in_header(key)
    assert value.isascii()
    assert value == value.strip()
    assert parse_key(value) == key
