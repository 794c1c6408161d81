"""Requests about one object, and batches and copies of some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from hypothesis import strategies as st

from tests.differential import values
from tests.differential.steps import Bytes, Deleted, Step, Value, VersionId, VersionKey

Steps = st.SearchStrategy[Step]
Kinds = dict[str, tuple[int, Callable[[], Steps]]]
"""Weight and strategy of each kind of step; the name only tells them apart."""


@dataclass(frozen=True)
class Scene:
    """What a sequence's steps have in common."""

    keys: tuple[str, ...]
    """They come back, so that the steps meet."""
    versioned: bool
    fence: str
    """The name of `steps.fence`."""


def _pick(scene: Scene) -> st.SearchStrategy[str]:
    return st.sampled_from(scene.keys)


def _versions(scene: Scene) -> st.SearchStrategy[tuple[Value | None, values.Pairs]]:
    """A version and its key where the bucket keeps versions; mostly neither."""
    none = st.just((None, ()))
    if not scene.versioned:
        return st.one_of(none, none, none, st.just((None, (("versionId", "null"),))))
    told = st.integers(0, 5).map(lambda n: (VersionKey(n), (("versionId", VersionId(n)),)))
    return st.one_of(none, told, st.sampled_from(["null", "bogus"]).map(lambda text: (None, (("versionId", text),))))


@st.composite
def _put(draw: st.DrawFn, scene: Scene) -> Step:
    key, mode = draw(_pick(scene)), draw(values.PAYLOAD_MODES)
    digest = draw(values.DIGESTS) if "TRAILER" not in mode else None
    return Step(
        "PutObject", "PUT", key,
        headers=draw(values.METADATA) + draw(values.SYSTEM_METADATA) + draw(values.write_conditions(key)),
        body=draw(values.BODIES), mode=mode, safe=draw(values.SAFE),
        digest=digest, expects=draw(st.sampled_from([False, False, False, True])),
    )  # fmt: skip


