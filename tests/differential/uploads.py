"""Requests of multipart uploads."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential import values
from tests.differential.objects import Kinds, Scene, Steps, copy_source
from tests.differential.steps import Bytes, Parts, Step, UploadId, UploadKey
from tests.end_to_end.wire import MODES

LEAST_PART_BYTES = 5 * 2**20
"""S3 user guide, "Amazon S3 multipart upload limits": all parts but the last."""
_WHICH = st.integers(0, 2)


def _of(upload: int) -> values.Pairs:
    return (("uploadId", UploadId(upload)),)


@st.composite
def _create(draw: st.DrawFn, scene: Scene) -> Step:
    headers = draw(values.METADATA) + draw(values.SYSTEM_METADATA)
    return Step(
        "CreateMultipartUpload", "POST", draw(st.sampled_from(scene.keys)), query=(("uploads", ""),), headers=headers,
        mode=draw(st.sampled_from(["hex", "hex", "presigned"])),
    )  # fmt: skip


@st.composite
def _part(draw: st.DrawFn) -> Step:
    upload, number = draw(_WHICH), draw(st.sampled_from(["1", "1", "2", "3", "0", "10001", "x"]))
    sizes = st.one_of(values.SIZES, st.sampled_from([LEAST_PART_BYTES] + [100] * 12))
    mode = draw(st.sampled_from([*MODES, "presigned"]))
    digest = draw(values.DIGESTS) if "TRAILER" not in mode else None
    return Step(
        "UploadPart", "PUT", UploadKey(upload), query=(("partNumber", number), *_of(upload)),
        body=draw(st.builds(Bytes, sizes, st.integers(0, 3))), mode=mode, digest=digest,
    )  # fmt: skip


@st.composite
def _part_copy(draw: st.DrawFn, scene: Scene) -> Step:
    upload = draw(_WHICH)
    ranges: list[values.Pairs] = [(), ()]
    ranges += [(("x-amz-copy-source-range", text),) for text in ("bytes=0-0", "bytes=2-4", "bytes=0-999999", "x")]
    headers = (("x-amz-copy-source", draw(copy_source(scene))), *draw(st.sampled_from(ranges)))
    number = draw(st.sampled_from(["1", "2", "3"]))
    return Step(
        "UploadPartCopy", "PUT", UploadKey(upload), query=(("partNumber", number), *_of(upload)), headers=headers
    )


@st.composite
def _complete(draw: st.DrawFn) -> Step:
    upload = draw(_WHICH)
    form = draw(st.sampled_from(["right"] * 6 + ["reversed", "wrong etag", "bare etags", "one more", "none"]))
    headers = draw(st.sampled_from([(), (), (), (("if-none-match", "*"),)]))
    return Step(
        "CompleteMultipartUpload",
        "POST",
        UploadKey(upload),
        query=_of(upload),
        body=Parts(upload, form),
        headers=headers,
    )


def _list_parts() -> Steps:
    parameters: list[values.Pairs] = [
        (),
        (),
        (("max-parts", "1"),),
        (("part-number-marker", "1"),),
        (("max-parts", "0"),),
    ]
    return st.builds(
        lambda upload, more: Step("ListParts", "GET", UploadKey(upload), query=_of(upload) + more),
        _WHICH,
        st.sampled_from(parameters),
    )


def _abort() -> Steps:
    return _WHICH.map(lambda upload: Step("AbortMultipartUpload", "DELETE", UploadKey(upload), query=_of(upload)))


def upload_steps(scene: Scene) -> Kinds:
    """Requests of uploads."""
    return {
        "create": (5, lambda: _create(scene)),
        "part": (7, _part),
        "part copy": (3, lambda: _part_copy(scene)),
        "complete": (5, _complete),
        "list parts": (2, _list_parts),
        "abort": (2, _abort),
    }
