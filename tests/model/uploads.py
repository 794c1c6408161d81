"""Multipart uploads, as `gateway/service/uploads.py` has them."""

from __future__ import annotations

from gateway.core.errors import Refused
from gateway.core.keys import Token
from gateway.core.write import Verdict
from tests.model import admission, guarantees, sending, upstream
from tests.model.size import Op
from tests.model.world import (
    NoChange,
    Request,
    Upload,
    Why,
    World,
)


def bind(w: World, r: Request) -> None:
    """CreateMultipartUpload: bound durably, then answered."""
    upload = Upload(r.obj, r.key, r.token, r.content, sending.new_nonce(w), w.size.completes)
    w.uploads.append(upload)
    w.requests.remove(r)
    try:
        w.gates[r.key].refuse_overtaken(Token(r.token))
    except Refused:
        upload.completes = 0


def complete(w: World, upload: Upload) -> None:
    """A Complete comes in; key and token are its binding's."""
    upload.completes -= 1
    if upload.completed:
        try:
            w.gates[upload.key].admit(Token(upload.token))
        except Refused as error:
            raise NoChange from error
        repeated = Request(Op.COMPLETE, upload.obj, upload.key, upload.token, upload.content)
        guarantees.visible(repeated, upload.applied)
    elif upload.bound:
        admission.arrive(w, Op.COMPLETE, upload.obj, upload.key, token_of(w, upload), upload.content, upload.nonce)
    else:
        raise NoChange


def token_of(w: World, upload: Upload) -> int:
    """The token of a Complete that bears none."""
    return upload.token


def completes_unclear(w: World, r: Request, verdict: Verdict) -> None:
    """No success came back. The upload's nonce decides the answer and settles nothing."""
    if verdict is Verdict.OURS:
        completed(w, r)
        sending.end(w, r, applied=True)
    elif r.why is Why.DOUBT:
        sending.end(w, r, again=True, unknown=True)
    else:
        sending.end(w, r)


def completed(w: World, r: Request) -> None:
    """The upload is finished."""
    if (upload := upstream.upload_of(w, r.nonce)) is not None:
        upload.finished = True


def record_finished(w: World) -> None:
    """The database is told of finished uploads once nothing of them can land."""
    for u in w.uploads:
        if u.finished and u.bound and (u.key, u.obj) not in w.bound and not may_land(w, u):
            u.bound, u.completed = False, True


def may_land(w: World, upload: Upload) -> bool:
    """Whether a Complete of the upload is unsettled."""
    return any(f.op is Op.COMPLETE and f.nonce == upload.nonce and f.send is not None and f.send.unsettled
               for f in w.flights())  # fmt: skip


def revoke(w: World, upload: Upload) -> None:
    """What is below the floor is revoked, and aborted upstream once nothing of it can land."""
    gate = w.gates[upload.key]
    if not upload.bound or gate.completed_floor < gate.floor or upload.token >= gate.floor:
        raise NoChange
    upload.bound = upload.upstream = False
