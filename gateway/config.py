"""The settings: typed, frozen, checked. Every key of the configuration is a field; its docstring is its manual.

Rules: docs/interface.md, "Configuration". Units are in the names; all relative paths start at the working directory.
"""

from __future__ import annotations

import ipaddress
import typing
from base64 import b64decode
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from gateway.config_source import FILE_VARIABLE, ConfigError, Place, Sources
from gateway.core.announcements import Topic
from gateway.core.job import queue_fault
from gateway.core.keys import MAX_TOKEN, Mode, WithoutToken, compile_rule
from gateway.core.outputs import check_output
from gateway.s3.operations import OPERATIONS

__all__ = ["ConfigError", "Settings", "is_loopback", "load", "split_listen"]

SECRET_KEYS = frozenset({"access_key", "client", "secret", "secret_key", "session_token", "token"})
"""Keys whose values no message shows, and that may be `{ env = "NAME" }` or `{ file = "path" }`."""


def _resolve(value: object, info: ValidationInfo) -> object:
    """Follow a reference to where a secret is kept."""
    if not isinstance(value, dict):
        return value
    match value:
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


def _upstream_url(value: str) -> str:
    if value in ("embedded", "aws"):
        return value
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError('must be "embedded", "aws", or the http:// or https:// address of an S3 endpoint')
    if url.username is not None or url.path.strip("/") or url.query or url.fragment:
        raise ValueError("must hold scheme, host and port alone; credentials are access_key and secret_key")
    return value.rstrip("/")


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
    url = urlsplit(value)
    try:
        fits = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # a port that is none
        fits = False
    if not fits or not value.isascii() or " " in value:
        raise ValueError("must be the http:// or https:// address of a receiver")
    if url.username is not None or url.fragment:
        raise ValueError("must hold no user, password or fragment; what proves a post is its signature")
    return value


def _several(value: object) -> object:
    """One is as good as a list of one."""
    return value if isinstance(value, list | tuple) else (value,)


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
SigningSecrets = Annotated[
    tuple[Annotated[Secret, AfterValidator(_signing_secret)], ...],
    BeforeValidator(_several),
    Field(strict=False, min_length=1, max_length=8),
]
Listen = Annotated[str, AfterValidator(_listen)]
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
File = Annotated[Path, Field(strict=False)]
TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKEN)]


class Section(BaseModel):
    """Frozen, exact in its keys and types, documented by its docstrings, silent about values in errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class S3Settings(Section):
    """The listener for S3 clients."""

    listen: Listen = "127.0.0.1:8080"
    """Address and port; port 0 takes a free one."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")] = "us-east-1"
    """The region that the ready-made client settings name. A request signed for another is served too."""
    tls_cert: File | None = None
    """The listener's certificate, and its issuers after it, in PEM: then it speaks TLS alone. Read again on SIGHUP."""
    tls_key: File | None = None
    """The private key that belongs to tls_cert, not encrypted."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://[^/?#\s]+$")] | None = None
    """Where workers reach this listener, told with the credentials of a lease; by default its own address, and nothing
    where it listens on every one."""
    virtual_host_suffix: Texts = ()
    """Host names under which a first label is a bucket: with "s3.example.com", b.s3.example.com is bucket b."""
    anonymous_read: bool = False
    """Serve reads that are not signed."""
    session_keys: File | None = None
    """The file of keys that seal the credentials of leases; gateways that share it take each other's. Without it
    session-keys beside the database, made at the first start. Read again on SIGHUP."""
    session_lifetime_s: Annotated[float, Field(ge=900, le=604800, allow_inf_nan=False)] = 43200
    """How long the credentials of a lease are good; SDKs ask for new ones from 15 minutes before the end on."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Requests served at a time; more are answered 503 SlowDown."""
    max_concurrent_requests_per_client: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """The same for each access key, where its [[client]] does not say otherwise; all unsigned reads count as one."""
    max_connections: Annotated[int, Field(ge=8, le=1_000_000)] = 4096
    """Connections at a time. For one more, the one that has been silent longest is closed; where all are busy, the new
    one is answered 503 SlowDown."""
    max_header_bytes: Annotated[int, Field(ge=8192, le=1_048_576)] = 65536
    """The head of a request, all its fields together."""
    max_header_field_bytes: Annotated[int, Field(ge=4096, le=1_048_576)] = 16384
    """One field of a head; session tokens take 9 KB and more."""
    header_timeout_s: Seconds = 30
    """The longest a head may take to arrive."""
    idle_timeout_s: Seconds = 60
    """The longest a body may make no progress, either way."""
    min_body_bytes_per_s: Annotated[int, Field(ge=0, le=1_000_000)] = 240
    """The least an upload must bring on average, once its client has been waited for twice as long; 0: none."""
    keepalive_timeout_s: Seconds = 75
    """The longest a connection may wait for its next request."""


