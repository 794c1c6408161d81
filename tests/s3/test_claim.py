"""What requests claim of their signature: read exactly, or refused with S3's own code."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3.claim import MAX_KEPT_CHARACTERS, Claim, _signer, parse_claim
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, parse_head

SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
CREDENTIAL = "AKID/20130524/eu-west-1/s3/aws4_request"
AUTHORIZATION = f"AWS4-HMAC-SHA256 Credential={CREDENTIAL}, SignedHeaders=host;x-amz-date, Signature=abc"
EPOCH = datetime(2013, 5, 24, 7, 8, 9, tzinfo=UTC).timestamp()
HEADERS = {"host": "h", "x-amz-date": "20130524T070809Z", "x-amz-content-sha256": SHA}
QUERY = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": CREDENTIAL,
    "X-Amz-Date": "20130524T070809Z",
    "X-Amz-Expires": "60",
    "X-Amz-SignedHeaders": "host",
    "X-Amz-Signature": "abc",
}
PAYLOADS = [
    SHA,
    SHA.upper(),
    "UNSIGNED-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
]


def by_header(authorization: str = AUTHORIZATION, **changed: str | None) -> Claim | None:
    """The claim of a request with an Authorization header; a change to None takes a header away."""
    headers = {**HEADERS, **{n.replace("_", "-"): v for n, v in changed.items()}, "authorization": authorization}
    return parse_claim(parse_head("PUT", "/b/k", Headers((n, v) for n, v in headers.items() if v is not None)))


def by_query(
    changed: dict[str, str | None] | None = None, headers: dict[str, str] | None = None, extra: str = ""
) -> Claim | None:
    """The claim of a presigned request; a change to None takes a parameter away."""
    query = {n: v for n, v in {**QUERY, **(changed or {})}.items() if v is not None}
    fields = {"host": "h", **(headers or {})}
    return parse_claim(parse_head("GET", f"/b/k?{urlencode(query)}{extra}", Headers(fields.items())))


def test_claim_of_header() -> None:
    """Every part of an Authorization header is read."""
    assert by_header(x_amz_security_token="tok") == Claim(
        access_key="AKID",
        date="20130524",
        region="eu-west-1",
        service="s3",
        signed_headers=("host", "x-amz-date"),
        signature="abc",
        timestamp=EPOCH,
        amz_date="20130524T070809Z",
        expires_s=None,
        presigned=False,
        session_token="tok",
        payload=SHA,
    )


def test_claim_of_query() -> None:
    """Every part of a presigned query is read."""
    assert by_query({"X-Amz-Security-Token": "t+k/="}) == Claim(
        access_key="AKID",
        date="20130524",
        region="eu-west-1",
        service="s3",
        signed_headers=("host",),
        signature="abc",
        timestamp=EPOCH,
        amz_date="20130524T070809Z",
        expires_s=60,
        presigned=True,
        session_token="t+k/=",
        payload="UNSIGNED-PAYLOAD",
    )


@pytest.mark.parametrize(
    ("query", "headers", "payload"),
    [
        ({"X-Amz-Content-Sha256": SHA}, {}, SHA),
        ({}, {"x-amz-content-sha256": SHA}, SHA),
        ({"X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD"}, {}, "UNSIGNED-PAYLOAD"),
    ],
)
def test_payload_of_presigned(query: dict[str, str | None], headers: dict[str, str], payload: str) -> None:
    """A presigned request names its payload's hash in the query or a header, if at all."""
    claim = by_query(query, headers)
    assert claim is not None
    assert claim.payload == payload


def test_anonymous() -> None:
    """Without credentials there is no claim, whatever else the request carries."""
    for target in ("/b/k", "/b/k?X-Amz-Date=20130524T070809Z&prefix=Signature"):
        assert parse_claim(parse_head("GET", target, Headers(HEADERS.items()))) is None


@pytest.mark.parametrize("spelling", ["{c},{h},{s}", "{s}, {h},   {c}", " {c} , {h} , {s} "])
def test_spellings_of_the_header(spelling: str) -> None:
    """Spaces and order of the three components are free."""
    c, h, s = f"Credential={CREDENTIAL}", "SignedHeaders=host;x-amz-date", "Signature=abc"
    assert by_header("AWS4-HMAC-SHA256 " + spelling.format(c=c, h=h, s=s)) == by_header()


