"""Settings from all their sources, and every fault of theirs by file, line and key."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.settings import Section, Settings
from gateway.config.source import FILE_VARIABLE, ConfigError, Place, Sources
from gateway.config.values import is_loopback

SECRET_KEYS = frozenset({"access_key", "client", "secret", "secret_key", "session_token", "token"})
"""Keys whose values no message shows, and that may be `{ env = "NAME" }` or `{ file = "path" }`."""
IN_OUR_WORDS = {
    "a valid string": "text, in quotes",
    "a valid tuple": "a list",
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "True or False": "true or false",
}
"""What pydantic calls the kinds of values, and TOML's reader does not."""
Fault = tuple[Place, str]
"""Where a setting is, and what is wrong with it."""


def load(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    look: Callable[[Settings], list[Fault]] | None = None,
) -> Settings:
    """The settings: `overrides` (by `section.key`) over the environment, over the file, over the defaults.

    The file is `path`, else what FENCING_GATEWAY_CONFIG names, else none. `look` looks into the files that they name,
    for those who are going to use them. Raises `ConfigError`."""
    sources = Sources()
    if path is None and environ.get(FILE_VARIABLE):
        path = Path(environ[FILE_VARIABLE])
    if path is not None:
        sources.add_file(path)
    sources.add_environment(environ, {name: _text_keys(section) for name, section in _tables().items()})
    sources.add_overrides(overrides)
    try:
        settings = Settings.model_validate(sources.values, context={"environ": environ})
    except ValidationError as error:
        faults = [_fault(detail) for detail in error.errors(include_url=False)]
    else:
        faults = _faults_between(settings) or (look(settings) if look else [])
        if not faults:
            return settings
    raise ConfigError("\n".join(f"{sources.where(place)}: {message}" for place, message in faults))


def _tables() -> dict[str, type[Section]]:
    """The sections that exist once; the others are arrays of tables."""
    return {n: f.annotation for n, f in Settings.model_fields.items() if isinstance(f.annotation, type)}


def _section(name: object) -> type[Section] | None:
    """What is allowed under a top-level name."""
    field = Settings.model_fields.get(str(name))
    if field is None:
        return None
    if isinstance(field.annotation, type):
        return field.annotation
    return typing.cast("type[Section]", typing.get_args(field.annotation)[0])


def _text_keys(section: type[Section]) -> set[str]:
    """The keys whose value in the environment is text as it stands."""
    return {n for n, f in section.model_fields.items() if not _is_json(f.annotation)}


def _is_json(annotation: Any) -> bool:
    kind, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if kind is Literal:
        return not all(isinstance(value, str) for value in parts)
    if kind is Annotated:
        return _is_json(parts[0])
    if kind in (Union, UnionType):
        return any(map(_is_json, parts))
    return annotation in (bool, int, float) or kind is tuple


def _fault(detail: ErrorDetails) -> Fault:
    """One of pydantic's errors in our words. Values are shown only where they cannot be a secret."""
    place: Place = detail["loc"]
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return place, _unknown(place)
    if kind == "missing":
        return place, "is missing"
    if kind == "value_error":
        return place, str(detail["ctx"]["error"])
    message = detail["msg"].replace("Input should be", "must be").replace("Input should have", "must have")
    for theirs, ours in IN_OUR_WORDS.items():
        message = message.replace(theirs, ours)
    if kind in ("model_type", "dict_type"):
        message = f"must be a table, written [{place[0]}]"
    elif kind == "tuple_type" and len(place) == 1:
        message = f"must be an array of tables, each written [[{place[0]}]]"
    elif kind in ("too_short", "string_too_short") and detail["ctx"]["min_length"] == 1:
        return place, "must not be empty"
    section = _section(place[0])
    known = section is not None and len(place) > 1 and place[-1] in section.model_fields
    if known and place[-1] not in SECRET_KEYS and isinstance(value, str | int | float):
        message += f", not {value!r}"
    return place, message


