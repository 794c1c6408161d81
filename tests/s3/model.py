"""Requests as botocore's own model of S3 builds them."""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import urlencode

import botocore.session

from gateway.s3.request import Headers, RequestHead, parse_head


@functools.cache
def model() -> Any:
    """The service model of the installed botocore, which is the one that aiobotocore pins."""
    return botocore.session.Session().get_service_model("s3")


def head_of(method: str, target: str, *headers: str) -> RequestHead:
    """A head with these header fields, whatever they say."""
    return parse_head(method, target, Headers((name, "x") for name in ("host", *headers)))


def request_of(name: str, *, everything: bool = False) -> RequestHead:
    """The request that the model builds for an operation: with its required members, or with all."""
    operation = model().operation_model(name)
    target, headers, query = operation.http["requestUri"], [], {}
    shape = operation.input_shape
    for member, inner in shape.members.items() if shape else ():
        location = inner.serialization.get("location")
        if not everything and member not in shape.required_members:
            continue
        if location == "uri":
            target = target.replace(f"{{{member}}}", "b" if member == "Bucket" else "k")
            target = target.replace(f"{{{member}+}}", "k/l")
        elif location == "querystring":
            query[inner.serialization["name"]] = "1"
        elif location == "header":
            headers.append(inner.serialization["name"].lower())
    if query:
        target += ("&" if "?" in target else "?") + urlencode(query)
    return head_of(operation.http["method"], target, *headers)
