"""The life of one send, and the decisions about it that look at the object (R4, R5, R9).

A send is one attempt to have the upstream apply a write. It is STAGED until its commit point; from then on the upstream
may apply it at any moment until it is settled:

    STAGED ── enter ──> COMMITTING ── applied / refused ──> SETTLED
      └─ abandon ─> SETTLED   └─ lost ──> IN_DOUBT ── nonce seen / time-out / operator ──> SETTLED

Nothing else settles a send in doubt: a negative HEAD, a newer write or another attempt's success prove nothing, since
absence and equal bytes return. Nor does the operator's word: it takes the promise of G2 upon itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from gateway.core.keys import FencingKey, Token, key_in_metadata


class Phase(IntEnum):  # int, because the table below is looked up several times for each write
    """Where a send is in its life: past STAGED it may take effect, SETTLED it can no more."""

    STAGED = auto()
    COMMITTING = auto()
    IN_DOUBT = auto()
    SETTLED = auto()


class Signal(IntEnum):
    """What moves it on."""

    ENTER = auto()
    """The commit point: the next bytes may complete the request."""
    ABANDON = auto()
    """Cut before the commit point: it leaves nothing behind."""
    APPLIED = auto()
    REFUSED = auto()
    """A final error of the upstream: nothing happened and nothing will."""
    LOST = auto()
    """Any other end: nobody knows."""
    NONCE_SEEN = auto()
    """The object bears this very send's nonce: it has been applied."""
    TIMED_OUT = auto()
    """The settle time-out has passed since the connection was reset."""
    OVERRULED = auto()
    """An operator answers for it that the send can no longer take effect."""


TRANSITIONS: dict[tuple[Phase, Signal], Phase] = {
    (Phase.STAGED, Signal.ENTER): Phase.COMMITTING,
    (Phase.STAGED, Signal.ABANDON): Phase.SETTLED,
    (Phase.COMMITTING, Signal.APPLIED): Phase.SETTLED,
    (Phase.COMMITTING, Signal.REFUSED): Phase.SETTLED,
    (Phase.COMMITTING, Signal.LOST): Phase.IN_DOUBT,
    (Phase.IN_DOUBT, Signal.NONCE_SEEN): Phase.SETTLED,
    (Phase.IN_DOUBT, Signal.TIMED_OUT): Phase.SETTLED,
    (Phase.IN_DOUBT, Signal.OVERRULED): Phase.SETTLED,
}


class IllegalTransition(Exception):
    """A signal that the phase does not know: a fault of the program; nothing has been changed."""


def advance(phase: Phase, signal: Signal) -> Phase:
    """The phase after `signal`. Raises `IllegalTransition`."""
    try:
        return TRANSITIONS[phase, signal]
    except KeyError:
        raise IllegalTransition(f"{signal.name} in phase {phase.name}") from None


class Answer(Enum):
    """What an upstream's answer says about the send it answers."""

    APPLIED = auto()
    REFUSED = auto()
    LOST = auto()


