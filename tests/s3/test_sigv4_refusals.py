"""What a signature must cover, and for how long it holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.s3.errors import S3Error
from gateway.s3.sigv4 import (
    Credentials,
    parse_claim,
    verify,
)
from tests.s3.signing import (
    ACCESS,
    KEY,
    NOW,
    SCOPE,
    SECRET,
    TEMPORARY,
    authorization,
    check,
    flip,
    head_of,
    presigned,
    refusal,
    signed,
    with_header,
    without_header,
)

# What is not covered


def test_unsigned_amz_header() -> None:
    """An `x-amz-*` header that was not signed is refused and named, presigned or not."""
    target = presigned(method="PUT")
    copy = ("x-amz-copy-source", "b/secret")
    for head in (head_of("PUT", target, [("host", "gateway"), copy]), head_of("PUT", "/b/k", [*signed(), copy])):
        refused = refusal(head)
        assert (refused.code, refused.elements["HeadersNotSigned"]) == ("AccessDenied", "x-amz-copy-source")


def test_host_must_be_signed() -> None:
    """A signature that leaves out the host is refused, however right it may be."""
    headers = signed()
    old = authorization(headers).replace("SignedHeaders=host;", "SignedHeaders=")
    refused = refusal(head_of("PUT", "/b/k", with_header(headers, "authorization", old)))
    assert (refused.code, refused.elements["HeadersNotSigned"]) == ("AccessDenied", "host")


def test_signed_header_that_is_missing() -> None:
    """A header that was signed, even as empty, and does not arrive makes the signature wrong."""
    headers = signed(headers=[("x-amz-meta-a", "")])
    assert check(head_of("PUT", "/b/k", headers)) == KEY
    refused = refusal(head_of("PUT", "/b/k", without_header(headers, "x-amz-meta-a")))
    assert refused.code == "SignatureDoesNotMatch"


def test_other_secret() -> None:
    """Another secret key verifies nothing, and the refusal names the access key only."""
    head = head_of("PUT", "/b/k", signed())
    claim = parse_claim(head)
    assert claim is not None
    with pytest.raises(S3Error) as caught:
        verify(head, claim, Credentials(ACCESS, "other"), NOW)
    assert (caught.value.code, caught.value.elements) == ("SignatureDoesNotMatch", {"AWSAccessKeyId": ACCESS})


@pytest.mark.parametrize("signature", ["", "é", "\udcff", "0" * 63, "g" * 64])
def test_signature_of_any_text(signature: str) -> None:
    """A signature that is no hex digits is an ordinary mismatch, or malformed when empty."""
    headers = signed()
    old = authorization(headers).rpartition("=")[0]
    refused = refusal(head_of("PUT", "/b/k", with_header(headers, "authorization", f"{old}={signature}")))
    assert refused.code == ("SignatureDoesNotMatch" if signature else "AuthorizationHeaderMalformed")


def test_unsigned_trailer_needs_a_signature() -> None:
    """STREAMING-UNSIGNED-PAYLOAD-TRAILER exempts the payload alone: bad or query-only credentials are 403."""
    streaming = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    headers = signed(payload=streaming)
    assert check(head_of("PUT", "/b/k", headers)) == KEY
    old = authorization(headers)
    bad = with_header(headers, "authorization", flip(old, len(old) - 1))
    assert refusal(head_of("PUT", "/b/k", bad)).status == 403
    sent = [("host", "gateway"), ("x-amz-content-sha256", streaming)]
    whole = presigned(headers=sent[1:], method="PUT")
    for target in (whole, f"/b/k?X-Amz-Credential={ACCESS}/{SCOPE}"):
        refused = refusal(head_of("PUT", target, sent))
        assert (refused.code, refused.status) == ("AccessDenied", 403)


def test_secrets_are_not_shown() -> None:
    """Neither credentials nor a claim show secret, token or signature when printed."""
    assert SECRET not in repr(TEMPORARY)
    assert "FwoG" not in repr(TEMPORARY)
    claim = parse_claim(head_of("PUT", "/b/k", signed()))
    assert claim is not None
    assert claim.signature not in repr(claim)
    assert "FwoG" not in repr(replace(claim, session_token=TEMPORARY.session_token))


# Time


@pytest.mark.parametrize("offset", [-900, 900])
def test_clock_within_skew(offset: int) -> None:
    """A clock exactly 15 minutes off is still accepted."""
    assert check(head_of("PUT", "/b/k", signed()), NOW + offset) == KEY


@pytest.mark.parametrize("offset", [-960, -901, 901, 960])
def test_clock_out_of_skew(offset: int) -> None:
    """A clock further off is refused, and told the server's time."""
    refused = refusal(head_of("PUT", "/b/k", signed(now=NOW)), NOW + offset)
    assert (refused.code, refused.status) == ("RequestTimeTooSkewed", 403)
    moment = datetime.fromtimestamp(NOW + offset, UTC)
    assert refused.elements == {
        "RequestTime": "20130524T000000Z",
        "ServerTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "MaxAllowedSkewMilliseconds": "900000",
    }


def test_presigned_lifetime() -> None:
    """A presigned URL works to its last second and no longer, and not 15 minutes before it was signed."""
    head = head_of("GET", presigned(expires_s=1), [("host", "gateway")])
    assert check(head, NOW + 1) == KEY
    assert check(head, NOW - 900) == KEY
    expired = refusal(head, NOW + 2)
    assert (expired.code, expired.status, expired.message) == ("AccessDenied", 403, "Request has expired")
    assert expired.elements == {
        "X-Amz-Expires": "1",
        "Expires": "2013-05-24T00:00:01Z",
        "ServerTime": "2013-05-24T00:00:02Z",
    }
    early = refusal(head, NOW - 901)
    assert (early.code, early.message) == ("AccessDenied", "Request is not yet valid")


def test_presigned_for_a_week() -> None:
    """A URL for 604,800 s works when it is 16 minutes old, and when it is a week old."""
    head = head_of("GET", presigned(expires_s=604800), [("host", "gateway")])
    assert check(head, NOW + 16 * 60) == KEY
    assert check(head, NOW + 604800) == KEY