@st.composite
def _put_with_wrong_digest(draw: st.DrawFn, scene: Scene) -> Step:
    wrong = draw(
        st.sampled_from(
            [
                ("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="),
                ("content-md5", "short"),
                ("x-amz-checksum-crc32", "AAAAAA=="),
                ("x-amz-checksum-sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
                ("x-amz-checksum-crc32c", "bogus"),
            ]
        )
    )
    mode = draw(st.sampled_from(["hex", "UNSIGNED-PAYLOAD"]))
    return Step("PutObject", "PUT", draw(_pick(scene)), headers=(wrong,), body=Bytes(draw(values.SIZES), 1), mode=mode)


@st.composite
def _read(draw: st.DrawFn, scene: Scene) -> Step:
    method = draw(st.sampled_from(["GET", "GET", "HEAD"]))
    key, version = draw(_pick(scene)), draw(_versions(scene))
    return Step(
        "GetObject" if method == "GET" else "HeadObject", method, version[0] or key,
        query=version[1] + draw(values.READ_PARAMETERS),
        headers=draw(values.READ_HEADERS) + draw(values.read_conditions(key)),
        mode=draw(st.sampled_from(["hex", "hex", "hex", "UNSIGNED-PAYLOAD", "presigned", "anonymous"])),
        safe=draw(values.SAFE),
    )  # fmt: skip


@st.composite
def _delete(draw: st.DrawFn, scene: Scene) -> Step:
    key, version = draw(_pick(scene)), draw(_versions(scene))
    conditions = draw(st.one_of(st.just(()), st.just(()), values.write_conditions(key)))
    return Step(
        "DeleteObject", "DELETE", version[0] or key, query=version[1], headers=conditions,
        mode=draw(st.sampled_from(["hex", "hex", "presigned"])), safe=draw(values.SAFE),
    )  # fmt: skip


@st.composite
def _batch(draw: st.DrawFn, scene: Scene) -> Step:
    # A token without a key holds one job: with each object's own key a batch names one object only.
    many = 1 if scene.fence == "object" else 4
    version = st.one_of(st.none(), st.integers(0, 5)) if scene.versioned else st.none()
    objects = draw(st.lists(st.tuples(_pick(scene), version), min_size=1, max_size=many))
    if scene.fence == "object":
        objects = [(objects[0][0], None)]
    body: Value = Deleted(tuple(objects), draw(st.sampled_from([None, True, False])))
    if draw(st.integers(0, 9)) == 0:
        body = draw(st.sampled_from(["<Delete></Delete>", "<Delete>", "", "{}", "<Delete><Object/></Delete>"]))
    digest = draw(st.sampled_from(["content-md5", "x-amz-checksum-crc32", "x-amz-checksum-sha256", None]))
    return Step("DeleteObjects", "POST", query=(("delete", ""),), body=body, digest=digest)


def copy_source(scene: Scene) -> st.SearchStrategy[Value]:
    """A source in the sequence's own bucket or in one that does not exist, spelt in several ways."""

    def spelt(key: str, form: str, bucket: str, version: str) -> Value:
        raw = key if form == "raw" and key.isprintable() else quote(key, safe="" if form == "all" else "/-._~")
        return f"{'/' if form == 'slash' else ''}{bucket}{'%2F' if form == 'all' else '/'}{raw}{version}"

    buckets = st.sampled_from(["{bucket}"] * 12 + ["no-such-bucket", "no bucket"])
    forms = st.sampled_from(["plain", "plain", "slash", "all", "raw"])
    return st.builds(spelt, _pick(scene), forms, buckets, st.sampled_from([""] * 8 + ["?versionId=null"]))


@st.composite
def _copy(draw: st.DrawFn, scene: Scene) -> Step:
    key, source = draw(_pick(scene)), draw(_pick(scene))
    directives = [()] * 3 + [
        (("x-amz-metadata-directive", text),) for text in ("COPY", "REPLACE", "REPLACE", "replace", "bogus")
    ]
    tagging: list[values.Pairs] = [()] * 4 + [
        (("x-amz-tagging-directive", "COPY"),),
        (("x-amz-tagging-directive", "REPLACE"), ("x-amz-tagging", "c=3")),
    ]
    directive = draw(st.sampled_from(directives)) + draw(st.sampled_from(tagging))
    metadata = draw(st.one_of(st.just(()), values.METADATA))
    system = draw(st.one_of(st.just(()), values.SYSTEM_METADATA))
    system = tuple(pair for pair in system if pair[0] not in dict(directive))
    headers = (("x-amz-copy-source", draw(copy_source(scene))), *directive, *metadata, *system)
    headers += draw(values.read_conditions(source, "x-amz-copy-source-"))
    return Step("CopyObject", "PUT", key, headers=headers, safe=draw(values.SAFE))


_TAGS = [
    "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>",
    "<Tagging><TagSet><Tag><Key>a b</Key><Value>ü + &amp;</Value></Tag><Tag><Key>k</Key><Value/></Tag></TagSet>"
    "</Tagging>",
    "<Tagging><TagSet/></Tagging>",
    "<Tagging><TagSet><Tag><Key>a</Key></Tag><Tag><Key>a</Key></Tag></TagSet></Tagging>",
    "<Tagging>",
    "",
]
_OWNER = '<Owner><ID>gateway</ID></Owner><AccessControlList><Grant><Grantee xmlns:xsi="http://www.w3.org/2001/'
_OWNER += 'XMLSchema-instance" xsi:type="CanonicalUser"><ID>gateway</ID></Grantee><Permission>FULL_CONTROL</Permission>'
DOCUMENTS: dict[str, list[str]] = {
    "tagging": _TAGS,
    "acl": [f"<AccessControlPolicy>{_OWNER}</Grant></AccessControlList></AccessControlPolicy>", "", "<x/>"],
    "legal-hold": ["<LegalHold><Status>ON</Status></LegalHold>", "<LegalHold><Status>OFF</Status></LegalHold>", ""],
    "retention": [
        "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2033-01-01T00:00:00Z</RetainUntilDate></Retention>",
        "<Retention><Mode>x</Mode></Retention>",
    ],
    "annotation": ["noted", ""],
    "encryption": ["<ServerSideEncryptionRule/>"],
    "restore": ["<RestoreRequest><Days>1</Days></RestoreRequest>"],
    "select": ["<SelectObjectContentRequest><Expression>select 1</Expression></SelectObjectContentRequest>"],
}


def _about(scene: Scene, name: str, method: str, subresource: str) -> Steps:
    """A request about what an object has beside its bytes."""
    annotated = subresource == "annotation" and name != "ListObjectAnnotations"
    query: values.Pairs = ((subresource, ""), *((("annotationName", "n"),) if annotated else ()))
    if subresource == "select":
        query += (("select-type", "2"),)
    attributes = "ETag,Checksum,ObjectParts,StorageClass,ObjectSize"
    headers: values.Pairs = (("x-amz-object-attributes", attributes),) if subresource == "attributes" else ()

    def step(key: str, version: tuple[Value | None, values.Pairs], body: str | None, canned: str | None) -> Step:
        said = headers + ((("x-amz-acl", canned),) if canned else ())
        return Step(name, method, version[0] or key, query=query + version[1], headers=said, body=body)

    bodies = st.sampled_from(DOCUMENTS[subresource]) if method in ("PUT", "POST") else st.none()
    canned = st.sampled_from(["private", "public-read", None]) if name == "PutObjectAcl" else st.none()
    return st.builds(step, _pick(scene), _versions(scene), bodies, canned)


_ABOUT = (
    ("PutObjectTagging", "PUT", "tagging"), ("GetObjectTagging", "GET", "tagging"),
    ("DeleteObjectTagging", "DELETE", "tagging"), ("PutObjectAcl", "PUT", "acl"), ("GetObjectAcl", "GET", "acl"),
    ("PutObjectLegalHold", "PUT", "legal-hold"), ("GetObjectLegalHold", "GET", "legal-hold"),
    ("PutObjectRetention", "PUT", "retention"), ("GetObjectRetention", "GET", "retention"),
    ("PutObjectAnnotation", "PUT", "annotation"), ("GetObjectAnnotation", "GET", "annotation"),
    ("ListObjectAnnotations", "GET", "annotation"), ("DeleteObjectAnnotation", "DELETE", "annotation"),
    ("UpdateObjectEncryption", "PUT", "encryption"), ("RestoreObject", "POST", "restore"),
    ("GetObjectAttributes", "GET", "attributes"), ("GetObjectTorrent", "GET", "torrent"),
    ("SelectObjectContent", "POST", "select"),
)  # fmt: skip


def _preflight(scene: Scene) -> Steps:
    asked = (("origin", "https://example.org"), ("access-control-request-method", "PUT"))
    return st.builds(lambda key: Step("PreflightObject", "OPTIONS", key, headers=asked, mode="anonymous"), _pick(scene))


def object_steps(scene: Scene) -> Kinds:
    """Requests about objects."""
    steps: Kinds = {
        "put": (12, lambda: _put(scene)),
        "put wrong": (2, lambda: _put_with_wrong_digest(scene)),
        "read": (12, lambda: _read(scene)),
        "delete": (5, lambda: _delete(scene)),
        "batch": (4, lambda: _batch(scene)),
        "copy": (7, lambda: _copy(scene)),
        "preflight": (1, lambda: _preflight(scene)),
    }
    for row in _ABOUT:
        steps[row[0]] = (2 if row[2] in ("tagging", "acl", "attributes") else 1, partial(_about, scene, *row))
    return steps
