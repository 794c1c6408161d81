"""Reads what a caller sends: path, query, headers and JSON body, each as its type says; or tells why not."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import TypeAdapter, ValidationError

from gateway.core.errors import Reason
from gateway.server.control.documents import Given
from gateway.server.control.problems import REASONS, Problem

JSON_TYPES = frozenset({"application/json", "application/octet-stream", "application/x-www-form-urlencoded"})
"""What a JSON body may come as: its own type, and those that programs put on it by themselves when nobody tells them
(RFC 9110, 8.3; curl and others take every POST for a form)."""
BODY_TIMEOUT_S = 30
_BROKEN_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_OF_JSON = {
    "tuple_type": "input should be an array",
    "model_type": "input should be an object",
    "too_long": "input should have at most {max_length} items",
}
"""What pydantic says in Python's words, by its type of fault."""
_Document = TypeVar("_Document", bound=Given)


@dataclass(frozen=True, slots=True)
class Header:
    """A header that a call takes."""

    name: str
    pattern: re.Pattern[str]
    form: str
    """The pattern in words."""
    purpose: str

    @property
    def description(self) -> str:
        return f"{self.purpose} {self.form}."


IDEMPOTENCY_KEY = Header(
    "Idempotency-Key",
    re.compile(r"[!-~]{1,255}", re.ASCII),
    "1 to 255 visible characters of ASCII",
    "Names this request, so that it can be repeated when its answer was lost: the answer is the same.",
)
REQUEST_ID = Header(
    "X-Request-Id",
    re.compile(r"[!-~]{1,128}", re.ASCII),
    "1 to 128 visible characters of ASCII",
    "Goes into the key's history.",
)


def read_header(request: web.Request, header: Header) -> str | None:
    """What the caller has sent of it; None for nothing."""
    sent = request.headers.getall(header.name, [])
    if not sent:
        return None
    if len(sent) > 1 or not header.pattern.fullmatch(sent[0]):
        raise Problem(400, "invalid", f"the header {header.name} must come once, as {header.form}")
    return sent[0]


def read_path(request: web.Request, template: str, types: Mapping[str, TypeAdapter[Any]]) -> dict[str, object]:
    """The parameters of a path, each one percent-encoded segment of UTF-8."""
    if not types:
        return {}
    _decoded(
        request.raw_path.partition("?")[0], Reason.KEY_INVALID.value
    )  # as it was sent; below, what is no escape has been made one
    segments = request.rel_url.raw_path.split("/")
    names = {part[1:-1]: at for at, part in enumerate(template.split("/")) if part.startswith("{")}
    return {
        name: _checked(types[name], _decoded(segments[at], Reason.KEY_INVALID.value), name)
        for name, at in names.items()
    }


def _decoded(raw: str, reason: str) -> str:
    """Raises `Problem` for that reason."""
    try:
        if not _BROKEN_PERCENT.search(raw):
            return unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).decode()
    except UnicodeDecodeError:
        pass
    raise Problem(400, reason, "path and query must be percent-encoded UTF-8")


def read_query(request: web.Request, model: type[Given] | None) -> Given | None:
    """The query's parameters, each at most once; a call without any takes none."""
    given: dict[str, str] = {}
    if "?" in request.raw_path:
        _, _, text = request.raw_path.partition("?")
        _decoded(text, "invalid")
        for name, value in request.query.items():
            if name in given:
                raise Problem(400, "invalid", f"the query names {name!r} twice")
            given[name] = value
    if model is None:
        if given:
            raise Problem(400, "invalid", f"unknown query parameter {min(given)!r}; this call takes none")
        return None
    return _document(model, given, "query parameter")


async def read_body(request: web.Request, model: type[_Document], max_bytes: int) -> _Document:
    """The JSON body, of at most that many bytes after decompression, in which no object bears a name twice; what may be
    any JSON in it, as its text."""
    if "Content-Type" in request.headers:
        kind = request.content_type
        if kind not in JSON_TYPES and not (kind.startswith("application/") and kind.endswith("+json")):
            raise Problem(415, "unsupported-media-type", f"the body must be application/json, not {kind}")
    body = await _bounded(request, max_bytes)
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if (name := _beyond_doubles(body)) is not None:
            told = f"`{name[:100]}` holds a number beyond 1.7e308; where any JSON may be, send it as a string"
        else:
            told = f"the body must be a JSON object: {error}"
        raise Problem(400, "invalid", told) from None
    if not isinstance(given, dict):
        raise Problem(400, "invalid", "the body must be a JSON object")
    try:
        written = _as_written(body)
    except RecursionError:  # orjson goes deeper
        raise Problem(400, "invalid", "the body is nested too deep") from None
    texts = {name: _text(written[name], name) for name in model.any_json() if name in written}
    return _document(model, given | texts, "member")


def _text(value: object, name: str) -> str | None:
    """Compact JSON, with its numbers as they were written."""
    try:
        return None if value is None else orjson.dumps(value).decode()
    except TypeError:  # orjson reads deeper than it writes
        raise Problem(400, "invalid", f"`{name}` is nested too deep") from None


def _as_written(body: bytes) -> dict[str, object]:
    """The members of a JSON object, their numbers as text. Raises `ValueError`, `RecursionError`, `Problem`."""
    written = json.loads(
        body.decode(), parse_int=orjson.Fragment, parse_float=orjson.Fragment, object_pairs_hook=_members
    )
    return written if isinstance(written, dict) else {}


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Raises `Problem` for a name that comes twice: which of the two is meant?"""
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise Problem(400, "invalid", f"the body names {twice[:100]!r} twice")
    return members


def _beyond_doubles(body: bytes) -> str | None:
    """The member of a JSON object, if it is one, that holds a number which no double can be."""
    try:
        members = _as_written(body)
    except (ValueError, RecursionError):
        return None
    for name, value in members.items():
        with suppress(TypeError):  # whatever else is wrong with it
            try:
                orjson.loads(orjson.dumps(value))
            except orjson.JSONDecodeError:
                return name
    return None


async def _bounded(request: web.Request, max_bytes: int) -> bytes:
    too_large = Problem(413, "too-large", f"this call takes a body of at most {max_bytes} bytes")
    if (request.content_length or 0) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise Problem(408, "timeout", f"the body has not come within {BODY_TIMEOUT_S} s") from None
    except (HttpProcessingError, web.RequestPayloadError) as error:
        raise Problem(400, "invalid", f"the body cannot be read: {error}") from None
    return bytes(body)


def _document(model: type[_Document], given: Mapping[str, object], kind: str) -> _Document:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _problem(error, kind, sorted(model.model_fields)) from None


def _checked(adapter: TypeAdapter[Any], text: str, name: str) -> object:
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        raise _problem(error, "path parameter", [name]) from None


def _problem(error: ValidationError, kind: str, allowed: list[str]) -> Problem:
    """The first fault, in words. What was given is not repeated: it may be a secret, and long."""
    fault = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        listed = f"allowed: {', '.join(allowed)}" if allowed else "there is none"
        return Problem(400, "invalid", f"unknown {kind} {place[:100]!r}; {listed}")
    if told := _OF_JSON.get(fault["type"], ""):
        told = told.format(**fault.get("ctx", {}))
    else:
        told = fault["msg"][:1].lower() + fault["msg"][1:]
    reason = fault["type"] if fault["type"] in REASONS else "invalid"
    return Problem(400, reason, f"`{place}`: {told}" if place else told)
