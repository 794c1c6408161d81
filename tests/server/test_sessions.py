"""The keys of session tokens in a running gateway, and who is given credentials."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pytest
import structlog

from gateway.clock import SystemClock
from gateway.core.keys import FencingKey, Token
from gateway.credentials_file import CredentialsFileError, make_session_keys, read_session_keys
from gateway.s3.errors import S3Error
from gateway.s3.session import Session, SessionKeys
from gateway.server.sessions import KEPT, Issuer, Sessions
from gateway.telemetry import Telemetry, configure_logging

SESSION = Session(FencingKey("job-1"), Token(34), "RENDERER", 1_800_000_000)
FIRST, SECOND = b"1" * 32, b"2" * 32


def opens(sessions: Sessions, access_key: str, session_token: str | None) -> bool:
    assert session_token is not None
    try:
        return sessions.open(access_key, session_token)[0] == SESSION
    except S3Error:
        return False


def test_rotation() -> None:
    """A key is added and seals after the reload; once the former is taken out, what it sealed is refused, also what had
    been opened before."""
    keys = [FIRST]
    sessions = Sessions(lambda: SessionKeys(keys))
    telemetry = Telemetry(SystemClock())
    old = sessions.issue(SESSION, "1")
    assert opens(sessions, old.access_key, old.session_token)
    keys.append(SECOND)
    assert sessions.issue(SESSION, "1") == old
    sessions.reload(telemetry)
    new = sessions.issue(SESSION, "1")
    assert new.session_token != old.session_token
    assert opens(sessions, old.access_key, old.session_token)
    assert opens(sessions, new.access_key, new.session_token)
    keys.remove(FIRST)
    sessions.reload(telemetry)
    assert not opens(sessions, old.access_key, old.session_token)
    assert opens(sessions, new.access_key, new.session_token)


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told(tmp_path: Path) -> None:
    """The former keys stay in use, and the log says what is wrong; no line holds a key."""
    path, stream = tmp_path / "session-keys", BytesIO()
    make_session_keys(path)
    held = path.read_text().splitlines()[-1]
    sessions = Sessions(lambda: read_session_keys(path))
    issued = sessions.issue(SESSION, "1")
    configure_logging("debug", stream)
    try:
        telemetry = Telemetry(SystemClock())
        sessions.tell(telemetry)
        path.write_text("nonsense\n")
        sessions.reload(telemetry)
    finally:
        structlog.reset_defaults()
    assert opens(sessions, issued.access_key, issued.session_token)
    loaded, refused = map(json.loads, stream.getvalue().splitlines())
    assert (loaded["event"], loaded["seals"]) == ("session-keys-loaded", loaded["ids"][-1])
    assert refused["event"] == "session-keys-refused"
    assert "one a line in base64" in refused["reason"]
    assert held.encode() not in stream.getvalue()


def test_what_has_been_opened_is_kept_within_bounds() -> None:
    """A token is opened once; of many the latest are kept, and of what was refused nothing is."""
    sessions = Sessions()
    for number in range(KEPT + 10):
        issued = sessions.issue(SESSION, str(number))
        assert opens(sessions, issued.access_key, issued.session_token)
        assert opens(sessions, issued.access_key, issued.session_token)
        assert not opens(sessions, issued.access_key, "A" * 100)
    info = sessions.open.cache_info()
    assert (info.currsize, info.hits) == (KEPT, KEPT + 10)


def test_by_default_keys_end_with_the_process() -> None:
    """Two gateways without a file have keys of their own, which no reload changes."""
    sessions = Sessions()
    issued = sessions.issue(SESSION, "1")
    sessions.reload(Telemetry(SystemClock()))
    assert opens(sessions, issued.access_key, issued.session_token)
    assert not opens(Sessions(), issued.access_key, issued.session_token)


def test_whose_rights_credentials_have() -> None:
    """Those of the client that the API token names, else of the only one; where there are several, none are given."""
    sessions, clock = Sessions(), SystemClock()

    def given(clients: list[str], named: str | None) -> str | None:
        issued = Issuer(sessions, clients, clock, 3600).issue(named, SESSION.key, SESSION.token)
        if issued is None:
            return None
        pair = issued.credentials
        assert pair.session_token is not None
        session, again = sessions.open(pair.access_key, pair.session_token)
        assert (session.key, session.token, again) == (SESSION.key, SESSION.token, pair)
        assert 3598 < session.expires_at - clock.wall() <= 3600
        assert session.expires_at == issued.expires_at
        return session.client

    assert given(["ONLY"], None) == "ONLY"
    assert given(["ONE", "OTHER"], "OTHER") == "OTHER"
    assert given(["ONE", "OTHER"], None) is None
    assert given([], None) is None


# --- the file


def test_the_file_is_made_once_and_for_one_user(tmp_path: Path) -> None:
    """The second start finds the first one's key."""
    path = tmp_path / "data" / "session-keys"
    make_session_keys(path)
    assert path.stat().st_mode & 0o777 == 0o600
    first = read_session_keys(path).ids
    make_session_keys(path)
    assert read_session_keys(path).ids == first
    make_session_keys(tmp_path / "other")
    assert read_session_keys(tmp_path / "other").ids != first


@pytest.mark.parametrize("text", ["", "# nothing\n\n", "c2hvcnQ=\n", "?" * 44, "\xff\n", "A" * 45])
def test_a_file_that_holds_something_else(tmp_path: Path, text: str) -> None:
    """No key, one that is too short, or no base64; the message says how to make one."""
    path = tmp_path / "session-keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(CredentialsFileError, match="openssl rand -base64 32"):
        read_session_keys(path)


def test_a_file_that_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    """A file that the settings name is never made: the gateways that share it would each have their own."""
    with pytest.raises(CredentialsFileError, match="openssl rand"):
        read_session_keys(tmp_path / "absent")
    with pytest.raises(CredentialsFileError, match="cannot be read: Is a directory"):
        read_session_keys(tmp_path)


@pytest.mark.parametrize(("mode", "good"), [(0o600, 1), (0o400, 1), (0o640, 1), (0o660, 0), (0o644, 0), (0o602, 0)])
def test_who_may_read_the_file(tmp_path: Path, mode: int, good: int) -> None:
    """Its user, and a group for which it was made readable; nobody else, and nobody else may write it."""
    path = tmp_path / "session-keys"
    make_session_keys(path)
    path.chmod(mode)
    if good:
        assert read_session_keys(path).ids
    else:
        with pytest.raises(CredentialsFileError, match="chmod 600"):
            read_session_keys(path)
