"""Credentials that the gateway makes by itself, and the files that keep them for one user alone."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from gateway.s3.sigv4 import Credentials


class CredentialsFileError(Exception):
    """The file is there and cannot be used; it is never replaced, since clients hold what it held."""


def new_credentials() -> Credentials:
    """A pair that nobody else has, in the length and letters that S3 clients expect."""
    return Credentials("FG" + secrets.token_hex(9).upper(), secrets.token_urlsafe(30))


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
        raise CredentialsFileError(f"{path} does not hold a pair of access_key and secret_key") from None
    if mode & 0o077:
        raise CredentialsFileError(f"{path} can be read by other users; make it yours alone: chmod 600 {path}")
    return credentials


def write_private(path: Path, text: str) -> None:
    """Write a file whole or not at all, for this user alone."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
