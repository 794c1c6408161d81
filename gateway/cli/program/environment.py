"""What a program finds in its environment: its lease, and how it writes under it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.client.guarded import Guarded

KEY_VARIABLE = "FENCING_KEY"
TOKEN_VARIABLE = "FENCING_TOKEN"  # noqa: S105 - the name of one
OUTPUT_VARIABLE = "FENCING_OUTPUT"
DEFAULT_REGION = "us-east-1"
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
"""Of AWS's SDKs and tools; the last one is s5cmd's."""
_TAKEN_OUT = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CREDENTIAL_EXPIRATION", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
"""With one of these set, some SDK would use other credentials, or another endpoint, than it is given."""


def environment_of(
    lease: Guarded, gateway: Mapping[str, str], endpoint: str | None, base: Mapping[str, str]
) -> dict[str, str]:
    """What the program finds in its environment: `base`, the variables by which it finds the `gateway`, and its lease
    with S3 credentials. Those are good at `endpoint`; without one, where the gateway says."""
    environ = {name: value for name, value in base.items() if name not in _TAKEN_OUT}
    environ |= {**gateway, KEY_VARIABLE: lease.key, TOKEN_VARIABLE: str(lease.token)}
    if lease.output is not None:
        environ[OUTPUT_VARIABLE] = lease.output
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    environ |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    pair = lease.credentials
    if endpoint := endpoint or (pair.endpoint_url if pair else None):
        environ |= dict.fromkeys(ENDPOINT_VARIABLES, endpoint)
    if pair is not None:
        environ |= {
            "AWS_ACCESS_KEY_ID": pair.access_key_id,
            "AWS_SECRET_ACCESS_KEY": pair.secret_access_key,
            "AWS_SESSION_TOKEN": pair.session_token,
        }
    return environ
