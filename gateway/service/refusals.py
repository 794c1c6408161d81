"""How the service says no: each refusal once, with what its reader has to do."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.errors import FenceError, Malformed, Outcome, Reason, Refused, TryAgain
from gateway.core.keys import NO_TOKEN, FencingKey
from gateway.s3.errors import S3Error
from gateway.service.values import Write
from gateway.stores.base import StoreUnavailable

# A client's signature has been verified before: these can only mean the gateway's own.
_OF_OUR_SIGNATURE = frozenset(
    """
    AuthorizationHeaderMalformed CredentialsNotSupported ExpiredToken InvalidAccessKeyId InvalidSecurity InvalidToken
    RequestTimeTooSkewed SignatureDoesNotMatch
    """.split()
)


def refuse_our_own_fault(code: str | None) -> None:
    """Raises `TryAgain` (UpstreamUnavailable) for an error that would look like the client's and is the gateway's."""
    if code in _OF_OUR_SIGNATURE:
        raise unavailable(f"it refuses the gateway's own credentials or clock ({code}); see [upstream] in its settings")


def cannot_look(status: int, what: str) -> Exception:
    """A HEAD was answered neither with an object nor with its absence: final where the request itself is at fault."""
    if status in (400, 414):
        return S3Error(
            "InvalidRequest",
            f"The object store answers {status} to a HEAD of {what}. One that is encrypted with a customer's key can "
            "be looked at with that key alone: send its x-amz-server-side-encryption-customer-* headers, too. "
            "DeleteObjects needs none.",
        )
    if status == 403:
        return S3Error(
            "AccessDenied",
            f"Access Denied. The object store lets nobody look at {what} with the gateway's credentials ([upstream] in "
            "its settings): they need s3:GetObject on it and s3:ListBucket on its bucket, without which a store may "
            "answer 403 for what is not there.",
        )
    return unavailable(f"it answers {status} to a HEAD of {what}")


def unavailable(why: str, outcome: Outcome = Outcome.NOT_APPLIED) -> TryAgain:
    """The upstream does not do its part."""
    return TryAgain(
        Reason.UPSTREAM_UNAVAILABLE,
        f"The object store behind the gateway is not available: {why}. Send the request again.",
        outcome=outcome,
        retry_after_s=1,
    )


def contested(key: FencingKey, retry_after_s: float, rivals: Sequence[FencingKey] = ()) -> TryAgain:
    """A send of another key may still land on the object: of one of `rivals`, or of an earlier run."""
    whose = ", ".join(map(repr, rivals)) or "another key, from before the gateway started,"
    return TryAgain(
        Reason.HANDOVER_PENDING,
        f"A write of {whose} on this object may still take effect, and must not do so over one of {key!r}. Send the "
        "request again.",
        key=key,
        retry_after_s=min(retry_after_s, 5),
    )


def store_unavailable(error: StoreUnavailable) -> FenceError:
    """The store cannot decide: fail closed."""
    return TryAgain(
        Reason.STORE_UNAVAILABLE,
        f"The gateway's database cannot record floors now, so nothing fenced is let through: {error}",
        retry_after_s=1,
    )


def no_such_upload(upload_id: str) -> S3Error:
    """S3's answer for an upload id that means nothing."""
    return S3Error(
        "NoSuchUpload",
        "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been "
        "aborted or completed.",
        UploadId=upload_id,
    )


def another_key(write: Write, owner: str) -> FenceError:
    """The object belongs to another key than the one that the write names."""
    if write.token == NO_TOKEN and not write.named:
        return Refused(
            Reason.TOKEN_REQUIRED,
            f"This object belongs to the fencing key {owner}; a write without a token may not "
            "replace it. Send that job's key and token.",
            key=owner,
        )
    return Malformed(
        Reason.KEY_MISMATCH,
        f"This object belongs to the fencing key {owner}. Write under that key, or to another object, or let it move "
        "by a rule with rekey = true.",
        key=owner,
        token=write.token or None,
        argument=("X-Fencing-Key", write.key),
    )


def output_elsewhere(key: FencingKey, token: int) -> FenceError:
    """A RestoreObject that would write its results to a place of its own choosing."""
    return Refused(
        Reason.OPERATION_NOT_FENCED,
        "A RestoreObject with an OutputLocation would write objects that no fence covers; the gateway does not pass "
        "it. Restore the object without one, and read it then.",
        key=key,
        token=token or None,
    )


def folder_in_place(write: Write) -> FenceError:
    """An upload to where the store has a folder, and would assemble nothing."""
    return Refused(
        Reason.OPERATION_NOT_FENCED,
        f"The object store behind the gateway files objects as paths, and has a folder at {write.object_key}: it "
        "assembles no upload there. Put the object in one piece, or choose another key.",
        key=write.key,
        token=write.token or None,
    )


def state_moved(write: Write) -> FenceError:
    """Somebody else has changed the object since it was looked at."""
    return TryAgain(
        Reason.STATE_MOVED,
        "The object has been changed by another writer of the same token, or past the gateway, since this write "
        "began. Nothing was written. Send the request again.",
        key=write.key,
        token=write.token,
        retry_after_s=0.1,
    )


def bucket_moves(what: str) -> TryAgain:
    """A write, and the deletion of its bucket, at the same time."""
    return TryAgain(Reason.STATE_MOVED, f"{what} Send the request again.", retry_after_s=0.1)


def in_doubt(write: Write, floor: int, seen: str) -> FenceError:
    """Nobody knows whether the write has been applied, or still will be."""
    encrypted = (write.head.headers.get("x-amz-server-side-encryption") or "").startswith("aws:kms")
    without_kms = " If that goes on: it asks for a KMS key, and a store without a KMS fails so." if encrypted else ""
    return TryAgain(
        Reason.IN_DOUBT,
        f"The object store's answer was lost after the write had been sent ({seen}): it may have been applied, or "
        f"still be. Send the request again with the same token.{without_kms}",
        key=write.key,
        token=write.token or None,
        floor=floor,
        outcome=Outcome.UNKNOWN,
        retry_after_s=1,
    )


def condition_failed(condition: str) -> S3Error:
    """S3's own 412: the client's condition has failed."""
    return S3Error(
        "PreconditionFailed",
        "At least one of the pre-conditions you specified did not hold",
        Condition=condition,
    )
