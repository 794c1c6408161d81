"""Requests about buckets: lists, settings, and the buckets themselves."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from hypothesis import strategies as st

from gateway.s3.operations import OPERATIONS, Effect, Level
from tests.differential import values
from tests.differential.objects import Kinds, Scene, Steps
from tests.differential.steps import Step, Told, Value


def _list_parameters(scene: Scene) -> st.SearchStrategy[values.Pairs]:
    pieces = ["", "/", "a", "zz", *(key[: n + 1] for key in scene.keys for n in range(0, min(len(key), 12), 3))]
    prefix = "renders/job/" if scene.fence == "rule" else ""
    names = {
        "prefix": st.sampled_from([prefix + piece for piece in pieces]),
        "delimiter": st.sampled_from(["/", "/", "b", "", "//", "+"]),
        "max-keys": st.sampled_from(["1", "2", "0", "1000", "5000", "-1", "x", ""]),
        "encoding-type": st.sampled_from(["url", "url", "bogus"]),
        "start-after": st.sampled_from([prefix + piece for piece in pieces]),
        "marker": st.one_of(st.just(Told("NextMarker")), st.sampled_from([prefix + piece for piece in pieces])),
        "continuation-token": st.one_of(st.just(Told("NextContinuationToken")), st.just("bogus")),
        "fetch-owner": st.sampled_from(["true", "false"]),
        "key-marker": st.one_of(st.just(Told("NextKeyMarker")), st.sampled_from([prefix + piece for piece in pieces])),
        "version-id-marker": st.just(Told("NextVersionIdMarker")),
        "upload-id-marker": st.just(Told("NextUploadIdMarker")),
        "max-uploads": st.sampled_from(["1", "2", "0"]),
        "allow-unordered": st.just("true"),
    }
    one = st.sampled_from(sorted(names)).flatmap(lambda name: st.tuples(st.just(name), names[name]))
    return st.lists(one, max_size=4, unique_by=lambda pair: pair[0]).map(tuple)


_LISTS: dict[str, values.Pairs] = {
    "ListObjects": (),
    "ListObjectsV2": (("list-type", "2"),),
    "ListObjectVersions": (("versions", ""),),
    "ListMultipartUploads": (("uploads", ""),),
}


def _list(scene: Scene, name: str) -> Steps:
    mode = st.sampled_from(["hex", "hex", "presigned", "anonymous"])
    return st.builds(
        lambda parameters, mode: Step(name, "GET", query=_LISTS[name] + parameters, mode=mode),
        _list_parameters(scene),
        mode,
    )


_CORS = (
    "<CORSConfiguration><CORSRule><AllowedOrigin>https://example.org</AllowedOrigin><AllowedMethod>GET</AllowedMethod>"
)
_CORS += "<AllowedMethod>PUT</AllowedMethod><AllowedHeader>*</AllowedHeader></CORSRule></CORSConfiguration>"
_POLICY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject",'
_POLICY += '"Resource":"arn:aws:s3:::%s/*"}]}'
_LIFECYCLE = "<LifecycleConfiguration><Rule><ID>r</ID><Filter><Prefix>old/</Prefix></Filter><Status>Enabled</Status>"
_LIFECYCLE += "<Expiration><Days>365</Days></Expiration></Rule></LifecycleConfiguration>"
_SETTINGS: dict[str, list[str]] = {
    "acl": ["", "<AccessControlPolicy/>"],
    "cors": [_CORS, "<CORSConfiguration/>"],
    "encryption": [
        "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm>"
        "</ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"
    ],
    "lifecycle": [_LIFECYCLE, "<LifecycleConfiguration/>"],
    "ownershipControls": [
        "<OwnershipControls><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>"
    ],
    "policy": [_POLICY % "*", "{}"],
    "publicAccessBlock": [
        "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>"
    ],
    "tagging": ["<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"],
    "versioning": [
        "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
        "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>",
        "<VersioningConfiguration/>",
    ],
}
SETTINGS = tuple(
    row for row in OPERATIONS if row.level is Level.BUCKET and row.subresource and row.effect is Effect.CONFIGURE
)
"""Every row that changes a bucket's settings."""
LOOKS = tuple(
    row
    for row in OPERATIONS
    if row.level is Level.BUCKET and row.subresource and row.effect is Effect.READ and row.name not in _LISTS
)
"""Every row that shows a bucket's settings."""


def _setting(subresource: str, name: str, method: str, requires: tuple[str, ...]) -> Steps:
    query: values.Pairs = ((subresource, ""), *((required, "x") for required in requires))
    if method in ("GET", "DELETE"):
        return st.just(Step(name, method, query=query))
    bodies = st.sampled_from([*_SETTINGS.get(subresource, ["<Configuration/>"]), "<"])
    headers = st.sampled_from([(), (("x-amz-acl", "private"),)]) if subresource == "acl" else st.just(())
    return st.builds(lambda body, said: Step(name, method, query=query, body=body, headers=said), bodies, headers)


def _buckets() -> Steps:
    """Buckets beside the sequence's own."""
    names = st.sampled_from(
        ["differential-other", "differential-another", "ab", "Upper_Case", "xn--odd", "a..b", "1.2.3.4"]
    )
    location = (
        "<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>"
    )
    rows: list[tuple[str, str, values.Pairs, str | None]] = [
        ("HeadBucket", "HEAD", (), None),
        ("CreateBucket", "PUT", (), ""),
        ("CreateBucket", "PUT", (), location),
        ("CreateBucket", "PUT", (("x-amz-bucket-object-lock-enabled", "true"),), ""),
        ("DeleteBucket", "DELETE", (), None),
        ("ListObjectsV2", "GET", (), None),
    ]

    def step(bucket: str, row: tuple[str, str, values.Pairs, str | None]) -> Step:
        query = (("list-type", "2"),) if row[0] == "ListObjectsV2" else ()
        return Step(row[0], row[1], query=query, headers=row[2], body=row[3], bucket=bucket)

    return st.builds(step, names, st.sampled_from(rows))


def _own_bucket() -> Steps:
    asked: tuple[tuple[str, Value], ...] = (("origin", "https://example.org"), ("access-control-request-method", "GET"))
    return st.sampled_from(
        [
            Step("ListBuckets", "GET", bucket=None),
            Step("HeadBucket", "HEAD"),
            Step("CreateBucket", "PUT", body=""),
            Step("PreflightBucket", "OPTIONS", headers=asked, mode="anonymous"),
        ]
    )


def elsewhere(scene: Scene, steps: Steps) -> Steps:
    """The same in a bucket that does not exist; floors outlive it, so each way to speak to the fence has its own."""
    absent = f"no-such-bucket-{scene.fence}"

    def moved(step: Step) -> Step:
        return replace(step, bucket=absent) if step.bucket == "" and step.operation != "CreateBucket" else step

    return steps.map(moved)


def bucket_steps(scene: Scene) -> Kinds:
    """Of what leaves the bucket's settings alone."""
    steps: Kinds = {
        "buckets": (3, _buckets),
        "own bucket": (2, _own_bucket),
    }
    for name in _LISTS:
        steps[name] = (4 if name != "ListMultipartUploads" else 2, partial(_list, scene, name))
    return steps


@lru_cache
def setting_steps() -> Kinds:
    """Of all that reads and changes a bucket's settings."""
    found: Kinds = {}
    for row in (*SETTINGS, *LOOKS):
        weight = 4 if row.subresource in _SETTINGS else 1
        assert row.subresource is not None
        found[row.name] = (weight, partial(_setting, row.subresource, row.name, row.method, row.requires))
    return found
