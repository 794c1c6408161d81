"""Holds what a control listener answers against its own OpenAPI document."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jsonschema_rs

from gateway.core.keys import Ruleset
from gateway.server.app import Gateway, Parts
from gateway.server.control.calls import Call
from gateway.server.control.openapi import document
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Start
from gateway.upstream.memory import MemoryUpstream
from gateway.upstream.probe import FixedCapabilities
from tests.server.rig import PROVED

UNDESCRIBED = (404, 405)
"""What every path and method may be answered with."""


@cache
def calls() -> list[Call]:
    """All calls of a gateway."""
    parts = Parts(
        store=MemoryStore(),
        store_start=Start(clean=True, reason=""),
        upstream=MemoryUpstream(),
        capabilities=FixedCapabilities(PROVED),
        rules=Ruleset(()),
        clients=(),
    )
    return Gateway(parts)._control.calls


@cache
def described() -> dict[str, Any]:
    """The document."""
    return document(calls())


@cache
def operation(method: str, path: str) -> dict[str, Any] | None:
    """What is said of such a request; None for nothing."""
    for template, operations in described()["paths"].items():
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), path):
            found: dict[str, Any] | None = operations.get(method.lower())
            return found
    return None


@cache
def validator(method: str, path: str, status: int, content_type: str) -> Any:
    """What judges such an answer. Raises `KeyError` for one that the document does not know."""
    found = operation(method, path)
    assert found is not None, f"nothing is said of {method} {path}"
    schema = found["responses"][str(status)]["content"][content_type]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": described()["components"]}, validate_formats=True)


def conforms(method: str, path: str, status: int, content_type: str, body: Any) -> None:
    """The answer is one that the document promises. `path` is as it was sent, percent-encoded and without a query;
    `body` is None for none."""
    found = operation(method, path)
    if found is None and status in UNDESCRIBED:
        return
    if body is None:
        assert found is not None
        assert "content" not in found["responses"][str(status)]
        return
    validator(method, path, status, content_type).validate(body)
