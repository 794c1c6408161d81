"""Tokens and fence keys: how they are read, and what an object carries of them (R9)."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import (
    MAX_KEY_BYTES,
    MAX_TOKEN,
    FencingKey,
    agree,
    key_fault,
    key_in_metadata,
    key_of_metadata,
    key_of_object,
    parse_key,
    parse_token,
    stand_in_of,
    token_in_json,
)

# --- tokens


@pytest.mark.parametrize("text", ["1", "9", "10", "33", "9007199254740993", str(MAX_TOKEN)])
def test_tokens(text: str) -> None:
    """Whole numbers from 1 to 2^63-1 are tokens."""
    assert parse_token(text) == int(text)


BAD_TOKENS = [
    *(
        "",
        " ",
        "0",
        "00",
        "-1",
        "-0",
        "+33",
        "033",
        "33.0",
        "3e1",
        "0x21",
        "1_000",
        " 33",
        "33 ",
        "33\n",
        "3 3",
        "33,34",
    ),
    *("٣٣", "３３", "²", "Ⅷ", "1٣", "\x0033", "33\x00", "abc", "NaN", "\udcff"),
    str(MAX_TOKEN + 1),
    "9" * 19,
    "1" + "0" * 19,
    "9" * 400,
    "9" * 5000,
]


@pytest.mark.parametrize("text", BAD_TOKENS)
def test_bad_tokens(text: str) -> None:
    """Anything else is TokenInvalid, and names the field and the start of what it held."""
    with pytest.raises(Malformed) as caught:
        parse_token(text, "fencing-token")
    assert caught.value.reason is Reason.TOKEN_INVALID
    assert caught.value.argument == ("fencing-token", text[:64])


@given(st.integers(1, MAX_TOKEN))
def test_every_token(token: int) -> None:
    """Every token is read as the number it writes."""
    assert parse_token(str(token)) == token


def test_tokens_beyond_exact_numbers_are_strings_in_json() -> None:
    """JSON readers lose digits above 2^53."""
    assert (token_in_json(2**53), token_in_json(2**53 + 1)) == (2**53, "9007199254740993")


# --- fence keys


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("job-7", "job-7"),
        ("a%2Fb", "a/b"),
        ("%C3%A9", "é"),
        ("é", "é"),
        ("\udcc3\udca9", "é"),  # the same bytes, as a header's surrogate escapes
        ("10%2B2", "10+2"),
        ("a+b", "a+b"),
        ("100%", "100%"),
        ("%zz", "%zz"),
        ("a%2541", "a%41"),  # decoded once
        (" a ", " a "),
        ("objects:7", "objects:7"),
        ("a" * 512, "a" * 512),
        ("é" * 256, "é" * 256),
        ("%61" * 512, "a" * 512),
    ],
)
def test_keys(text: str, key: str) -> None:
    """1 to 512 bytes of UTF-8 after percent-decoding are a key."""
    assert parse_key(text) == key


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("a" * 513, "longer"),
        ("é" * 257, "longer"),
        ("%FF", "not valid UTF-8"),
        ("%C3", "not valid UTF-8"),
        ("%ED%A0%80", "not valid UTF-8"),  # a surrogate
        ("\udcff", "not valid UTF-8"),
        ("a%00", "control"),
        ("a%0Ab", "control"),
        ("a%7F", "control"),
        ("a%C2%85", "control"),
        ("a\tb", "control"),
        ("object:b/k", "object:"),
        ("%6Fbject:b/k", "object:"),
        ("object%3Ab/k", "object:"),
    ],
)
def test_bad_keys(text: str, fault: str) -> None:
    """Anything else is KeyInvalid; no spelling names the namespace of the objects themselves."""
    with pytest.raises(Malformed, match=fault) as caught:
        parse_key(text, "x-fencing-key")
    assert caught.value.reason is Reason.KEY_INVALID
    assert caught.value.argument == ("x-fencing-key", text[:64])


@given(st.text())
def test_any_key_is_judged(key: str) -> None:
    """Every text is judged without a crash, and a key without fault survives its percent-encoding."""
    if key_fault(key) is None:
        assert parse_key(quote(key, safe="")) == key
    assert (key_fault(key) is None) == (
        0 < len(key.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
        and not re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", key)
        and not key.startswith("object:")
    )


def test_a_lone_surrogate_is_a_fault() -> None:
    """A key that no UTF-8 can write is a fault, not a crash: an environment variable may hold one."""
    assert key_fault("a\udcff") == "is empty or not valid UTF-8"
    with pytest.raises(Malformed, match="not valid UTF-8"):
        parse_key("\ud800")


def test_key_of_object() -> None:
    """An object's own key tells bucket and key apart, and no client can name it."""
    assert key_of_object("b", "x/y") == "object:b/x/y"
    assert key_fault(key_of_object("b", "k")) is not None


@given(st.text(), st.text())
def test_key_in_metadata_is_injective(one: str, other: str) -> None:
    """Two keys never look the same on an object, and what is written there is plain ASCII of bounded length."""
    written = key_in_metadata(one)
    assert (written == key_in_metadata(other)) == (one == other)
    assert re.fullmatch("[A-Za-z0-9/._~%-]*|sha256:[0-9a-f]{64}", written)
    assert len(written) <= 256


def test_key_in_metadata_hashes_long_keys() -> None:
    """A key of more than 256 characters there is its hash, which no other key can spell."""
    assert key_in_metadata("a" * 256) == "a" * 256
    hashed = key_in_metadata("a" * 257)
    assert hashed.startswith("sha256:")
    assert len(hashed) == 71
    assert key_in_metadata(hashed) != hashed


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300))
@example("a" * 257)
def test_what_an_object_carries_leads_back_to_its_key(key: str) -> None:
    """To the very key; where it is a hash, to a stand-in that the key itself leads to and that nobody can name."""
    found = key_of_metadata(key_in_metadata(key))
    if stand_in_of(key) is None:
        assert found == key
    else:
        assert found == stand_in_of(key) != key
        assert key_fault(found)
        assert not found.startswith(key_of_object("b", ""))


# --- several sources
OWN, A, B = key_of_object("b", "k"), FencingKey("a"), FencingKey("b")


def test_agree() -> None:
    """One key comes out where the sources that speak agree; the object's own where none speaks."""
    assert agree(OWN) == (OWN, False)
    assert agree(OWN, rule=None, header=None) == (OWN, False)
    assert agree(OWN, rule=None, header=A) == (A, True)
    assert agree(OWN, rule=A, header=None) == (A, True)
    assert agree(OWN, rule=A, binding=A, header=A) == (A, True)


def test_disagree() -> None:
    """Where two differ the write is refused, and told which two."""
    with pytest.raises(Malformed, match="the rule 'a', the header 'b'") as caught:
        agree(OWN, rule=A, binding=None, header=B)
    assert caught.value.reason is Reason.KEY_MISMATCH
    assert caught.value.key == "a"
    assert caught.value.argument == ("X-Fencing-Key", "b")
