"""One call of the control API: its path, who may make it, what it takes and what it answers.

A handler's own signature says most of it. Parameters that the path names, `query` and `body` are read and checked by
their types before the handler runs, `ask` is the request itself, and what the handler returns is what is answered. The
OpenAPI document (`gateway.server.control.openapi`) is made of the very same.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar, get_args, get_origin

import orjson
from aiohttp import HttpVersion11, web
from pydantic import TypeAdapter

from gateway.server.control.access import Access, ApiToken
from gateway.server.control.asked import Header, read_body, read_header, read_path, read_query
from gateway.server.control.documents import Given, Shown

MAX_BODY_BYTES = 65536
_IN_PATH = re.compile(r"\{(\w+)\}")
_Answer = TypeVar("_Answer", bound=Shown)


class Role(StrEnum):
    """Who may make a call. An operator may make every one; key patterns limit both."""

    ANYONE = "anyone"
    """Probes of a container platform, which have no token."""
    WORKER = "worker"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Ask:
    """Who calls, and the request as it came."""

    request: web.Request
    caller: ApiToken | None
    """None on an open listener."""
    headers: Mapping[str, str]
    """Those that the call takes and the caller has sent."""


@dataclass(frozen=True, slots=True)
class Answered(Generic[_Answer]):
    """An answer whose status is not the call's first."""

    document: _Answer
    status: int


@dataclass(frozen=True, slots=True)
class Media:
    """What a call answers that writes its response itself."""

    type: str
    schema: Mapping[str, object]
    streams: bool = False
    """It is written as it comes about; nobody may ask for its head alone."""


async def _expect(request: web.Request) -> None:
    """Says that the body may come. Other expectations are passed over (RFC 9110, 10.1.1), which aiohttp by itself would
    answer in plain text."""
    if request.headers["Expect"].lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer, which is still to come


@dataclass(frozen=True, slots=True)
class Call:
    """One route. Everything that it can answer is said here, beside what holds for all calls."""

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    role: Role = Role.WORKER
    statuses: tuple[int, ...] = (200,)
    """Of success; the first is the usual one."""
    refuses: tuple[str, ...] = ()
    """The reasons of its own for saying no (`problems.REASONS`)."""
    headers: tuple[Header, ...] = ()
    media: Media | None = None
    """What it answers, for a handler that returns a response; else the handler's return type says it."""
    max_body_bytes: int = MAX_BODY_BYTES
    leads_to: Mapping[str, str] = field(default_factory=dict)
    """The calls that go on with what this one answers, by their handlers' names: where in the answer `key` and `token`
    are that they are made with (a JSON pointer; empty: the answer itself)."""
    signature: Signature = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signature", Signature.of(self))

    def route(self, access: Access) -> web.RouteDef:
        """It, for who may make it."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return self._answer(await self.handler(**await self._arguments(request, access)))

        path = _IN_PATH.sub(r"{\1:[^/]+}", self.path)  # by itself aiohttp takes no braces in a segment
        if self.method == "GET":
            allow_head = self.media is None or not self.media.streams
            return web.get(path, handle, allow_head=allow_head, expect_handler=_expect)
        return web.route(self.method, path, handle, expect_handler=_expect)

    async def _arguments(self, request: web.Request, access: Access) -> dict[str, object]:
        """What the handler is called with. Raises `Problem` for who may not, and for what cannot be meant."""
        caller = None if self.role is Role.ANYONE else access.caller(request, operator=self.role is Role.OPERATOR)
        signature = self.signature
        arguments: dict[str, object] = read_path(request, self.path, signature.path)
        if "key" in arguments:
            access.permit(caller, str(arguments["key"]))
        query = read_query(request, signature.query)
        if query is not None:
            arguments["query"] = query
        headers = {header.name: said for header in self.headers if (said := read_header(request, header)) is not None}
        if signature.body is not None:
            arguments["body"] = await read_body(request, signature.body, self.max_body_bytes)
        if signature.asks:
            arguments["ask"] = Ask(request, caller, headers)
        return arguments

    def _answer(self, returned: object) -> web.StreamResponse:
        if isinstance(returned, web.StreamResponse):
            return returned
        status = self.statuses[0]
        if isinstance(returned, Answered):
            status, returned = returned.status, returned.document
        if returned is None:
            return web.Response(status=status)
        assert isinstance(returned, Shown)
        told = returned.__pydantic_serializer__.to_python(returned, exclude_unset=True)
        body = orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS)
        return web.Response(body=body, status=status, content_type="application/json")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a handler takes and returns."""

    path: Mapping[str, TypeAdapter[Any]]
    """By name, in the order of the path."""
    query: type[Given] | None
    body: type[Given] | None
    answer: type[Shown] | None
    asks: bool

    @classmethod
    def of(cls, call: Call) -> Signature:
        signature = inspect.signature(call.handler, eval_str=True)
        types = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        path = {name: TypeAdapter(types.pop(name)) for name in _IN_PATH.findall(call.path)}
        query, body, asks = types.pop("query", None), types.pop("body", None), types.pop("ask", None)
        assert not types, f"{call.path}: nobody gives {sorted(types)}"
        answer = signature.return_annotation
        if get_origin(answer) is not None:
            answer = next(one for one in _flat(answer) if isinstance(one, type) and issubclass(one, Shown))
        is_document = isinstance(answer, type) and issubclass(answer, Shown)
        assert is_document or call.media is not None or answer is None, f"{call.path}: nothing says what it answers"
        return cls(path, query, body, answer if is_document else None, asks is not None)


def _flat(annotation: Any) -> list[Any]:
    """The types of a union, or of `Answered`."""
    return [annotation, *(inner for one in get_args(annotation) for inner in _flat(one))]
