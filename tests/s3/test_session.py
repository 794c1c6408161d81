"""Session tokens: what was sealed comes back, and nothing else does."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import MAX_TOKEN, FencingKey, Token
from gateway.s3.errors import S3Error
from gateway.s3.fencing import NOTHING_CLAIMED, Claimed
from gateway.s3.session import Session, SessionKeys, bound_claim
from gateway.s3.sigv4 import Credentials

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
KEYS = SessionKeys([OLD])
SESSION = Session(FencingKey("job-1"), Token(34), "RENDERER", 1_800_000_000)
ISSUED = KEYS.issue(SESSION, "a nonce")
keys_of_jobs = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=128).map(FencingKey)
sessions = st.builds(
    Session,
    keys_of_jobs,
    st.integers(1, MAX_TOKEN).map(Token),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128),
    st.integers(0, 2**40),
)


def token_of(credentials: Credentials) -> str:
    assert credentials.session_token is not None
    return credentials.session_token


def refused(access_key: str, session_token: str, keys: SessionKeys = KEYS) -> None:
    with pytest.raises(S3Error) as caught:
        keys.open(access_key, session_token)
    assert (caught.value.code, caught.value.status) == ("InvalidToken", 400)
    assert len(session_token) < 40 or session_token not in str(caught.value.elements) + caught.value.message


@given(sessions, st.text(max_size=40))
def test_what_was_sealed_comes_back(session: Session, nonce: str) -> None:
    """Key, token, client and end, and the very secret that was given out."""
    credentials = KEYS.issue(session, nonce)
    assert KEYS.open(credentials.access_key, token_of(credentials)) == (session, credentials)


def test_the_form_is_what_clients_expect() -> None:
    """20 letters and digits, recognisable; a secret of 40 characters; a token that no URL has to escape."""
    assert re.fullmatch("FGLS[A-Z2-7]{16}", ISSUED.access_key)
    assert re.fullmatch("[A-Za-z0-9_-]{40}", ISSUED.secret_key)
    assert re.fullmatch("[A-Za-z0-9_-]+", token_of(ISSUED))


def test_the_longest_fits_a_header_field() -> None:
    """A key of 512 bytes and an access key of 128 stay far below what a field and a URL may be long."""
    longest = Session(FencingKey("ü" * 256), Token(MAX_TOKEN), "A" * 128, 2**40)
    assert len(token_of(KEYS.issue(longest, "n"))) < 1024


def test_each_issue_is_another() -> None:
    """Another nonce, another access key, secret and token; the same nonce, the same."""
    again = KEYS.issue(SESSION, "another nonce")
    assert not {ISSUED.access_key, ISSUED.secret_key, token_of(ISSUED)} & {
        again.access_key, again.secret_key, token_of(again)
    }  # fmt: skip
    assert KEYS.issue(SESSION, "a nonce") == ISSUED


def test_a_token_shows_nothing_of_what_it_holds() -> None:
    """Tokens for two jobs of names equally long have nothing in common but version and sealing key."""
    one = token_of(KEYS.issue(Session(FencingKey("a" * 60), Token(1), "R", 1), "n"))
    other = token_of(KEYS.issue(Session(FencingKey("b" * 60), Token(1), "R", 1), "n"))
    assert one[:6] == other[:6]
    assert sum(a == b for a, b in zip(one[7:], other[7:], strict=True)) < len(one) / 4


@given(st.data())
def test_any_changed_character_is_refused(data: st.DataObject) -> None:
    """Each character of token and access key counts."""
    token = token_of(ISSUED)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(min_codepoint=0, max_codepoint=0x2FF).filter(lambda c: c != token[at]))
    refused(ISSUED.access_key, token[:at] + other + token[at + 1 :])
    at = data.draw(st.integers(0, len(ISSUED.access_key) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda c: c != ISSUED.access_key[at]))
    refused(ISSUED.access_key[:at] + other + ISSUED.access_key[at + 1 :], token)


@given(st.integers(0, 8 * 120), st.integers(0, 8 * 120))
def test_any_flipped_bit_is_refused(first: int, second: int) -> None:
    """One bit or two of the bytes themselves, in version, id, tag or contents."""
    token = token_of(ISSUED)
    sealed = bytearray(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    for bit in {first, second}:
        sealed[bit // 8 % len(sealed)] ^= 1 << bit % 8
    changed = urlsafe_b64encode(sealed).rstrip(b"=").decode()
    if changed != token:
        refused(ISSUED.access_key, changed)


@given(st.text(max_size=200))
def test_any_text_is_refused(text: str) -> None:
    """What nobody sealed, of any form."""
    refused(ISSUED.access_key, text)


@pytest.mark.parametrize("length", range(0, len(token_of(ISSUED)), 3))
def test_a_truncated_token_is_refused(length: int) -> None:
    """Cut anywhere."""
    refused(ISSUED.access_key, token_of(ISSUED)[:length])


@pytest.mark.parametrize("changed", ["{}=", "{}==", " {}", "{}\n", "{}A", "{}.{}", "\udcff{}"])
def test_one_spelling_alone_is_taken(changed: str) -> None:
    """Padding, white space and what follows the end make another token."""
    refused(ISSUED.access_key, changed.replace("{}", token_of(ISSUED)))


def test_a_token_serves_its_own_access_key_alone() -> None:
    """Replayed under another lease's access key, a client's, or none, it is nothing."""
    other = KEYS.issue(SESSION, "another nonce")
    for access_key in (other.access_key, "RENDERER", "", "\udcff", ISSUED.access_key.lower()):
        refused(access_key, token_of(ISSUED))


def test_every_key_opens_and_the_last_one_seals() -> None:
    """A key that is added seals; what the former one sealed is good until that one is taken out."""
    both, new = SessionKeys([OLD, NEW]), SessionKeys([NEW])
    assert both.open(ISSUED.access_key, token_of(ISSUED)) == (SESSION, ISSUED)
    issued = both.issue(SESSION, "n")
    assert new.open(issued.access_key, token_of(issued)) == (SESSION, issued)
    refused(issued.access_key, token_of(issued))
    refused(ISSUED.access_key, token_of(ISSUED), new)
    assert both.ids == [*KEYS.ids, *new.ids]


def test_ids_tell_nothing_of_the_keys() -> None:
    """They are derived, and no part of what they name."""
    for key, name in zip((OLD, NEW), SessionKeys([OLD, NEW]).ids, strict=True):
        assert bytes.fromhex(name) not in key


@pytest.mark.parametrize("keys", [[], [b""], [OLD, OLD[1:]], [OLD + b"x"]])
def test_what_is_no_key(keys: list[bytes]) -> None:
    """None at all, or one of another length."""
    with pytest.raises(ValueError, match="32 bytes"):
        SessionKeys(keys)


@pytest.mark.parametrize(
    "said",
    [
        NOTHING_CLAIMED,
        Claimed(Token(34), None),
        Claimed(None, FencingKey("job-1")),
        Claimed(Token(34), FencingKey("job-1")),
    ],
)
def test_a_header_that_agrees(said: Claimed) -> None:
    """The binding speaks, whether the head says the same or nothing."""
    assert bound_claim(said, SESSION) == Claimed(Token(34), FencingKey("job-1"))


@pytest.mark.parametrize(
    ("said", "reason", "argument"),
    [
        (Claimed(Token(35), None), Reason.TOKEN_INVALID, ("X-Fencing-Token", "35")),
        (Claimed(Token(33), FencingKey("job-1")), Reason.TOKEN_INVALID, ("X-Fencing-Token", "33")),
        (Claimed(Token(34), FencingKey("job-2")), Reason.KEY_MISMATCH, ("X-Fencing-Key", "job-2")),
    ],
)
def test_a_header_that_differs(said: Claimed, reason: Reason, argument: tuple[str, str]) -> None:
    """Nobody gets another token, or another job, by saying so."""
    with pytest.raises(Malformed) as caught:
        bound_claim(said, SESSION)
    assert (caught.value.reason, caught.value.argument, caught.value.key) == (reason, argument, "job-1")
