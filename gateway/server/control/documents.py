"""What travels in the JSON of the control API: the models of what is given and shown, and how tokens and times look.

One definition reads a document, or writes it, and makes its JSON schema; so they cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor
from typing import Annotated, Any

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function
from typing_extensions import TypeAliasType

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import (
    MAX_EXACT,
    MAX_KEY_BYTES,
    MAX_TOKEN,
    OBJECT_NAMESPACE,
    FencingKey,
    Token,
    key_fault,
    parse_token,
    token_in_json,
)

MAX_PAGE = 1000
MAX_REASON_CHARACTERS = 500
CONTROLS = r"\u0000-\u001f\u007f-\u009f"
NO_CONTROL = f"[^{CONTROLS}]"
"""A character for people: what goes into logs must not move their terminals."""
_HAIR = 1e-6
"""What a whole number of milliseconds may lack as a binary fraction, or as the difference of two clock readings."""
_DIGITS = re.compile(r"(-?(?:0|[1-9][0-9]{0,18}))(?:\.0+)?", re.ASCII)


class _Document(BaseModel):
    """A member whose default is None may be left out, and is never null."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Without the null that stands for a member that was left out."""
        described = handler(schema)
        members = handler.resolve_ref_schema(described).get("properties", {})
        for name, member in members.items():
            if member.get("default", ...) is None and "anyOf" in member:
                (only,) = (one for one in member["anyOf"] if one != {"type": "null"})
                members[name] = {key: value for key, value in member.items() if key not in ("anyOf", "default")} | only
        return described


class Given(_Document):
    """What a caller says, in a body or a query: nothing but its members, each of its type.

    Null for what may be left out would be a second way to say the same, and is refused. A member that takes any JSON at
    all takes null, too, and that is as if it were left out."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_null(cls, given: object) -> object:
        any_json = cls.any_json()
        for name, value in given.items() if isinstance(given, dict) else ():
            field = cls.model_fields.get(name)
            if value is None and field is not None and not field.is_required() and name not in any_json:
                raise PydanticCustomError("invalid", "{told}", {"told": f"`{name}` is null; leave it out"})
        return given

    @classmethod
    def any_json(cls) -> list[str]:
        """The members that take any JSON: they are to be validated as its text."""
        any_json: object = AnyJson
        return [name for name, field in cls.model_fields.items() if field.annotation is any_json]


class Shown(_Document):
    """What a caller is told. Members that were not set are left out."""

    model_config = ConfigDict(frozen=True)


# --- any JSON, tokens and times


def _as_it_is(text: str | None) -> Any:
    return None if text is None else orjson.Fragment(text)


AnyJson = TypeAliasType("AnyJson", Annotated[str | None, PlainSerializer(_as_it_is), WithJsonSchema({})])
"""Any JSON, as its text, None for null. So its numbers stay as they were written: read into a float, a whole number of
many digits would be another one."""


def moment(seconds: float) -> str | None:
    """Seconds since the epoch in RFC 3339, UTC; None for never."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z") if seconds else None


def seconds_in_json(seconds: float) -> float:
    """To the millisecond, and never more than there is."""
    return floor(seconds * 1000 + _HAIR) / 1000


SecondsShown = Annotated[float, PlainSerializer(seconds_in_json)]
"""A time that is left."""


def _whole(given: object) -> object:
    """JSON has one kind of number: 5.0 is 5 (JSON Schema 2020-12, 6.1.1). Not where it may have been another before."""
    return int(given) if isinstance(given, float) and given.is_integer() and abs(given) < MAX_EXACT else given


WHOLE = BeforeValidator(_whole)
"""For a whole number in a body."""


def _token(given: object) -> Token:
    given = _whole(given)
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


@dataclass(frozen=True, slots=True)
class Fits:
    """A text that a pattern takes from its first to its last character. `told` says what such a one is: pydantic by
    itself would tell the pattern."""

    pattern: str
    told: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        matches = re.compile(self.pattern).fullmatch

        def check(text: str) -> str:
            if not matches(text):
                raise PydanticCustomError("invalid", "{told}", {"told": f"must be {self.told}"})
            return text

        return no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^{self.pattern}$"}


TEXT = Fits(f"{NO_CONTROL}+", "text without control characters")
BUCKET = Fits(
    "[A-Za-z0-9][A-Za-z0-9._-]{0,254}",
    "the name of a bucket: letters, digits, dots, hyphens and underscores, beginning with a letter or a digit",
)


def _digits_up_to(highest: int) -> Iterator[str]:
    """Patterns that together take 1 to `highest`, without leading zeros."""
    digits = str(highest)
    yield f"[1-9][0-9]{{0,{len(digits) - 2}}}"
    for at, digit in enumerate(digits):
        lowest = 0 if at else 1
        if int(digit) > lowest:
            upper = int(digit) - 1
            rest = len(digits) - at - 1
            yield f"{digits[:at]}[{lowest}-{upper}]" + (f"[0-9]{{{rest}}}" if rest else "")
    yield digits


# Each has a name of its own in the OpenAPI document.

TokenGiven = TypeAliasType(
    "TokenGiven",
    Annotated[
        Token,
        PlainValidator(_token),
        WithJsonSchema(
            {
                "description": "A fencing token, 1 to 2^63-1: a number, or a string of decimal digits. Above 2^53 a "
                "string, since many JSON libraries have no such numbers exact.",
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": MAX_TOKEN},
                    {"type": "string", "pattern": f"^({'|'.join(_digits_up_to(MAX_TOKEN))})$"},
                ],
            }
        ),
    ],
)
TokenShown = TypeAliasType(
    "TokenShown",
    Annotated[
        int,
        PlainSerializer(token_in_json),
        WithJsonSchema(
            {
                "description": "A fencing token, or 0 for none: a number up to 2^53, a string of decimal digits above.",
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": MAX_EXACT},
                    {"type": "string", "pattern": "^[1-9][0-9]{15,18}$"},
                ],
            }
        ),
    ],
)
KeyGiven = TypeAliasType(
    "KeyGiven",
    Annotated[
        FencingKey,
        PlainValidator(_key),
        WithJsonSchema(
            {
                "description": "A fencing key names one job: 1 to 512 bytes of UTF-8 without control characters.",
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_KEY_BYTES,
                "pattern": f"^{NO_CONTROL}+$",
                "format": "fencing-key",
            }
        ),
    ],
)
"""Here an object's own key may be named, too."""
MomentShown = TypeAliasType(
    "MomentShown",
    Annotated[
        float,
        PlainSerializer(moment),
        WithJsonSchema(
            {
                "description": "A time in RFC 3339, UTC; null for never.",
                "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}],
            }
        ),
    ],
)
"""Seconds since the epoch; 0 for never."""
ReasonGiven = TypeAliasType(
    "ReasonGiven",
    Annotated[
        str,
        Field(min_length=1, max_length=MAX_REASON_CHARACTERS, description="Why, for log and history."),
        Fits(f"{NO_CONTROL}*[^{CONTROLS}\\s]{NO_CONTROL}*", "text without control characters, and not blank"),
    ],
)
"""An operator's word for what he does."""


# --- queries


def _read(text: object) -> object:
    """What a query writes in digits, 5.0 as in a body; anything else stays text, which is no number."""
    return int(found[1]) if isinstance(text, str) and (found := _DIGITS.fullmatch(text)) else text


DIGITS = BeforeValidator(_read)
"""For a whole number in a query."""


class Page(Given):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="How many, at most."), DIGITS] = 100
