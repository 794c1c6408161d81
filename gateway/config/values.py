"""The kinds of values that settings have, each with what makes one bad, in words."""

from __future__ import annotations

import ipaddress
import re
from base64 import b64decode
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo

from gateway.core.announcements import Topic
from gateway.core.job import queue_fault
from gateway.core.keys import MAX_TOKEN
from gateway.s3.operations import OPERATIONS

_HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def _resolve(value: object, info: ValidationInfo) -> object:
    """Follow a reference to where a secret is kept."""
    match value:
        case str() | SecretStr():
            return value
        case {"env": str(name), **rest} if not rest:
            environ: Mapping[str, str] = info.context["environ"] if info.context else {}
            if not environ.get(name):
                raise ValueError(f"the environment variable {name} is not set or empty")
            return environ[name]
        case {"file": str(name), **rest} if not rest:
            try:
                return Path(name).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
                raise ValueError(f"the file {name} cannot be read: {why}") from None
    raise ValueError('must be text, { env = "NAME" } or { file = "path" }')


def split_listen(listen: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`. Raises `ValueError`."""
    host, separator, port = listen.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address is written in brackets, as [::1]:8080")
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("must be host:port, as 127.0.0.1:8080; 0.0.0.0 is every IPv4 address of the machine")
    return host, int(port)


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach such a listener."""
    host, _ = split_listen(listen)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(value: str) -> str:
    split_listen(value)
    return value


def _address(value: str) -> SplitResult | None:
    """The parts of an http:// or https:// address; None for what is none."""
    try:
        url = urlsplit(value)
        fits = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # a port that is none, or half an IPv6 address
        return None
    return url if fits and value.isascii() and value.isprintable() and " " not in value else None


def _is_bare(url: SplitResult) -> bool:
    """Scheme, host and port, and nothing else."""
    return "@" not in url.netloc and not (url.path.strip("/") or url.query or url.fragment)


def _upstream_url(value: str) -> str:
    if value in ("embedded", "aws"):
        return value
    url = _address(value)
    if url is None:
        raise ValueError('must be "embedded", "aws", or the http:// or https:// address of an S3 endpoint')
    if not _is_bare(url):
        raise ValueError("must hold scheme, host and port alone; credentials are access_key and secret_key")
    return value.rstrip("/")


def _endpoint_url(value: str) -> str:
    url = _address(value)
    if url is None or not _is_bare(url):
        raise ValueError("must be the http:// or https:// address at which workers reach the listener, without a path")
    return value.rstrip("/")


def _host_name(value: str) -> str:
    """As it is compared. Services of a container platform may have an underscore in theirs."""
    name = value.lower().removeprefix(".")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError("must be a host name, as s3.example.com, without a scheme, a port or a star")
    return name


def _store_url(value: str) -> str:
    if not value.removeprefix("sqlite:") or not value.startswith("sqlite:"):
        raise ValueError('must be "sqlite:" and the path of the database, as sqlite:data/gateway.db')
    return value


def _operations(patterns: tuple[str, ...]) -> tuple[str, ...]:
    names = [name for row in OPERATIONS for name in (row.name, *row.aliases)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, 1)
            raise ValueError(f"no S3 operation is called {pattern!r}" + (f"; did you mean {near[0]}?" if near else ""))
    return patterns


def _queue_name(name: str) -> str:
    if fault := queue_fault(name):
        raise ValueError(fault)
    return name


def _webhook_url(value: str) -> str:
    url = _address(value)
    if url is None:
        raise ValueError("must be the http:// or https:// address of a receiver")
    if url.username is not None or url.fragment:
        raise ValueError("must hold no user, password or fragment; what proves a post is its signature")
    return value


def _several(value: object) -> object:
    """One is as good as a list of one."""
    return value if isinstance(value, list | tuple) else (value,)


def _bearer_token(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("must be what a header can hold: ASCII without controls, and without white space at its ends")
    return value


def _signing_secret(value: SecretStr) -> SecretStr:
    """Standard Webhooks, "Signature scheme": 24 to 64 bytes."""
    prefix, _, encoded = value.get_secret_value().partition("_")
    try:
        size_bytes = len(b64decode(encoded, validate=True)) if prefix == "whsec" else 0
    except ValueError:
        size_bytes = 0
    if not 24 <= size_bytes <= 64:
        raise ValueError(
            "must be whsec_ and, in base64, 24 to 64 random bytes; openssl rand -base64 32 writes what follows whsec_"
        )
    return value


def _topics(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not any(fnmatchcase(topic, pattern) for topic in Topic):
            near = get_close_matches(pattern, list(Topic), 1, 0.4)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise ValueError(f"nothing that is announced is called {pattern!r}{meant} There are {', '.join(Topic)}")
    return patterns


AccessKey = Annotated[str, BeforeValidator(_resolve), Field(pattern=r"^[!-.0-~]+$", max_length=128)]
Secret = Annotated[SecretStr, BeforeValidator(_resolve), Field(min_length=1)]
BearerToken = Annotated[Secret, AfterValidator(_bearer_token)]
SigningSecrets = Annotated[
    tuple[Annotated[Secret, AfterValidator(_signing_secret)], ...],
    BeforeValidator(_several),
    Field(strict=False, min_length=1, max_length=8),
]
Listen = Annotated[str, AfterValidator(_listen)]
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
HostNames = Annotated[
    tuple[Annotated[str, AfterValidator(_host_name)], ...], BeforeValidator(_several), Field(strict=False)
]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
File = Annotated[Path, Field(strict=False)]
TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKEN)]
UpstreamUrl = Annotated[str, AfterValidator(_upstream_url)]
EndpointUrl = Annotated[str, AfterValidator(_endpoint_url)]
StoreUrl = Annotated[str, AfterValidator(_store_url)]
WebhookUrl = Annotated[str, AfterValidator(_webhook_url)]
Operations = Annotated[Texts, AfterValidator(_operations)]
Topics = Annotated[Texts, AfterValidator(_topics)]
QueueName = Annotated[str, AfterValidator(_queue_name)]
