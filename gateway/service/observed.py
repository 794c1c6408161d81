"""Mode `observe` (R11): what a key's gate would be, to whom objects would belong that no rule maps, and whose uploads
would be, so that parts and Complete are judged like their creation.

Objects and uploads are known in memory alone: `observe` changes nothing that lasts. What is from before the gateway's
start is not judged.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.gate import Gate
from gateway.core.keys import FencingKey
from gateway.core.write import Answer
from gateway.s3.operations import Effect, Fences
from gateway.s3.xml import find_text
from gateway.service.refusals import another_key
from gateway.service.values import Result, Write
from gateway.stores.values import Fence, Upload

CAPACITY = 65536

_Place = tuple[str, str, str]


def gate_if_enforced(fence: Fence) -> Gate:
    """The gate of a key had its rule been enforced: its floor is the shadow floor, or the true one, which leases and
    operators raise and seal in every mode."""
    floor = max(fence.floor, fence.shadow_floor)
    return Gate(FencingKey(fence.key), floor, sealed_token=fence.sealed_token, granted_token=fence.granted_token)


class Observed:
    """The latest uploads, and claims of objects, that enforcement would have let begin."""

    def __init__(self) -> None:
        self._uploads: OrderedDict[_Place, Upload] = OrderedDict()
        self._owners: OrderedDict[tuple[str, str], FencingKey] = OrderedDict()

    def own(self, write: Write, recorded: str | None) -> None:
        """Claim the object for the write's key, if it has a token. `recorded`: its owner while it was enforced. Raises
        `FenceError` where it would belong to another key."""
        place = (write.bucket, write.object_key)
        owner = self._owners.get(place, recorded)
        if owner not in (None, write.key) and not (write.token and write.rule.rekey):
            raise another_key(write, str(owner))
        if write.token:
            self._owners[place] = write.key
            if len(self._owners) > CAPACITY:
                self._owners.popitem(last=False)

    def of(self, write: Write) -> Upload | None:
        """The upload that `write` names; None for one that is not known."""
        return self._uploads.get(_place(write, write.head.param("uploadId") or ""))

    def seen(self, write: Write, result: Result, *, would_refuse: bool) -> None:
        """`write` has been answered: an upload begins, unless enforcement would have refused it, or ends."""
        operation = write.operation
        if result.answer is not Answer.APPLIED:
            return
        if operation.name == "CreateMultipartUpload" and not would_refuse:
            upload_id = find_text(result.body, "UploadId") or ""
            place = _place(write, upload_id)
            self._uploads[place] = Upload(upload_id, write.bucket, write.object_key, write.key, write.token, "")
            if len(self._uploads) > CAPACITY:
                self._uploads.popitem(last=False)
        elif operation.fences is Fences.UPLOAD and operation.effect is not Effect.STAGE:
            self._uploads.pop(_place(write, write.head.param("uploadId") or ""), None)


def _place(write: Write, upload_id: str) -> _Place:
    return write.bucket, write.object_key, upload_id
