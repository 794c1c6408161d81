"""The OpenAPI 3.1 document of the control API, made of the very descriptions by which calls are read and answered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import orjson
from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from gateway.core.errors import Reason
from gateway.server.control.asked import Header
from gateway.server.control.calls import Call, Media, Role
from gateway.server.control.problems import PROBLEM, REASONS, ProblemShown

_AT = "#/components/schemas/"
_REF = _AT + "{model}"
_ABOUT = """\
Leases, jobs and fences. Errors are problems (RFC 9457) with a stable `reason`. `{key}` is one percent-encoded segment \
of the path. Times are RFC 3339 in UTC, durations end in `_s` and are seconds. Lists page by cursor."""
_BEARER = "One of the configured `[[api_token]]`s. Without any, the listener is open to this machine."
Json = dict[str, Any]
_HEADERS: dict[int, tuple[str, Json]] = {
    HTTPStatus.UNAUTHORIZED: ("WWW-Authenticate", {"required": True, "schema": {"const": "Bearer"}}),
    HTTPStatus.SERVICE_UNAVAILABLE: (
        "Retry-After",
        {"required": True, "description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
    ),
}
"""What else comes with a problem of that status."""


class _Schemas(GenerateJsonSchema):
    """Without a title for every member, which only repeats its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class OpenApiCalls:
    """The call that answers the document."""

    def __init__(self, others: Sequence[Call]) -> None:
        self._others = others

    def calls(self) -> list[Call]:
        """What it is."""
        answer = Media("application/json", {"type": "object"})
        self._own = [Call("GET", "/v1/openapi.json", self.openapi, Role.ANYONE, media=answer)]
        return self._own

    async def openapi(self) -> web.StreamResponse:
        """This document."""
        return web.Response(body=self._document, content_type="application/json")

    @cached_property
    def _document(self) -> bytes:
        return orjson.dumps(document([*self._others, *self._own]))


def document(calls: Sequence[Call]) -> Json:
    """The description of these calls."""
    paths: dict[str, Json] = {}
    schemas = _schemas(calls)
    by_name = {call.handler.__name__: call for call in calls}
    for call in calls:
        operation = paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, schemas)
        if call.leads_to:
            links = {name: _link(by_name[name], at) for name, at in call.leads_to.items() if name in by_name}
            operation["responses"][str(call.statuses[0])]["links"] = links
    for call in calls:
        if call.signature.query is not None:
            schemas.pop(call.signature.query.__name__, None)  # each of its members is a parameter
    return {
        "openapi": "3.1.0",
        "info": {"title": "fencing-gateway", "version": version("fencing-gateway"), "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _BEARER}},
        },
    }


def _schemas(calls: Sequence[Call]) -> dict[str, Json]:
    """All schemas by name."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(ProblemShown, "validation")]
    for call in calls:
        signature = call.signature
        models += [(given, "validation") for given in (signature.query, signature.body) if given is not None]
        if signature.answer is not None:
            models.append((signature.answer, "serialization"))
    _, found = models_json_schema(models, ref_template=_REF, schema_generator=_Schemas)
    return dict(found["$defs"])


def _operation(call: Call, schemas: dict[str, Json]) -> Json:
    signature = call.signature
    told = re.sub(r"\s+", " ", call.handler.__doc__ or "").strip()
    operation: Json = {
        "operationId": call.handler.__name__,
        "summary": re.split(r"(?<=[.;:]) ", told)[0].rstrip(".;:"),
        "description": f"{told} For: {call.role.value}.",
        "tags": [call.path.split("/")[2] if call.path.startswith("/v1/") else "health"],
        "parameters": [*_path_parameters(call), *_query_parameters(call, schemas), *map(_header, call.headers)],
        "security": [] if call.role is Role.ANYONE else [{"token": []}],
    }
    if signature.body is not None:
        schema = {"$ref": _AT + signature.body.__name__}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    operation["responses"] = _successes(call) | _problems(_reasons(call, operation, schemas))
    return operation


def _path_parameters(call: Call) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": adapter.json_schema(ref_template=_REF, schema_generator=_Schemas),
        }
        for name, adapter in call.signature.path.items()
    ]


def _query_parameters(call: Call, schemas: dict[str, Json]) -> list[Json]:
    if call.signature.query is None:
        return []
    schema = schemas[call.signature.query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": member}
        for name, member in schema["properties"].items()
    ]


def _header(header: Header) -> Json:
    schema = {"type": "string", "pattern": f"^{header.pattern.pattern}$"}
    return {"name": header.name, "in": "header", "required": False, "description": header.description, "schema": schema}


def _link(then: Call, at: str) -> Json:
    """How `then` goes on with the key and token that stand there in an answer."""
    key, token = (f"$response.body#{at}/{member}" for member in ("key", "token"))
    link: Json = {"operationId": then.handler.__name__, "parameters": {"key": key}}
    if then.signature.body is None:
        link["parameters"]["token"] = token
    else:
        link["requestBody"] = {"token": token}
    return link


def _successes(call: Call) -> Json:
    answer, media = call.signature.answer, call.media
    content: Json = {}
    if media is not None:
        content = {"content": {media.type: {"schema": media.schema}}}
    elif answer is not None:
        content = {"content": {"application/json": {"schema": {"$ref": _AT + answer.__name__}}}}
    return {str(status): {"description": HTTPStatus(status).phrase, **content} for status in call.statuses}


def _reasons(call: Call, operation: Json, schemas: dict[str, Json]) -> set[str]:
    """Why it may say no: for its own reasons, and those of all calls that take the like."""
    reasons = {"invalid", "internal", *call.refuses}
    if call.role is not Role.ANYONE:
        reasons |= {"unauthenticated", "forbidden", Reason.STORE_UNAVAILABLE.value}
    taken = orjson.dumps(operation["parameters"]).decode()
    if call.signature.body is not None:
        reasons |= {"timeout", "too-large", "unsupported-media-type"}
        taken += orjson.dumps(schemas[call.signature.body.__name__]).decode()
    if call.signature.path or f'"{_AT}KeyGiven"' in taken:
        reasons.add(Reason.KEY_INVALID.value)
    if f'"{_AT}TokenGiven"' in taken:
        reasons.add(Reason.TOKEN_INVALID.value)
    return reasons


def _problems(reasons: set[str]) -> Json:
    """The answers for these reasons, by status."""
    answers: Json = {}
    for status in sorted({REASONS[reason][0] for reason in reasons}):
        here = sorted(reason for reason in reasons if REASONS[reason][0] == status)
        only = {"properties": {"status": {"const": status}, "reason": {"enum": here}}}
        schema = {"allOf": [{"$ref": _AT + ProblemShown.__name__}, only]}
        told = "; ".join(f"`{reason}`: {REASONS[reason][1]}" for reason in here)
        answers[str(status)] = {"description": told, "content": {PROBLEM: {"schema": schema}}}
        if status in _HEADERS:
            answers[str(status)]["headers"] = {_HEADERS[status][0]: _HEADERS[status][1]}
    return answers
