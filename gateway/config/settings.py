"""The settings: typed, frozen, checked. Every key of the configuration is a field; its docstring is its manual.

Rules: docs/interface.md, "Configuration". Units are in the names; all relative paths start at the working directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.config.values import (
    AccessKey,
    BearerToken,
    EndpointUrl,
    File,
    HostNames,
    Listen,
    Operations,
    QueueName,
    Seconds,
    Secret,
    SigningSecrets,
    StoreUrl,
    Texts,
    TokenLimit,
    Topics,
    UpstreamUrl,
    WebhookUrl,
)
from gateway.core.keys import Mode, WithoutToken, compile_rule
from gateway.core.outputs import check_output


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
    endpoint_url: EndpointUrl | None = None
    """Where workers reach this listener, told with the credentials of a lease; by default its own address, and nothing
    where it listens on every one."""
    virtual_host_suffix: HostNames = ()
    """Host names, or one alone, under which a first label is a bucket: with "s3.example.com", b.s3.example.com is
    bucket b."""
    anonymous_read: bool = False
    """Serve reads that are not signed."""
    session_keys: File | None = None
    """The file of keys that seal the credentials of leases; gateways that share it take each other's. Without it
    session-keys beside the database, made at the first start. Read again on SIGHUP."""
    session_lifetime_s: Annotated[float, Field(ge=900, le=604800, allow_inf_nan=False)] = 43200
    """How long the credentials of a lease are good once it is not held any more, counted from when they were given;
    while it is held they always are."""
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

    url: UpstreamUrl = "embedded"
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

    url: StoreUrl = "sqlite:data/gateway.db"
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
    operations: Operations = ("*",)
    """The S3 operations it may call, as PutObject or Get*."""
    keys: Texts = ("*",)
    """The fence keys it may write under."""
    require_signed_token: bool = True
    """Refuse a fencing header that its signature does not cover; rclone cannot sign its."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests served at a time for this client, in place of [s3] max_concurrent_requests_per_client."""


class ApiTokenSettings(Section):
    """One bearer token of the control API."""

    token: BearerToken
    """What the caller sends as Authorization: Bearer."""
    role: Literal["worker", "operator"]
    """ "worker": looks, checks tokens, takes leases, submits and does jobs; "operator": every call."""
    keys: Texts = ("*",)
    """The fence keys it may use, as shell patterns."""
    client: AccessKey | None = None
    """The access key of the [[client]] whose rights the credentials of its leases have; without it those of the only
    one there is, and none are given out where there are several."""


class WebhookSettings(Section):
    """A receiver of announcements (docs/webhooks.md)."""

    url: WebhookUrl
    """Where they are posted: https://, or http:// on a network that nobody else listens to."""
    secret: SigningSecrets
    """What signs them: whsec_ and 24 to 64 random bytes in base64. A list of several while one replaces another."""
    events: Topics = ("*",)
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

    name: QueueName
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
