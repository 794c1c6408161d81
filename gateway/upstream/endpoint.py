"""Where a store listens."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A store's address. `host_header` names the port only where it is not the scheme's own."""

    host: str
    port: int
    secure: bool
    host_header: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """From `http://host[:port]` or `https://…`. Raises ValueError for anything more or less, which the message does
        not show: it may hold a password."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a store's address must be http://host[:port] or https://host[:port]")
        if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
            raise ValueError("a store's address must end after host and port")
        secure = parts.scheme == "https"
        usual_port = 443 if secure else 80
        port = parts.port or usual_port
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(parts.hostname, port, secure, name if port == usual_port else f"{name}:{port}")
