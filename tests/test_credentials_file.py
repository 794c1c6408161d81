"""The ready-made pair: made once, kept, and for one user alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.credentials_file import CredentialsFileError, ready_made_credentials, write_private


def test_made_once_and_kept(tmp_path: Path) -> None:
    """The second call answers what the first one made; another file holds another pair."""
    path = tmp_path / "data" / "credentials.json"
    made = ready_made_credentials(path)
    assert ready_made_credentials(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ready_made_credentials(tmp_path / "other.json") != made


@pytest.mark.parametrize("text", ["", "[]", "3", '{"access_key": "a"}', "\xff"])
def test_a_file_that_holds_something_else_is_not_replaced(tmp_path: Path, text: str) -> None:
    """What is there stays there, and it is said what may be done."""
    path = tmp_path / "credentials.json"
    write_private(path, text)
    with pytest.raises(CredentialsFileError, match=r"does not hold .*: put it back, or remove it"):
        ready_made_credentials(path)
    assert path.read_text() == text


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """The message names the command that helps."""
    path = tmp_path / "credentials.json"
    ready_made_credentials(path)
    path.chmod(0o640)
    with pytest.raises(CredentialsFileError, match="chmod 600"):
        ready_made_credentials(path)
