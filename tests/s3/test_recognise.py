"""Which operation a request is, where an upstream may read it differently (R8)."""

from __future__ import annotations

import pytest

from gateway.core.errors import Reason, Refused
from gateway.s3.errors import S3Error
from gateway.s3.recognise import MAX_KEPT_NAMES, _row, recognise
from gateway.s3.request import Headers, RequestHead, parse_head
from tests.s3.model import head_of


def named(method: str, target: str, *headers: str) -> str:
    """The name of the row that the request is recognised as."""
    return recognise(head_of(method, target, *headers)).name


def refusal(method: str, target: str, *headers: str) -> S3Error:
    head = head_of(method, target, *headers)
    with pytest.raises(S3Error) as caught:
        recognise(head)
    return caught.value


def past_the_fence(head: RequestHead) -> str:
    """What is said of a request that no fence could follow."""
    with pytest.raises(Refused) as caught:
        recognise(head)
    assert caught.value.reason is Reason.OPERATION_NOT_FENCED
    return caught.value.message


@pytest.mark.parametrize(
    ("method", "target", "name"),
    [
        ("GET", "/", "ListBuckets"),
        ("GET", "/b", "ListObjects"),
        ("GET", "/b/", "ListObjects"),
        ("GET", "/b?list-type=2", "ListObjectsV2"),
        ("GET", "/b/k", "GetObject"),
        ("GET", "/b/k?partNumber=1", "GetObject"),
        ("HEAD", "/b/k?partNumber=1", "HeadObject"),
        ("GET", "/b/k?uploadId=u", "ListParts"),
        ("GET", "/b/k?uploadId=u&partNumber=1", "ListParts"),
        ("GET", "/b/k?unknown=1&unknown=2", "GetObject"),
        ("GET", "/b/k?response-content-type=text/plain", "GetObject"),
        ("GET", "/b?analytics", "ListBucketAnalyticsConfigurations"),
        ("GET", "/b?analytics&id=1", "GetBucketAnalyticsConfiguration"),
        ("PUT", "/b/k", "PutObject"),
        ("PUT", "/b/k?", "PutObject"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", "UploadPart"),
        ("PUT", "/b/k?uploadId=u&partNumber=1", "UploadPart"),
        ("PUT", "/b/k?%70artNumber=1&upload%49d=u", "UploadPart"),
        ("PUT", "/b/k?x-id=PutObject", "PutObject"),
        ("PUT", "/b/k?x-id=DeleteObject", "PutObject"),
        ("PUT", "/b/k?tagging&versionId=v", "PutObjectTagging"),
        ("DELETE", "/b/k?versionId=v", "DeleteObject"),
        ("DELETE", "/b/k?uploadId=u", "AbortMultipartUpload"),
        ("POST", "/b/k?uploads", "CreateMultipartUpload"),
        ("POST", "/b/k?uploads=", "CreateMultipartUpload"),
        ("POST", "/b/k?uploadId=u", "CompleteMultipartUpload"),
        ("POST", "/b/k?select&select-type=2", "SelectObjectContent"),
        ("POST", "/b?delete", "DeleteObjects"),
        ("POST", "/b", "PostObject"),
        ("OPTIONS", "/b", "PreflightBucket"),
        ("OPTIONS", "/b/k", "PreflightObject"),
        ("OPTIONS", "/b/k?uploads", "PreflightObject"),
        ("OPTIONS", "/b/k?partNumber=1&uploadId=u", "PreflightObject"),
        ("OPTIONS", "/b?delete", "PreflightBucket"),
    ],
)
def test_recognise(method: str, target: str, name: str) -> None:
    """A request is recognised by method, target and subresource, however that is spelt."""
    assert named(method, target) == name


def test_copies() -> None:
    """The source's header makes a copy of a PUT and of a part, and of nothing else."""
    assert named("PUT", "/b/k", "x-amz-copy-source") == "CopyObject"
    assert named("PUT", "/b/k?partNumber=1&uploadId=u", "x-amz-copy-source") == "UploadPartCopy"
    error = refusal("PUT", "/b/k?acl", "x-amz-copy-source")
    assert (error.code, error.elements["ArgumentName"]) == ("InvalidArgument", "x-amz-copy-source")
    assert named("DELETE", "/b/k", "x-amz-copy-source") == "DeleteObject"


@pytest.mark.parametrize("query", ["", "?partNumber=1&uploadId=u"])
def test_a_copy_has_one_source(query: str) -> None:
    """Two would go upstream as one, joined by a comma, that nobody has looked at."""
    error = refusal("PUT", f"/b/k{query}", "x-amz-copy-source", "x-amz-copy-source")
    assert (error.code, error.elements["ArgumentName"]) == ("InvalidArgument", "x-amz-copy-source")


PRESIGNED = "&".join(
    f"X-Amz-{name}=x"
    for name in "Algorithm Credential Date Expires SignedHeaders Signature Security-Token Content-Sha256".split()
)


@pytest.mark.parametrize("parameter", [PRESIGNED, "x-amz-acl=private&x-amz-meta-a=b", "X-Amz-Tagging=a"])
def test_presigned(parameter: str) -> None:
    """A presigned URL may carry its signature and headers in the query."""
    assert named("PUT", f"/b/k?{parameter}&x-id=PutObject") == "PutObject"
    assert named("PUT", f"/b/k?partNumber=1&uploadId=u&{parameter}") == "UploadPart"


@pytest.mark.parametrize(
    "target",
    [
        "/b/k?append&position=0",
        "/b/k?unknown",
        "/b/k?Acl",
        "/b/k?uploadid=u",
        "/b/k?fetch=http://elsewhere",
        "/b/k?x-amz-copy-source=b/other",
        "/b/k?X-Amz-Copy-Source=b/other",
        "/b/k?x-amz-copy-source-range=0-1",
        "/b/k?x-amz-meta-fencing-token=99",
        "/b/k?X-Amz-Meta-Fencing-Key=other",
        "/b/k?x-amz-rename-source=b/other",
        "/b/k?X-Fencing-Token=99",
    ],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_unknown_parameters_of_writes(method: str, target: str) -> None:
    """A write with a parameter that no row knows is refused: nobody can tell what the upstream would do with it."""
    assert repr(target.partition("?")[2].partition("&")[0].partition("=")[0]) in past_the_fence(head_of(method, target))


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/b/k?acl&tagging"),
        ("PUT", "/b/k?partNumber=1&uploadId=u&tagging"),
        ("DELETE", "/b/k?tagging&uploadId=u"),
        ("POST", "/b/k?uploads&uploadId=u"),
        ("POST", "/b?delete&cors"),
        ("GET", "/b/k?acl&uploadId=u"),
        ("GET", "/b?acl&policy"),
        ("HEAD", "/b?acl&policy"),
    ],
)
def test_conflicting_subresources(method: str, target: str) -> None:
    """Two subresources at once are S3's own error, on reads and writes: which one counts is for nobody to guess."""
    error = refusal(method, target)
    assert (error.code, error.status, error.elements["ArgumentName"]) == ("InvalidArgument", 400, "ResourceType")
    assert error.message.startswith("Conflicting query string parameters: ")


