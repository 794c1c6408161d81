"""Where a store listens, as its address says."""

from __future__ import annotations

import pytest

from gateway.upstream.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://host", Endpoint("host", 80, False, "host")),
        ("http://host:80/", Endpoint("host", 80, False, "host")),
        ("https://Host.example:443", Endpoint("host.example", 443, True, "host.example")),
        ("https://host:80", Endpoint("host", 80, True, "host:80")),
        ("http://[::1]:8333", Endpoint("::1", 8333, False, "[::1]:8333")),
    ],
)
def test_endpoint(url: str, endpoint: Endpoint) -> None:
    """The Host header names the port only where it is not the scheme's own."""
    assert Endpoint.parse(url) == endpoint


@pytest.mark.parametrize(
    "url",
    ["host:80", "ftp://host", "http://", "http://host/base", "http://u:hunter2@host", "http://host?x", "http://host:x"],
)
def test_bad_endpoint(url: str) -> None:
    """An address with more than scheme, host and port is refused, not cut; a password in it is not told."""
    with pytest.raises(ValueError) as raised:
        Endpoint.parse(url)
    assert "hunter2" not in str(raised.value)
