"""Session tokens of any kind, in headers and URLs: what was sealed is understood, and nothing else is anybody's."""

# ruff: noqa: PT017

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.keys import MAX_TOKEN, FencingKey, Token
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, parse_head
from gateway.s3.session import Session, SessionKeys
from gateway.s3.sigv4 import Credentials, presign, sign_headers
from gateway.server.clients import Caller, Client, Clients
from gateway.server.sessions import Sessions
from tests.fuzz.settings import short

NOW = 1_800_000_000.0
HOST = "s3.fuzz.example"
KEYS = SessionKeys([b"former" + bytes(26), b"newest" + bytes(26)])
CLIENT = Client(Credentials("AKIDFUZZ", "secret/of+the=fuzzer"))
CLIENTS = Clients([CLIENT], Sessions(lambda: KEYS))
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
GENUINE = [
    KEYS.issue(Session(FencingKey(key), Token(token), "AKIDFUZZ", 2_000_000_000), f"{key} {token}")
    for key, token in (("a", 1), ("a", 2), ("job/" * 100, MAX_TOKEN))
]
SEALED = [one.session_token or "" for one in GENUINE]
sessions = st.builds(
    Session,
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=60).map(FencingKey),
    st.integers(1, MAX_TOKEN).map(Token),
    st.just("AKIDFUZZ"),
    st.integers(int(NOW) + 1, 2**40),
)


def asked(credentials: Credentials, *, in_url: bool) -> Caller | str:
    """Who that is to the gateway, or the code of the refusal; no credentials are a fault."""
    signing = {"credentials": credentials, "region": "us-east-1", "now": NOW}
    if in_url:
        target = "/b/k?" + presign("PUT", HOST, "/b/k", "", expires_s=60, **signing)  # type: ignore[arg-type]
        fields: list[tuple[str, str]] = []
    else:
        target = "/b/k"
        fields = sign_headers("PUT", HOST, "/b/k", "", [], payload_hash=EMPTY, **signing)  # type: ignore[arg-type]
    try:
        return CLIENTS.authenticate(parse_head("PUT", target, Headers([("host", HOST), *fields])), NOW)
    except S3Error as error:
        assert error.status in (400, 403)
        return error.code


@short(200)
@given(sessions, st.text(max_size=20), st.booleans())
def test_what_was_sealed_is_understood(session: Session, nonce: str, in_url: bool) -> None:
    """Whoever signs with what was issued is the client, bound to just that."""
    caller = asked(KEYS.issue(session, nonce), in_url=in_url)
    assert isinstance(caller, Caller)
    assert (caller.client, caller.session) == (CLIENT, session)


def _spliced(pieces: list[tuple[int, int, int]]) -> str:
    """Bytes of genuine tokens, put together anew."""
    whole = [urlsafe_b64decode(token + "=" * (-len(token) % 4)) for token in SEALED]
    joined = b"".join(whole[which % len(whole)][start : start + length] for which, start, length in pieces)
    return urlsafe_b64encode(joined).rstrip(b"=").decode()


anything = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=80),
    st.binary(max_size=120).map(lambda data: urlsafe_b64encode(data).decode()),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 500)), max_size=4).map(_spliced),
    st.sampled_from(SEALED).flatmap(lambda token: st.integers(0, len(token)).map(lambda end: token[:end])),
    st.sampled_from(SEALED),
)


@short(200)
@given(anything, st.sampled_from([one.access_key for one in GENUINE] + ["AKIDFUZZ", "FGLS"]), st.booleans())
def test_nothing_else_is(token: str, access_key: str, in_url: bool) -> None:
    """Forged, spliced, cut, or with another's access key: refused whatever it is signed with, and never a fault."""
    assume((access_key, token) not in [(one.access_key, one.session_token) for one in GENUINE])
    for secret in (CLIENT.credentials.secret_key, GENUINE[0].secret_key, ""):
        assume(token or access_key != "AKIDFUZZ")  # no session token at all: the client itself
        assert asked(Credentials(access_key, secret, token), in_url=in_url) in (
            "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"
        )  # fmt: skip
