"""Credentials bound to leases: the keys that seal them, read again on SIGHUP, and who is given some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gateway.clock import Clock
from gateway.core.keys import FencingKey, Token
from gateway.credentials_file import CredentialsFileError, new_sealing_key
from gateway.s3.session import Session, SessionKeys
from gateway.s3.sigv4 import Credentials
from gateway.telemetry import Telemetry

KEPT = 1024
"""Opened tokens that are kept, the latest used. None comes to be kept that has not been proved; each is below 2 KB."""


class Sessions:
    """The session tokens of one gateway. `read` gives the keys as they are now, and raises `CredentialsFileError`;
    without it there is a new one, and what it seals ends with the process."""

    def __init__(self, read: Callable[[], SessionKeys] | None = None) -> None:
        own = SessionKeys([new_sealing_key()])
        self._read = read or (lambda: own)
        self._use(self._read())

    def _use(self, keys: SessionKeys) -> None:
        self._keys = keys
        self.open = lru_cache(KEPT)(keys.open)
        """`SessionKeys.open`, kept."""

    def issue(self, session: Session, nonce: str) -> Credentials:
        """`SessionKeys.issue`, with the key that seals now."""
        return self._keys.issue(session, nonce)

    def reload(self, telemetry: Telemetry) -> None:
        """Read the keys again. Where they cannot be used the former stay, and it is told."""
        try:
            self._use(self._read())
        except CredentialsFileError as error:
            telemetry.warning("session-keys-refused", reason=f"{error}; the former stay in use")
        else:
            self.tell(telemetry)

    def tell(self, telemetry: Telemetry) -> None:
        """Log which keys are in use, by names that tell nothing of them."""
        telemetry.event("session-keys-loaded", ids=self._keys.ids, seals=self._keys.ids[-1])


@dataclass(frozen=True, slots=True)
class Issued:
    """Credentials that are bound to a lease, and their end."""

    credentials: Credentials
    expires_at: int
    """Seconds since the epoch."""
    endpoint_url: str | None
    """Where they are good; None where nothing says how workers reach it."""


class Issuer:
    """Gives out credentials that are bound to a lease. `clients` are the access keys of the S3 clients; who has a lease
    is not looked at here."""

    def __init__(
        self,
        sessions: Sessions,
        clients: Sequence[str],
        clock: Clock,
        lifetime_s: float,
        endpoint_url: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._sessions = sessions
        self._only = clients[0] if len(clients) == 1 else None
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._endpoint_url = endpoint_url

    def issue(self, client: str | None, key: FencingKey, token: Token) -> Issued | None:
        """Credentials for (key, token) with the rights of `client`, else of the only client there is; None where there
        are several and none is named."""
        whose = client or self._only
        if whose is None:
            return None
        expires_at = int(self._clock.wall() + self._lifetime_s)
        session = Session(key, token, whose, expires_at)
        return Issued(self._sessions.issue(session, self._clock.nonce()), expires_at, self._endpoint_url())