class ControlSettings(Section):
    """The listener for the JSON API, health and metrics."""

    listen: Listen = "127.0.0.1:8081"
    """Address and port; port 0 takes a free one."""
    tls_cert: File | None = None
    """The listener's certificate, and its issuers after it, in PEM: then it speaks TLS alone. Read again on SIGHUP."""
    tls_key: File | None = None
    """The private key that belongs to tls_cert, not encrypted."""


class UpstreamSettings(Section):
    """The object store behind the gateway."""

    url: Annotated[str, AfterValidator(_upstream_url)] = "embedded"
    """ "embedded" (SeaweedFS, started by the gateway), "aws" (S3 and its credential chain), or an S3 endpoint."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]*$")] = ""
    """The region to sign for; empty: AWS's own configuration, else us-east-1."""
    access_key: AccessKey | None = None
    """With secret_key: what to sign with. Without both an endpoint is used unsigned, and aws by its chain."""
    secret_key: Secret | None = None
    """The secret that belongs to access_key."""
    session_token: Secret | None = None
    """The session token that belongs to temporary credentials."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """Bucket in the path or in the host name; auto: virtual for aws, path for all others."""
    conditional: Literal["auto", "require", "off"] = "auto"
    """Conditional writes: used where the store proves them at the first fenced write (auto); no fenced write without
    them (require); never (off)."""
    tls_ca: File | None = None
    """The authorities, in PEM, one of which must vouch for an https:// store; without it the system's. Read again on
    SIGHUP."""
    tls_cert: File | None = None
    """With tls_key: the certificate, in PEM, that is shown to a store that asks for one. Read again on SIGHUP."""
    tls_key: File | None = None
    """The private key that belongs to tls_cert, not encrypted."""
    directory: File = Path("data/store")
    """Where the embedded store keeps its data."""
    connect_timeout_s: Seconds = 5
    """The longest a new connection may take."""
    silence_timeout_s: Seconds = 60
    """The longest the body of an answer may make no progress."""
    max_connections: Annotated[int, Field(ge=1, le=65536)] = 256
    """Connections to the store at a time."""
    idle_connection_timeout_s: Seconds = 20
    """How long an unused connection is kept; to be shorter than the store keeps it."""

    @property
    def uses_tls(self) -> bool:
        """Whether the store is spoken to over TLS."""
        return self.url == "aws" or urlsplit(self.url).scheme == "https"


class StoreSettings(Section):
    """The database of floors."""

    url: Annotated[str, AfterValidator(_store_url)] = "sqlite:data/gateway.db"
    """sqlite: and a path."""
    fenced_before: Literal["auto", True, False] = "auto"
    """Whether a bucket may have been fenced by another database: "auto" goes by its record; true takes one without a
    record for fenced, too, until this database has rebuilt its floors; false writes and looks for no record."""
    record_lapse_s: Annotated[float, Field(ge=3, le=300, allow_inf_nan=False)] = 60
    """The longest that fenced writes go on in a bucket without a look at its record."""


class FencingSettings(Section):
    """The time-outs of the fence (docs/protocol.md)."""

    settle_timeout_s: Annotated[float, Field(ge=3, le=86400, allow_inf_nan=False)] = 30
    """After this a send whose answer was lost can no longer land: longer than 1.5 times what the store needs to
    apply a request it has received whole. A third of it is how long the kernel tries to deliver one."""
    settle_timeout_assembly_s: Annotated[float, Field(ge=3, le=86400, allow_inf_nan=False)] = 300
    """The same for CompleteMultipartUpload and CopyObject, with which stores take their time."""
    handover_wait_s: Seconds = 20
    """The longest a request waits for lower tokens to settle before it is told to come again."""
    commit_timeout_s: Seconds = 60
    """The longest to wait for the answer to a write once it may take effect; then it is in doubt."""
    commit_timeout_assembly_s: Seconds = 600
    """The same for CompleteMultipartUpload and CopyObject."""
    small_body_bytes: Annotated[int, Field(ge=0, le=8_388_608)] = 65536
    """Bodies up to this are read whole before they are sent; longer ones stream."""
    completed_uploads_kept_s: Annotated[float, Field(ge=60, le=31_536_000, allow_inf_nan=False)] = 604800
    """How long a repeated CompleteMultipartUpload is answered as the first one was."""


class LeaseSettings(Section):
    """Leases, which the gateway itself gives out (docs/leases.md)."""

    max_ttl_s: Seconds = 3600
    """The longest time that a lease may be asked for; it lasts as long as it is renewed."""
    max_wait_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 60
    """The longest that a call waits in line; one that asks for longer is answered after this."""
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 10000
    """How many may wait in line at a time; more are answered 503."""
    lock_delay_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 0
    """How long nobody is granted a key whose lease has run out, for effects that look at no token; not after a
    release."""
    max_renewals: Annotated[int, Field(ge=0)] | None = None
    """How often a lease may be renewed."""
    max_total_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How long a lease may be held in all, with its renewals."""


