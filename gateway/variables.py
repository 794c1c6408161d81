"""The environment variables by which workers and commands find a running gateway."""

from __future__ import annotations

URL_VARIABLE = "FENCING_GATEWAY_URL"
"""The control API."""
API_TOKEN_VARIABLE = "FENCING_GATEWAY_API_TOKEN"  # noqa: S105 - the name of one
CA_VARIABLE = "FENCING_GATEWAY_CA_BUNDLE"
"""The authorities, in PEM, that vouch for a control API at https://."""

DEFAULT_URL = "http://127.0.0.1:8081"
