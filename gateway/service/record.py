"""What a bucket's record says, as JSON, and how it is read and written."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.core.errors import Outcome, TryAgain
from gateway.core.names import RECORD_KEY
from gateway.core.write import CONDITION_FAILED_STATUS, Answer, Condition, ObjectState, condition_on
from gateway.s3.xml import error_code
from gateway.service.refusals import refuse_our_own_fault, unavailable
from gateway.service.sending import result_of, versioning
from gateway.service.values import Result
from gateway.stores.values import MAX_GENERATION
from gateway.upstream.base import (
    EMPTY_SHA256,
    CapabilitySource,
    Upstream,
    UpstreamLost,
    UpstreamNotReached,
    UpstreamRequest,
)

MAX_LAPSE_S = 300.0
"""The longest that any gateway may go without a look at its record."""

WRITE_TIMEOUT_S = 10.0
MAX_RECORD_BYTES = 65536

_VERSION = 1
_NAME = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Record:
    """Who rules a bucket."""

    database: str
    generation: int
    run: str
    nonce: str
    """No two records bear the same, so that none is ever taken for another."""
    rebuilding: bool
    """The bucket has been claimed; nothing fenced is served until its floors are rebuilt."""
    lapse_s: float
    """How long its owner goes on without having seen it; of a claim, any owner before it, too."""
    written: str
    """When, by its writer's clock; for people."""

    @property
    def owner(self) -> str:
        """For people."""
        return f"database {self.database[:8]}, generation {self.generation}, which wrote its record at {self.written}"


def render_record(record: Record) -> bytes:
    """As it is stored."""
    told = {"version": _VERSION, "note": "Written by fencing-gateway; do not delete."} | asdict(record)
    return orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n"


def parse_record(data: bytes) -> Record:
    """Raises ValueError, with what is wrong, for anything that `render_record` of this version has not written."""
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    if not isinstance(told, dict) or told.get("version") != _VERSION:
        raise ValueError(f"it is no record of version {_VERSION}, the only one that this gateway knows")
    names = [_checked(told, name, lambda v: isinstance(v, str) and _NAME.fullmatch(v)) for name in _NAMES]
    generation = _checked(told, "generation", lambda v: type(v) is int and 0 <= v <= MAX_GENERATION)
    lapse_s = _checked(told, "lapse_s", lambda v: type(v) in (int, float) and 0 < v <= MAX_LAPSE_S)
    rebuilding = _checked(told, "rebuilding", lambda v: isinstance(v, bool))
    database, run, nonce, written = names
    return Record(database, generation, run, nonce, rebuilding, float(lapse_s), written)


_NAMES = ("database", "run", "nonce", "written")


def _checked(told: dict[str, Any], name: str, holds: Any) -> Any:
    if not holds(told.get(name)):
        raise ValueError(f"its {name!r} is not what it has to be")
    return told[name]


def time_of(seconds: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Seen:
    """A bucket's record as it was found. `record` None: it cannot be read."""

    record: Record | None
    etag: str
    why: str = ""
    """What is wrong with it."""


class NoBucket(Exception):
    """There is no such bucket."""


class RecordObjects:
    """The records as objects of the store behind."""

    def __init__(self, upstream: Upstream, capabilities: CapabilitySource) -> None:
        self._upstream = upstream
        self._capabilities = capabilities

    async def read(self, name: str) -> Seen | None:
        """The record that the bucket bears; None: none. Raises `TryAgain` (UpstreamUnavailable), `NoBucket`."""
        try:
            response = await self._upstream.read(UpstreamRequest("GET", name, RECORD_KEY, "", (), EMPTY_SHA256))
            body = await response.read(MAX_RECORD_BYTES)
        except UpstreamLost as error:
            raise unavailable(f"the record of bucket {name} cannot be read: {error}") from error
        except UpstreamNotReached as error:
            raise unavailable(str(error)) from error
        if response.status == 404:
            if error_code(body) == "NoSuchBucket":
                raise NoBucket(f"there is no bucket {name}")
            return None
        if response.status != 200:
            raise _unreadable(name, response.status, error_code(body))
        etag = response.header("etag") or ""
        try:
            return Seen(parse_record(body), etag)
        except ValueError as error:
            return Seen(None, etag, str(error))

    async def write(self, name: str, record: Record, instead_of: Seen | None) -> Seen | None:
        """Replace the record that was seen, or make it where there was none; None if it is no longer what was seen.
        Raises `TryAgain` (UpstreamUnavailable), `NoBucket`."""
        bare = (await self._capabilities.of_bucket(name)).bare_etag
        condition = condition_on(None if instead_of is None else ObjectState(instead_of.etag), bare_etag=bare)
        result = await self._put(name, record, condition)
        if result is not None and result.answer is Answer.APPLIED and (etag := result.header("etag")):
            return Seen(record, etag)
        # A server may have tried twice, or its answer be lost: the nonce tells.
        seen = await self.read(name)
        if seen is not None and seen.record == record:
            return seen
        if result is not None and result.status in CONDITION_FAILED_STATUS:
            if seen != instead_of or await versioning(self._upstream, name) != "Suspended":
                return None
            # SeaweedFS refuses what it kept a version of, once it keeps none, and absence that hides one of before
            # (decision 0016).
            await self._put(name, record, None)
            seen = await self.read(name)
            return seen if seen is not None and seen.record == record else None
        if result is not None:
            refuse_our_own_fault(result.code)
        told = "no answer came" if result is None else f"it answers {result.status} {result.code or ''}".strip()
        raise unavailable(f"the record of bucket {name} ({RECORD_KEY}) cannot be written: {told}", Outcome.NOT_APPLIED)

    async def _put(self, name: str, record: Record, condition: Condition | None) -> Result | None:
        """The answer; None where it is lost. Raises as `write` does."""
        data = render_record(record)
        # Buckets with object lock demand a digest.
        digest = b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        headers = [("content-type", "application/json"), ("content-md5", digest)]
        if condition is not None:
            headers.append(condition.header())
        request = UpstreamRequest("PUT", name, RECORD_KEY, "", tuple(headers), hashlib.sha256(data).hexdigest())
        try:
            result = await result_of(await self._upstream.send(request, data, WRITE_TIMEOUT_S))
        except UpstreamNotReached as error:
            raise unavailable(str(error)) from error
        except UpstreamLost:
            return None
        if result.code == "NoSuchBucket":
            raise NoBucket(f"there is no bucket {name}")
        return result


def _unreadable(name: str, status: int, code: str | None) -> TryAgain:
    """Raises `TryAgain`, too, where credentials or clock are at fault and no permission would help."""
    refuse_our_own_fault(code)
    told = f"it answers {status} {code or ''}".strip() + f" to a GET of {name}/{RECORD_KEY}, the bucket's record"
    if status == 403:
        told += ". The gateway's credentials need s3:GetObject and s3:PutObject on it, and s3:ListBucket on its bucket"
    return unavailable(told)