def _unknown(place: Place) -> str:
    section = Settings if len(place) == 1 else _section(place[0])
    allowed = sorted(section.model_fields) if section else []
    near = get_close_matches(str(place[-1]), allowed, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"no such {'table' if len(place) == 1 else 'key'}; {meant}allowed are {', '.join(allowed)}"


def _faults_between(settings: Settings) -> list[Fault]:
    """What is wrong only when several settings are seen together."""
    faults: list[Fault] = [*_tls_faults(settings), *_webhook_faults(settings)]
    s3, upstream, fencing = settings.s3, settings.upstream, settings.fencing
    if not settings.client and not is_loopback(s3.listen):
        faults.append((("s3", "listen"), "can be reached from other machines, and no [[client]] is configured"))
    if not settings.api_token and not is_loopback(settings.control.listen):
        faults.append((("control", "listen"), "can be reached from other machines, and no [[api_token]] is configured"))
    if s3.listen == settings.control.listen and not s3.listen.endswith(":0"):
        faults.append((("control", "listen"), f"is that of [s3] too, {s3.listen}"))
    if s3.max_header_field_bytes > s3.max_header_bytes:
        faults.append((("s3", "max_header_field_bytes"), "must not be greater than max_header_bytes"))
    if (upstream.access_key is None) != (upstream.secret_key is None):
        given = "secret_key" if upstream.access_key is None else "access_key"
        faults.append((("upstream", given), "access_key and secret_key go together"))
    if upstream.session_token and upstream.access_key is None:
        faults.append((("upstream", "session_token"), "needs access_key and secret_key"))
    if upstream.url == "embedded" and upstream.access_key is not None:
        faults.append((("upstream", "access_key"), "the embedded store makes credentials of its own"))
    for name in ("settle_timeout", "commit_timeout"):
        if getattr(fencing, f"{name}_assembly_s") < getattr(fencing, f"{name}_s"):
            faults.append((("fencing", f"{name}_assembly_s"), f"must not be less than {name}_s"))
    seen: dict[str, int] = {}
    for index, client in enumerate(settings.client):
        first = seen.setdefault(client.access_key, index)
        if first != index:
            faults.append((("client", index, "access_key"), f"is that of [[client]] number {first + 1} too"))
    tokens: dict[str, int] = {}
    for index, token in enumerate(settings.api_token):
        first = tokens.setdefault(token.token.get_secret_value(), index)
        if first != index:
            faults.append((("api_token", index, "token"), f"is that of [[api_token]] number {first + 1} too"))
        if token.client is not None and token.client not in seen:
            faults.append((("api_token", index, "client"), "is the access key of no [[client]]"))
    return faults


def _tls_faults(settings: Settings) -> list[Fault]:
    faults: list[Fault] = []
    upstream = settings.upstream
    for name, section in (("s3", settings.s3), ("control", settings.control), ("upstream", upstream)):
        if (section.tls_cert is None) != (section.tls_key is None):
            given = "tls_key" if section.tls_cert is None else "tls_cert"
            faults.append(((name, given), "tls_cert and tls_key go together; they may name one file that holds both"))
    for key in ("tls_ca", "tls_cert"):
        if getattr(upstream, key) is not None and not upstream.uses_tls:
            faults.append((("upstream", key), f"is for a store at https://; url is {upstream.url}"))
    return faults


def _webhook_faults(settings: Settings) -> list[Fault]:
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    for index, webhook in enumerate(settings.webhook):
        first = seen.setdefault(webhook.called, index)
        if first != index:
            told = f"{webhook.called} is that of [[webhook]] number {first + 1} too; give one of them another"
            faults.append((("webhook", index, "name"), told))
        if webhook.tls_ca is not None and not webhook.uses_tls:
            faults.append((("webhook", index, "tls_ca"), "is for a receiver at https://"))
    return faults
