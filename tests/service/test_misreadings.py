"""What a store would take for something else: refused where it would, passed where it would not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.errors import Reason, Refused
from gateway.s3.recognise import recognise
from gateway.s3.request import Headers, RequestHead, parse_head
from gateway.service.misreadings import refuse_misread
from gateway.upstream.base import Capabilities
from gateway.upstream.memory import MemoryUpstream
from gateway.upstream.probe import FixedCapabilities

HARMLESS = Capabilities(files_paths=False, overlooks=False)


def head_of(method: str, target: str, *fields: tuple[str, str]) -> RequestHead:
    return parse_head(method, target, Headers([("host", "x"), *fields]))


def passed(head: RequestHead, capabilities: Capabilities) -> bool:
    """Whether the request goes on to such a store."""
    try:
        asyncio.run(refuse_misread(MemoryUpstream("b"), FixedCapabilities(capabilities), recognise(head), head))
    except Refused as error:
        return error.reason is not Reason.OPERATION_NOT_FENCED
    return True


@pytest.mark.parametrize(
    ("method", "target", "level"),
    [
        ("PUT", "/b/k?encryption", "object"),
        ("PUT", "/b/k?annotation&annotationName=n", "object"),
        ("DELETE", "/b/k?annotation&annotationName=n", "object"),
        ("DELETE", "/b?website", "bucket"),
        ("PUT", "/b?notification", "bucket"),
        ("PUT", "/b/k?tagging", ""),
        ("DELETE", "/b?cors", ""),
        ("GET", "/b?website", ""),
        ("POST", "/b?metadataTable", ""),
    ],
)
def test_what_a_store_overlooks(method: str, target: str, level: str) -> None:
    """Objects' and buckets' subresources are told apart: a store that overlooks the ones may know the others."""
    head = head_of(method, target)
    assert passed(head, HARMLESS)
    assert passed(head, replace(HARMLESS, overlooks=True)) is (level != "object")
    assert passed(head, replace(HARMLESS, overlooks_settings=True)) is (level != "bucket")


@pytest.mark.parametrize(
    ("method", "target", "fields"),
    [
        ("PUT", "/b//", ()),
        ("DELETE", "/b/%5C", ()),
        ("PUT", "/b/a/", [("content-length", "1")]),
        ("PUT", "/b/a/", [("content-length", "99"), ("x-amz-decoded-content-length", "1")]),
        ("PUT", "/b/a/", [("transfer-encoding", "chunked")]),
        ("PUT", "/b/a/", [("content-length", "0"), ("x-amz-copy-source", "b/k")]),
        ("PUT", "/b/a/?tagging", [("content-length", "0")]),
        ("POST", "/b/a/?uploads", [("content-length", "0")]),
        ("GET", "/b/.uploads/u/1", ()),
        ("PUT", "/b/copy", [("x-amz-copy-source", "/b/.uploads/u/1")]),
        ("PUT", "/b/copy", [("x-amz-copy-source", "b/.uploads%2Fu%2F1?versionId=v")]),
        ("PUT", "/b/k?partNumber=1&uploadId=u", [("x-amz-copy-source", "b/k.versions/v_1")]),
    ],
)
def test_keys_that_name_no_object(method: str, target: str, fields: list[tuple[str, str]]) -> None:
    """Where keys are filed as paths; the source of a copy is read too."""
    head = head_of(method, target, *fields)
    assert passed(head, HARMLESS)
    assert not passed(head, replace(HARMLESS, files_paths=True))


@pytest.mark.parametrize(
    ("method", "target", "fields"),
    [
        ("GET", "/b//", ()),
        ("GET", "/b/a/", ()),
        ("PUT", "/b/a/", [("content-length", "0")]),
        ("PUT", "/b/a/", [("content-length", "90"), ("x-amz-decoded-content-length", "0")]),
        ("DELETE", "/b/a/", ()),
        ("DELETE", "/b/a/?uploadId=u", ()),
        ("PUT", "/b/a//b", [("content-length", "1")]),
        ("PUT", "/b/copy", [("x-amz-copy-source", "b/a/")]),
        ("GET", "/b?prefix=.uploads/", ()),
    ],
)
def test_keys_that_do(method: str, target: str, fields: list[tuple[str, str]]) -> None:
    """Folders can be made and removed, and reads of what is not there are the store's to answer."""
    assert passed(head_of(method, target, *fields), replace(HARMLESS, files_paths=True))


@pytest.mark.parametrize(
    ("method", "target", "source"),
    [
        ("DELETE", "/b/k?uploadId=x/../../renders", None),
        ("PUT", "/b/k?partNumber=1&uploadId=x%2F..%2F..%2Frenders", None),
        ("POST", "/b/k?uploadId=..", None),
        ("GET", "/b/k?uploadId=x%5C..%5C..", None),
        ("GET", "/b/k?versionId=a&versionId=x/../k", None),
        ("DELETE", "/b/k?versionId=x/../../k", None),
        ("PUT", "/b/k", "b/../other/secret"),
        ("PUT", "/b/k", "/b/%2e%2e/other/secret"),
        ("PUT", "/b/k", "b/k?/../../other/secret"),
        ("PUT", "/b/k", "b/k?versionId=../../other/secret"),
        ("PUT", "/b/k", "b/k%3FversionId=..%5Cx"),
    ],
)
def test_what_leads_elsewhere(method: str, target: str, source: str | None) -> None:
    """SeaweedFS 4.30 follows such ids and sources as paths: without a token to the objects of any job, and to other
    buckets than the client may use."""
    fields = () if source is None else (("x-amz-copy-source", source),)
    head = head_of(method, target, *fields)
    assert passed(head, HARMLESS)
    assert not passed(head, replace(HARMLESS, files_paths=True))