@pytest.mark.parametrize(
    ("method", "target", "twice"),
    [
        ("POST", "/b/k?uploadId=mine&uploadId=other", "uploadId"),
        ("POST", "/b/k?uploadId=mine&upload%49d=other", "uploadId"),
        ("PUT", "/b/k?partNumber=1&uploadId=u&partNumber=2", "partNumber"),
        ("DELETE", "/b/k?versionId=a&versionId=b", "versionId"),
        ("PUT", "/b/k?acl&acl", "acl"),
        ("GET", "/b?prefix=a&prefix=b", "prefix"),
        ("GET", "/b?list-type=2&start-after=a&start-after=b", "start-after"),
        ("GET", "/b?versions&key-marker=a&key%2Dmarker=b", "key-marker"),
    ],
)
def test_doubled_parameters(method: str, target: str, twice: str) -> None:
    """A write or a list with a parameter twice is refused: the upstream might take the other value."""
    error = refusal(method, target)
    assert (error.code, error.elements["ArgumentName"]) == ("InvalidArgument", twice)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/"),
        ("POST", "/"),
        ("DELETE", "/"),
        ("PATCH", "/b/k"),
        ("put", "/b/k"),
        ("TRACE", "/b/k"),
        ("POST", "/b/k"),
        ("POST", "/b/k?acl"),
        ("DELETE", "/b/k?acl"),
        ("HEAD", "/b/k?acl"),
        ("GET", "/b/k?uploads"),
        ("PUT", "/b/k?partNumber=1"),
        ("PUT", "/b/k?uploadId=u"),
        ("DELETE", "/b/k?partNumber=1&uploadId=u"),
        ("POST", "/b/k?partNumber=1&uploadId=u"),
        ("PUT", "/b/k?annotation"),
        ("PUT", "/b?location"),
    ],
)
def test_no_row(method: str, target: str) -> None:
    """What no row knows is refused: a subresource never falls back to the plain operation."""
    error = refusal(method, target)
    assert (error.code, error.status, error.elements["Method"]) == ("MethodNotAllowed", 405, method)