# The one table of final errors (R5): S3 refuses with these before any effect, whatever the operation. What is not here
# leaves the send in doubt: 5xx, 408, RequestTimeout, codes nobody has thought of.
FINAL_ERRORS = frozenset(
    """
    AccessDenied AccountProblem AllAccessDisabled AuthorizationHeaderMalformed BadDigest BadRequest
    BucketAlreadyExists BucketAlreadyOwnedByYou BucketNotEmpty ConditionalRequestConflict
    CredentialsNotSupported EntityTooLarge EntityTooSmall ExistingObjectIsDirectory ExistingObjectIsFile
    ExpiredToken IllegalLocationConstraintException
    IncompleteBody IncorrectNumberOfFilesInPostRequest InlineDataTooLarge InvalidAccessKeyId InvalidArgument
    InvalidBucketName InvalidBucketState InvalidDigest InvalidEncryptionAlgorithmError InvalidLocationConstraint
    InvalidObjectState InvalidPart InvalidPartOrder InvalidPayer InvalidPolicyDocument InvalidRange
    InvalidRequest InvalidSecurity InvalidStorageClass InvalidTag InvalidTargetBucketForLogging InvalidToken
    InvalidURI InvalidWriteOffset KeyTooLongError MalformedACLError MalformedDate MalformedPOSTRequest MalformedXML
    MaxMessageLengthExceeded MetadataTooLarge MethodNotAllowed MissingAttachment MissingContentLength
    MissingRequestBodyError MissingSecurityHeader NoSuchBucket NoSuchBucketPolicy NoSuchKey
    NoSuchLifecycleConfiguration NoSuchObjectLegalHold NoSuchObjectLockConfiguration NoSuchTagSet NoSuchUpload
    NoSuchVersion NotModified NotSignedUp
    ObjectLockConfigurationNotFoundError PermanentRedirect PreconditionFailed QuotaExceeded Redirect
    RequestHeaderSectionTooLarge RequestTimeTooSkewed SignatureDoesNotMatch TemporaryRedirect TooManyBuckets
    UnexpectedContent UnresolvableGrantByEmailAddress UserKeyMustBeSpecified XAmzContentChecksumMismatch
    XAmzContentSHA256Mismatch
    """.split()
)
# An answer without a code (to HEAD, or from a terse server) is judged by its status.
FINAL_STATUS = frozenset({301, 302, 303, 304, 307, 308, 403, 404, 405, 409, 411, 412, 413, 416})


def classify(status: int, code: str | None) -> Answer:
    """What an answer's status and S3 error code (None where it has none) say about its send.

    An `<Error>` in a 200 is given here with its code."""
    if 200 <= status < 300:
        return Answer.APPLIED if code is None else Answer.LOST
    if status == 501 and code == "NotImplemented":  # S3's word for a header or query it has no use for
        return Answer.REFUSED
    if 300 <= status < 500 and status != 408:
        final = status in FINAL_STATUS if code is None else code in FINAL_ERRORS
        return Answer.REFUSED if final else Answer.LOST
    return Answer.LOST


CONDITION_FAILED_STATUS = frozenset({404, 409, 412})
"""How real servers answer a lost condition: 412, 409 (a race), 404 (`If-Match` on an absent key)."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What is known of one object upstream. `etag` None: it is absent."""

    etag: str | None
    key: str | None = None
    """The fence key in its metadata, as `key_in_metadata` writes it; None if it bears none."""
    token: int = 0
    nonce: str = ""
    versioned: bool = False


ABSENT = ObjectState(None)


@dataclass(frozen=True, slots=True)
class Condition:
    """The precondition of a conditional commit; `etag` None demands absence."""

    etag: str | None

    def header(self) -> tuple[str, str]:
        """As a header field (RFC 9110, 13.1)."""
        return ("if-none-match", "*") if self.etag is None else ("if-match", self.etag)


def condition_on(state: ObjectState | None, *, bare_etag: bool = False) -> Condition:
    """The precondition for a send that has seen `state`; nothing known is taken for absence, which costs one request
    where it is right and is found out where it is not.
    `bare_etag`: for servers that want the ETag without its quotes."""
    etag = None if state is None else state.etag
    return Condition(etag.strip('"') if bare_etag and etag is not None else etag)


class Verdict(Enum):
    """How a head is judged, always in this order (R4)."""

    OTHER_KEY = auto()
    HIGHER_TOKEN = auto()
    OURS = auto()
    MOVED = auto()


def judge(state: ObjectState, key: FencingKey, token: Token, nonce: str | None) -> Verdict:
    """What the object's present state means for a send of (key, token, nonce)."""
    if state.key is not None:
        if state.key != key_in_metadata(key):
            return Verdict.OTHER_KEY
        if state.token > token:
            return Verdict.HIGHER_TOKEN
        if nonce and state.nonce == nonce:
            return Verdict.OURS
    return Verdict.MOVED
