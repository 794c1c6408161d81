"""Certificates for tests: an authority of their own, and what it issues, in files."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme

from gateway.tls import client_context, server_context


class Pair(NamedTuple):
    """A certificate with its chain, and its key."""

    cert: Path
    key: Path

    @property
    def served(self) -> ssl.SSLContext:
        """A context that shows it."""
        return server_context(*self)


class Authority:
    """One authority. Each pair that it issues has files of its own."""

    def __init__(self, directory: Path, *, below: Authority | None = None) -> None:
        self._directory = directory
        self._made = trustme.CA() if below is None else below._made.create_child_ca()
        self._issued = 0
        self.file = directory / f"authority-{id(self)}.pem"
        self._made.cert_pem.write_to_path(self.file)

    def issue(self, *names: str, from_days: float = -1, to_days: float = 1) -> Pair:
        """A pair for host names and addresses, its chain included, valid from and to so many days from now."""
        now = datetime.now(UTC)
        issued = self._made.issue_cert(
            *names, not_before=now + timedelta(days=from_days), not_after=now + timedelta(days=to_days)
        )
        self._issued += 1
        path = self._directory / f"issued-{id(self)}-{self._issued}"
        pair = Pair(path.with_suffix(".pem"), path.with_suffix(".key"))
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(pair.key)
        return pair

    @property
    def trusted(self) -> ssl.SSLContext:
        """A context that believes nobody else."""
        return client_context(self.file)
