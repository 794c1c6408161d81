"""Credentials that the gateway makes by itself, and the files that keep them for one user alone."""

from __future__ import annotations

import json
import os
import secrets
from base64 import b64decode, b64encode
from pathlib import Path

from gateway.s3.session import SEALING_KEY_BYTES, SessionKeys
from gateway.s3.sigv4 import Credentials

CREDENTIALS_FILE = "s3-credentials.json"
"""Beside the database: the ready-made pair of a gateway on loopback for which no client is configured."""
SESSION_KEYS_FILE = "session-keys"
"""Beside the database: what seals the credentials of leases, where the settings name no file."""


class CredentialsFileError(Exception):
    """The file is there and cannot be used; it is never replaced, since clients hold what it held."""


def new_credentials() -> Credentials:
    """A pair that nobody else has, in the length and letters that S3 clients expect."""
    return Credentials("FG" + secrets.token_hex(9).upper(), secrets.token_urlsafe(30))


def new_encryption_key() -> str:
    """What the embedded store derives its key from, that nobody else has."""
    return secrets.token_urlsafe(32)


def new_sealing_key() -> bytes:
    """A key for session tokens that nobody else has."""
    return secrets.token_bytes(SEALING_KEY_BYTES)


def ready_made_credentials(path: Path) -> Credentials:
    """The pair kept in `path`, made and written there (mode 600) if there is no such file.

    Raises `CredentialsFileError` if it holds something else, or others may read it; `OSError`."""
    try:
        mode = path.stat().st_mode
        pair = json.loads(path.read_bytes())
        credentials = Credentials(pair["access_key"], pair["secret_key"])
    except FileNotFoundError:
        made = new_credentials()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, json.dumps({"access_key": made.access_key, "secret_key": made.secret_key}) + "\n")
        return made
    except (ValueError, LookupError, TypeError):
        told = f"{path} does not hold a pair of access_key and secret_key: put it back, or remove it for a new pair"
        raise CredentialsFileError(told) from None
    if mode & 0o077:
        raise CredentialsFileError(f"{path} can be read by other users; make it yours alone: chmod 600 {path}")
    return credentials


def make_session_keys(path: Path) -> None:
    """Write a file with a new key for session tokens (mode 600) if there is none. Raises `OSError`."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, _HEAD_OF_KEYS + b64encode(new_sealing_key()).decode() + "\n")


def read_session_keys(path: Path) -> SessionKeys:
    """The keys for session tokens in `path`, one a line in base64; empty lines and those that begin with # say nothing.

    Raises `CredentialsFileError` if it is not there or holds anything else, or users of other groups may read it, or
    others write it."""
    try:
        mode = path.stat().st_mode
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except FileNotFoundError:
        raise CredentialsFileError(
            f"{path} is not there. Copy it from the gateway that it is shared with, or make one: "
            f"(umask 077; openssl rand -base64 {SEALING_KEY_BYTES} > {path})"
        ) from None
    except OSError as error:
        raise CredentialsFileError(f"{path} cannot be read: {error.strerror}") from None
    try:
        keys = SessionKeys([b64decode(line, validate=True) for line in lines if line and line[:1] != b"#"])
    except ValueError:
        raise CredentialsFileError(
            f"{path} must hold keys of {SEALING_KEY_BYTES} bytes, one a line in base64, as openssl rand -base64 "
            f"{SEALING_KEY_BYTES} writes them"
        ) from None
    if mode & 0o027:
        raise CredentialsFileError(f"{path} can be read or changed by other users: chmod 600 {path}")
    return keys


_HEAD_OF_KEYS = """\
# The keys that seal the credentials of leases, one a line. All open, the last one seals.
# Who has one can make credentials of every client. Rotation: docs/credentials.md.
"""


def write_private(path: Path, text: str) -> None:
    """Write a file whole or not at all, for this user alone."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
