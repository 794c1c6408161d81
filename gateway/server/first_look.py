"""What the answer to the first look at the store behind, a list of buckets, tells of the gateway's settings."""

from __future__ import annotations

from gateway.s3.xml import error_code
from gateway.service.refusals import refuse_our_own_fault

_LISTED = b"ListAllMyBucketsResult"


def fault_of(status: int, body: bytes, *, unsigned: bool) -> str | None:
    """What is wrong with `[upstream]`; None: nothing that can be seen from here. `unsigned`: it names no credentials.

    Raises `TryAgain` (UpstreamUnavailable) where the store refuses the gateway's own credentials or clock."""
    code = error_code(body)
    refuse_our_own_fault(code)
    if code is None and _LISTED not in body and (body or status == 200):
        return f"it answers {status} to a list of buckets, with nothing of S3's: check [upstream] url"
    if unsigned and status == 403:
        return "it answers 403 to what is not signed, and [upstream] names no access_key and secret_key to sign with"
    return None