def test_access_key_with_slashes() -> None:
    """The scope is what stands after the last four slashes."""
    claim = by_header(AUTHORIZATION.replace("AKID", "team/AK=ID"))
    assert claim is not None
    assert (claim.access_key, claim.scope) == ("team/AK=ID", "20130524/eu-west-1/s3/aws4_request")


@pytest.mark.parametrize(
    ("x_amz_date", "date"),
    [
        (None, "Fri, 24 May 2013 07:08:09 GMT"),
        (None, "Fri, 24 May 2013 09:08:09 +0200"),
        (None, "Fri, 24 May 2013 07:08:09 -0000"),
        (None, "20130524T070809Z"),
        ("Fri, 24 May 2013 07:08:09 GMT", None),
        ("20130524T070809Z", "Thu, 01 Jan 1970 00:00:00 GMT"),
    ],
)
def test_dates(x_amz_date: str | None, date: str | None) -> None:
    """x-amz-date counts before Date; either may have HTTP's form, and is signed in the basic one."""
    claim = by_header(x_amz_date=x_amz_date, date=date)
    assert claim is not None
    assert (claim.amz_date, claim.timestamp) == ("20130524T070809Z", EPOCH)


@given(st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31)))
def test_timestamp(moment: datetime) -> None:
    """The timestamp is the one that the calendar gives."""
    day = moment.strftime("%Y%m%d")
    claim = by_header(AUTHORIZATION.replace("20130524", day), x_amz_date=moment.strftime("%Y%m%dT%H%M%SZ"))
    assert claim is not None
    assert claim.timestamp == moment.replace(microsecond=0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payloads(payload: str) -> None:
    """Every way to send a payload that S3 names is taken as sent."""
    claim = by_header(x_amz_content_sha256=payload)
    assert claim is not None
    assert claim.payload == payload


BAD_HEADERS: list[tuple[str, dict[str, str | None], str, int]] = [
    ("AWS AKID:c2lnbmF0dXJl", {}, "InvalidRequest", 400),
    (AUTHORIZATION.replace("HMAC", "ECDSA-P256"), {}, "InvalidRequest", 400),
    ("Bearer abc", {}, "InvalidArgument", 400),
    ("", {}, "InvalidArgument", 400),
    ("AWS4-HMAC-SHA256", {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("Signature=", "Sig="), {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("=abc", "="), {}, "AuthorizationHeaderMalformed", 400),
    (f"{AUTHORIZATION}, Signature=abd", {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("AKID/", "/"), {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("/s3/", "/"), {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("20130524", "2013-5-24"), {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("20130524", "20130525"), {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("aws4_request", "aws5_request"), {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION.replace("/s3/", "/ec2/"), {}, "AuthorizationHeaderMalformed", 400),
    (AUTHORIZATION, {"x_amz_content_sha256": None}, "InvalidRequest", 400),
    (AUTHORIZATION, {"x_amz_content_sha256": ""}, "InvalidArgument", 400),
    (AUTHORIZATION, {"x_amz_content_sha256": SHA[1:]}, "InvalidArgument", 400),
    (AUTHORIZATION, {"x_amz_content_sha256": "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"}, "InvalidArgument", 400),
    (AUTHORIZATION, {"x_amz_date": None}, "AccessDenied", 403),
    (AUTHORIZATION, {"x_amz_date": "20130532T070809Z"}, "AccessDenied", 403),
    (AUTHORIZATION, {"x_amz_date": "20130524T240000Z"}, "AccessDenied", 403),
    (AUTHORIZATION, {"x_amz_date": "2013-05-24T07:08:09Z"}, "AccessDenied", 403),
    (AUTHORIZATION, {"x_amz_date": None, "date": "Fri, 31 Dec 9999 23:59:59 -2300"}, "AccessDenied", 403),
]


@pytest.mark.parametrize(("authorization", "changed", "code", "status"), BAD_HEADERS)
def test_bad_header(authorization: str, changed: dict[str, str | None], code: str, status: int) -> None:
    """A header claim that is malformed or of another mechanism gets S3's own code."""
    with pytest.raises(S3Error) as caught:
        by_header(authorization, **changed)
    assert (caught.value.code, caught.value.status) == (code, status)


BAD_QUERIES: list[tuple[dict[str, str | None], str]] = [
    ({"X-Amz-Algorithm": "AWS4-ECDSA-P256-SHA256"}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Credential": "AKID"}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Credential": CREDENTIAL.replace("aws4", "aws5")}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Credential": CREDENTIAL.replace("/s3/", "/ec2/")}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Credential": CREDENTIAL.replace("24", "25")}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Date": "Fri, 24 May 2013 07:08:09 GMT"}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Date": "20130230T000000Z"}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Expires": "604801"}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Expires": "-1"}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Expires": "1_0"}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Expires": "1" * 5000}, "AuthorizationQueryParametersError"),
    ({"X-Amz-Content-Sha256": "x"}, "InvalidArgument"),
]


@pytest.mark.parametrize(("changed", "code"), BAD_QUERIES)
def test_bad_query(changed: dict[str, str | None], code: str) -> None:
    """A presigned query that breaks one of its parts is 400."""
    with pytest.raises(S3Error) as caught:
        by_query(changed)
    assert (caught.value.code, caught.value.status) == (code, 400)


@pytest.mark.parametrize("name", QUERY)
@pytest.mark.parametrize("value", [None, ""])
def test_lacking_parameter(name: str, value: str | None) -> None:
    """A presigned query needs all six parameters, each with a value."""
    with pytest.raises(S3Error) as caught:
        by_query({name: value})
    assert (caught.value.code, caught.value.status) == ("AuthorizationQueryParametersError", 400)


@pytest.mark.parametrize("name", QUERY)
def test_doubled_parameter(name: str) -> None:
    """A parameter of the signature given twice, even alike, is refused: no two readers can take another one."""
    with pytest.raises(S3Error) as caught:
        by_query(extra="&" + urlencode({name: QUERY[name]}))
    assert caught.value.code == "AuthorizationQueryParametersError"


@pytest.mark.parametrize("payload", PAYLOADS[3:])
def test_presigned_chunks(payload: str) -> None:
    """A payload in aws-chunks has no place in a presigned request: 403, with or without a signature."""
    for query in ({}, dict.fromkeys(set(QUERY) - {"X-Amz-Credential"})):
        with pytest.raises(S3Error) as caught:
            by_query(query, {"x-amz-content-sha256": payload})
        assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)


def test_version_2_query() -> None:
    """A URL presigned with Signature Version 2 is told which mechanism to use."""
    head = parse_head("GET", "/b/k?AWSAccessKeyId=AKID&Expires=1&Signature=abc", Headers([("host", "h")]))
    with pytest.raises(S3Error, match="Please use AWS4-HMAC-SHA256") as caught:
        parse_claim(head)
    assert caught.value.code == "InvalidRequest"


@pytest.mark.parametrize(
    ("target", "authorizations"),
    [
        (f"/b/k?{urlencode(QUERY)}", [AUTHORIZATION]),
        ("/b/k?X-Amz-Signature=", [AUTHORIZATION]),
        ("/b/k?Signature=abc", [AUTHORIZATION]),
        ("/b/k", [AUTHORIZATION, AUTHORIZATION]),
    ],
)
def test_two_mechanisms(target: str, authorizations: list[str]) -> None:
    """Credentials in two places are refused, and none of them is echoed."""
    fields = [*HEADERS.items(), *(("authorization", value) for value in authorizations)]
    with pytest.raises(S3Error, match="Only one auth mechanism allowed") as caught:
        parse_claim(parse_head("GET", target, Headers(fields)))
    assert caught.value.code == "InvalidArgument"
    assert "abc" not in str(caught.value.elements)


@given(st.text(), st.text(), st.text())
def test_any_text(authorization: str, date: str, payload: str) -> None:
    """Whatever stands in the headers, the answer is a claim or an error of S3's."""
    for text in (authorization, f"AWS4-HMAC-SHA256 {authorization}", AUTHORIZATION):
        try:
            assert by_header(text, x_amz_date=None, date=date, x_amz_content_sha256=payload)
        except S3Error:
            continue


def test_long_lists_of_signed_headers_are_not_kept() -> None:
    """Nobody has proved anything yet: a claim longer than clients make is read, and no cache holds on to it."""
    names = tuple(f"x-amz-meta-{number}" for number in range(MAX_KEPT_CHARACTERS // 8))
    kept = _signer.cache_info().currsize
    claim = by_header(AUTHORIZATION.replace("host;x-amz-date", ";".join(names)))
    assert claim is not None
    assert claim.signed_headers == names
    assert _signer.cache_info().currsize == kept
