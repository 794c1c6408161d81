"""Mode `observe` (R11): what a key's gate would be, and whose uploads would be, so that parts and Complete are judged
like their creation.

Uploads are known in memory alone: `observe` changes nothing that lasts. One from before the gateway's start is not
judged.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.gate import Gate
from gateway.core.keys import FencingKey
from gateway.core.write import Answer
from gateway.s3.operations import Effect, Fences
from gateway.s3.xml import find_text
from gateway.service.values import Result, Write
from gateway.stores.values import Fence, Upload

CAPACITY = 65536

_Place = tuple[str, str, str]


def gate_if_enforced(fence: Fence) -> Gate:
    """The gate of a key had its rule been enforced: its floor is the shadow floor, or the true one, which leases and
    operators raise and seal in every mode."""
    floor = max(fence.floor, fence.shadow_floor)
    return Gate(FencingKey(fence.key), floor, sealed_token=fence.sealed_token, granted_token=fence.granted_token)


class ObservedUploads:
    """The latest uploads that enforcement would have let begin."""

    def __init__(self) -> None:
        self._uploads: OrderedDict[_Place, Upload] = OrderedDict()

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
