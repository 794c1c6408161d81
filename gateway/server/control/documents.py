"""What travels in the JSON of the control API: the models of what is given and shown, and how tokens and times look.

One definition reads a document, or writes it, and makes its JSON schema; so they cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import MAX_KEY_BYTES, MAX_TOKEN, OBJECT_NAMESPACE, FencingKey, Token, key_fault, parse_token

MAX_EXACT = 2**53
"""Every reader of JSON has whole numbers exact up to here."""
MAX_PAGE = 1000
MAX_REASON_CHARACTERS = 500
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)


class Given(BaseModel):
    """What a caller says, in a body or a query: nothing but its members, each of its type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Shown(BaseModel):
    """What a caller is told. Members that were not set are left out."""

    model_config = ConfigDict(frozen=True)


# --- tokens and times


def number(token: int) -> int | str:
    """A token as JSON: a number where every reader has it exact, a string above."""
    return token if token <= MAX_EXACT else str(token)


def moment(seconds: float) -> str | None:
    """Seconds since the epoch in RFC 3339, UTC; None for never."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z") if seconds else None


def _token(given: object) -> Token:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise PydanticCustomError(Reason.TOKEN_INVALID.value, "must be a whole number, or a string of digits")
    try:
        return parse_token(str(given), "token")
    except Malformed as error:
        raise PydanticCustomError(error.reason.value, "{told}", {"told": error.message}) from None


def _key(given: object) -> FencingKey:
    if not isinstance(given, str):
        raise PydanticCustomError("invalid", "must be a string")
    if not given.startswith(OBJECT_NAMESPACE) and (fault := key_fault(given)):
        raise PydanticCustomError(Reason.KEY_INVALID.value, "{told}", {"told": f"this fencing key {fault}"})
    return FencingKey(given)


def _digits_up_to(highest: int) -> Iterator[str]:
    """Patterns that together take 1 to `highest`, without leading zeros."""
    digits = str(highest)
    yield f"[1-9][0-9]{{0,{len(digits) - 2}}}"
    for at, digit in enumerate(digits):
        lowest = 0 if at else 1
        if int(digit) > lowest:
            upper = int(digit) - 1
            yield f"{digits[:at]}[{lowest}-{upper}][0-9]{{{len(digits) - at - 1}}}"
    yield digits


SCHEMAS: dict[str, dict[str, object]] = {
    "Token": {
        "description": "A fencing token, 1 to 2^63-1: as a number, or in decimal digits. Above 2^53 send a string.",
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_TOKEN},
            {"type": "string", "pattern": f"^({'|'.join(_digits_up_to(MAX_TOKEN))})$"},
        ],
    },
    "Floor": {
        "description": "A fencing token, or 0 for none: a number up to 2^53, a string of digits above.",
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MAX_EXACT},
            {"type": "string", "pattern": "^[1-9][0-9]{15,18}$"},
        ],
    },
    "Key": {
        "description": "Names one job: 1 to 512 bytes of UTF-8 without control characters.",
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_KEY_BYTES,
        "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$",
        "format": "fencing-key",
    },
    "Moment": {
        "description": "A time in RFC 3339, UTC; null for never.",
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}],
    },
}
"""What several documents share."""


def _named(schema: str) -> WithJsonSchema:
    return WithJsonSchema({"$ref": f"#/components/schemas/{schema}"})


TokenGiven = Annotated[Token, PlainValidator(_token), _named("Token")]
"""A token, as a number or a string of digits."""
TokenShown = Annotated[int, PlainSerializer(number), _named("Floor")]
"""A token, or 0."""
MomentShown = Annotated[float, PlainSerializer(moment), _named("Moment")]
"""Seconds since the epoch; 0 for never."""
KeyGiven = Annotated[FencingKey, PlainValidator(_key), _named("Key")]
"""A fence key; an object's own may be named here."""
ReasonGiven = Annotated[
    str, Field(min_length=1, max_length=MAX_REASON_CHARACTERS, pattern=r"\S", description="Why, for the history.")
]
"""An operator's word for what he does."""


# --- queries


def _whole(text: object) -> object:
    """What a query writes in digits; anything else stays text, which is no number."""
    return int(text) if isinstance(text, str) and _WHOLE.fullmatch(text) else text


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number in a query."""


class Page(Given):
    """Which page of a list."""

    limit: Annotated[Whole, Field(ge=1, le=MAX_PAGE, description="How many, at most.")] = 100