@pytest.mark.parametrize("number", ["", "0", "10001", "x", "-1", "+1", "1.0", "1e3", "%20" + "1", "%D9%A1", "9" * 100])
@pytest.mark.parametrize("header", [(), ("x-amz-copy-source",)])
def test_parts_have_a_number(number: str, header: tuple[str, ...]) -> None:
    """SeaweedFS takes a part without a number for a plain PUT of the object. 1 to 10,000 are numbers."""
    error = refusal("PUT", f"/b/k?partNumber={number}&uploadId=u", *header)
    assert (error.code, error.elements["ArgumentName"]) == ("InvalidArgument", "partNumber")
    assert len(error.elements["ArgumentValue"]) <= 64
    for good in ("1", "010", "10000"):
        assert named("PUT", f"/b/k?partNumber={good}&uploadId=u", *header).startswith("UploadPart")
    assert named("GET", f"/b/k?partNumber={number}") == "GetObject"


@pytest.mark.parametrize(
    ("method", "target", "name"),
    [
        ("DELETE", "/b?cors=%0A", "cors"),
        ("GET", "/b?policyStatus=%0a", "policyStatus"),
        ("GET", "/b?list-type=2%0A", "list-type"),
        ("PUT", "/b/k?tagging=x%0Ay", "tagging"),
        ("PUT", "/b/k?partNumber=1&uploadId=u%0A", "uploadId"),
        ("POST", "/b?x-id=a%0Ab&delete=%0A", "delete"),
    ],
)
def test_a_line_feed_hides_no_subresource(method: str, target: str, name: str) -> None:
    """SeaweedFS looks for subresources by a pattern that no line feed matches, and would do the plain operation."""
    error = refusal(method, target)
    assert (error.code, error.elements["ArgumentName"]) == ("InvalidArgument", name)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("/b?list-type=2&prefix=a%0Ab", "ListObjectsV2"),
        ("/b?prefix=%0A", "ListObjects"),
        ("/b/k%0A?tagging", "GetObjectTagging"),
        ("/b/k?versionId=%0A", "GetObject"),
    ],
)
def test_elsewhere_a_line_feed_may_stand(target: str, name: str) -> None:
    """Keys have them, and what lists are asked for."""
    assert named("GET", target) == name