class ServerSettings(Section):
    """The process."""

    drain_timeout_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 25
    """How long requests under way may go on when the gateway is told to stop."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are logged."""


class ClientSettings(Section):
    """One S3 client: its credentials and what it may do. The lists hold shell patterns."""

    access_key: AccessKey
    """What the client names itself by."""
    secret_key: Secret
    """What the client signs with."""
    buckets: Texts = ("*",)
    """The buckets it may use."""
    operations: Annotated[Texts, AfterValidator(_operations)] = ("*",)
    """The S3 operations it may call, as PutObject or Get*."""
    keys: Texts = ("*",)
    """The fence keys it may write under."""
    require_signed_token: bool = True
    """Refuse a fencing header that its signature does not cover; rclone cannot sign its."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests served at a time for this client, in place of [s3] max_concurrent_requests_per_client."""


class ApiTokenSettings(Section):
    """One bearer token of the control API."""

    token: Secret
    """What the caller sends as Authorization: Bearer."""
    role: Literal["worker", "operator"]
    """ "worker": looks and checks; "operator": raises, settles and seals, too."""
    keys: Texts = ("*",)
    """The fence keys it may use, as shell patterns."""
    client: AccessKey | None = None
    """The access key of the [[client]] whose rights the credentials of its leases have; without it those of the only
    one there is, and none are given out where there are several."""