@pytest.mark.parametrize("method", ["DELETE", "PUT"])
@pytest.mark.parametrize("version", ["versionId", "versionId="])
def test_a_write_of_a_version_names_it(method: str, version: str) -> None:
    """A store takes an empty one for none: a delete would be one of the object itself, without its condition."""
    error = refusal(method, f"/b/k?tagging&{version}" if method == "PUT" else f"/b/k?{version}")
    assert (error.code, error.elements["ArgumentName"]) == ("InvalidArgument", "versionId")
    assert named("DELETE", "/b/k?versionId=null") == "DeleteObject"
    assert named("GET", f"/b/k?{version}") == "GetObject"


def form(target: str, content_type: str = "multipart/form-data; boundary=x") -> RequestHead:
    return parse_head("POST", target, Headers([("host", "x"), ("content-type", content_type)]))


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=x",
        " Multipart/Form-Data",
        "multipart/form-data;",
        "multipart/mixed; boundary=x; y=multipart/form-data",
        "multipart/mixed; boundary=x; y=multipart/form-dat",
    ],
)
@pytest.mark.parametrize(
    "target",
    ["/b?delete", "/b?metadataTable", "/b/k?restore", "/b/k?uploadId=u", "/b/k?select&select-type=2", "/b/k", "/"],
)
def test_a_form_is_nothing_else(target: str, content_type: str) -> None:
    """A store may see the form where the gateway sees a subresource."""
    assert "Content-Type" in past_the_fence(form(target, content_type))


def test_what_may_be_a_form() -> None:
    """A POST to a bucket is one; the creation of an upload names with the type of a form the type of its object."""
    assert recognise(form("/b")).name == "PostObject"
    assert recognise(form("/b/")).name == "PostObject"
    assert recognise(form("/b/k?uploads")).name == "CreateMultipartUpload"
    assert recognise(form("/b/k?restore", "application/xml")).name == "RestoreObject"


@pytest.mark.parametrize("header", ["x-minio-force-delete", "x-minio-extract", "x-amz-meta-snowball-auto-extract"])
@pytest.mark.parametrize(("method", "target"), [("DELETE", "/b"), ("DELETE", "/b/k"), ("PUT", "/b/k")])
def test_reaching_further(method: str, target: str, header: str) -> None:
    """Extensions by which a write reaches objects that it does not name are refused."""
    assert header in past_the_fence(head_of(method, target, header))
    assert named("GET", "/b/k", header) == "GetObject"


@pytest.mark.parametrize(
    ("method", "target", "name"),
    [
        ("PUT", "/b/k?versionId=v", "versionId"),
        ("PUT", "/b/k?annotationName=n", "annotationName"),
        ("POST", "/b/k?uploads&versionId=v", "versionId"),
        ("POST", "/b/k?uploadId=u&versionId=v", "versionId"),
        ("PUT", "/b/k?partNumber=1&uploadId=u&versionId=v", "versionId"),
        ("DELETE", "/b/k?uploadId=u&versionId=v", "versionId"),
        ("DELETE", "/b/k?annotationName=n", "annotationName"),
        ("PUT", "/b?id=1", "id"),
        ("DELETE", "/b?id=1", "id"),
        ("PUT", "/b?cors&id=1", "id"),
        ("POST", "/b?delete&versionId=v", "versionId"),
    ],
)
def test_parameters_of_other_writes(method: str, target: str, name: str) -> None:
    """A parameter that means something to other writes alone is refused, as S3 refuses a version on a PUT."""
    error = refusal(method, target)
    assert (error.code, error.elements["ArgumentName"]) == ("InvalidArgument", name)


def test_long_rows_of_names_are_not_kept() -> None:
    """Anybody may send thousands of parameters, before any proof: no cache holds on to them."""
    few = recognise(head_of("GET", "/b/k?" + "&".join(f"n{n}" for n in range(MAX_KEPT_NAMES))))
    kept = _row.cache_info().currsize
    many = recognise(head_of("GET", "/b/k?" + "&".join(f"n{n}" for n in range(MAX_KEPT_NAMES + 1))))
    assert few is many
    assert _row.cache_info().currsize == kept