class WebhookSettings(Section):
    """A receiver of announcements (docs/webhooks.md)."""

    url: Annotated[str, AfterValidator(_webhook_url)]
    """Where they are posted: https://, or http:// on a network that nobody else listens to."""
    secret: SigningSecrets
    """What signs them: whsec_ and 24 to 64 random bytes in base64. A list of several while one replaces another."""
    events: Annotated[Texts, AfterValidator(_topics)] = ("*",)
    """What it is told, as shell patterns: fencing.completed, fencing.handed_over, fencing.refused,
    fencing.dead_lettered."""
    keys: Texts = ("*",)
    """The fence keys that it is told of, as shell patterns."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=128)] | None = None
    """What logs, metrics and status call it, and what waits for it is kept under; without it the url's host and
    port."""
    timeout_s: Annotated[float, Field(gt=0, le=300, allow_inf_nan=False)] = 15
    """The longest a post may take, its answer included."""
    keep_s: Annotated[float, Field(ge=60, le=31_536_000, allow_inf_nan=False)] = 604800
    """What is not taken so long after it happened is given up, counted and logged."""
    max_waiting: Annotated[int, Field(ge=100, le=10_000_000)] = 100_000
    """So many wait at most; of more the oldest are given up, counted and logged."""
    tls_ca: File | None = None
    """The authorities, in PEM, one of which must vouch for an https:// receiver; without it the system's. Read again
    on SIGHUP."""

    @property
    def called(self) -> str:
        """Its name, given or not."""
        return self.name or urlsplit(self.url).netloc.lower()

    @property
    def uses_tls(self) -> bool:
        """Whether the receiver is spoken to over TLS."""
        return urlsplit(self.url).scheme == "https"


class RuleSettings(Section):
    """Maps objects to fence keys; the first rule that matches an object holds."""

    match: str
    """Object keys: {name} is one path segment, {name:path} several, * within a segment, ** the rest."""
    buckets: Texts = ("*",)
    """The buckets the rule is for, as shell patterns."""
    key: str | None = None
    """The fence key, made of the names in match, as "{job}". Without it the rule sets policy alone."""
    mode: Annotated[Mode, Field(strict=False)] = Mode.ENFORCE
    """ "enforce"; "observe" refuses nothing, it counts and logs what would be refused; "off" is no fence."""
    without_token: Annotated[WithoutToken, Field(strict=False)] = WithoutToken.UNTIL_FENCED
    """Writes without a token: "require" refuses them, "until-fenced" does once the key has a floor, "allow" lets
    them past the fence."""
    rekey: bool = False
    """Let an object move to the fence key of its next write."""
    max_token_jump: TokenLimit | None = None
    """How far above its key's floor a token may lie; a higher one is refused, and raises nothing."""
    max_first_token: TokenLimit | None = None
    """The highest token that a key without a floor takes."""
    output: str | None = None
    """Where the job of a key puts its result, made of the names in key: told with each lease and delivery."""

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        compile_rule(self.match, self.key)
        if self.output is not None:
            check_output(self.match, self.key, self.output)
        return self


class QueueSettings(Section):
    """Queues, by their names; the first that matches a queue holds. Where any is given, there are no others."""

    name: Annotated[str, AfterValidator(_queue_name)]
    """The queue's name, or a shell pattern, as "*" for all."""
    max_attempts: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """How often a job is delivered before it is dead."""
    backoff_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 10
    """How long a job waits after its first failure; twice as long after each further one."""
    backoff_max_s: Annotated[float, Field(ge=0, le=2_592_000, allow_inf_nan=False)] = 3600
    """The longest it waits."""
    visibility_s: Seconds = 60
    """How long a worker has for a job, unless it says so itself; then it extends, or the job comes back."""


class Settings(Section):
    """All of it. Without any source these are the defaults."""

    s3: S3Settings = S3Settings()
    control: ControlSettings = ControlSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    store: StoreSettings = StoreSettings()
    fencing: FencingSettings = FencingSettings()
    lease: LeaseSettings = LeaseSettings()
    server: ServerSettings = ServerSettings()
    client: Annotated[tuple[ClientSettings, ...], Field(strict=False)] = ()
    api_token: Annotated[tuple[ApiTokenSettings, ...], Field(strict=False)] = ()
    webhook: Annotated[tuple[WebhookSettings, ...], Field(strict=False)] = ()
    rule: Annotated[tuple[RuleSettings, ...], Field(strict=False)] = ()
    queue: Annotated[tuple[QueueSettings, ...], Field(strict=False)] = ()


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
    if typing.get_origin(annotation) is Literal:
        return not all(isinstance(value, str) for value in typing.get_args(annotation))
    return annotation in (bool, int, float) or typing.get_origin(annotation) is tuple


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
    message = message.replace("a valid tuple", "a list").replace("True or False", "true or false")
    if kind in ("model_type", "dict_type"):
        message = f"must be a table, written [{place[0]}]"
    elif kind == "tuple_type" and len(place) == 1:
        message = f"must be an array of tables, each written [[{place[0]}]]"
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
