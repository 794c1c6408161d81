"""Plays sequences on both sides and tells what differed: each answer, and the state that is left."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import unquote, unquote_plus

from gateway.core.names import RECORD_KEY
from gateway.s3.operations import OPERATIONS, Effect, Fences
from tests.differential.allowed import explain
from tests.differential.compare import Exchange, Shown
from tests.differential.memory import Memory
from tests.differential.sequences import Sequence, told
from tests.differential.sides import Sides
from tests.differential.steps import Deleted, Fence, Step, fence, rendered
from tests.differential.wire import Answer, Connection, Silent

_ROWS = {row.name: row for row in OPERATIONS}
_VERSIONING = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
NO_ANSWER = Answer(0, b"the connection was closed", (), b"")
SILENT = fence("none")
_WRITES = (Effect.COMMIT, Effect.STAGE, Effect.DISCARD)


@dataclass
class Side:
    """One way to a store, and what it has answered in this sequence."""

    connection: Connection
    fenced: bool
    memory: Memory = field(default_factory=Memory)

    def send(self, step: Step, bucket: str, spoken: Fence) -> str:
        """Send a step; answers its target."""
        request = rendered(step, bucket, self.memory, self._speaks(step, spoken))
        self.connection.send(request.head, request.body, expects=step.expects)
        return request.head.split(b" ", 2)[1].decode("latin-1")

    def _speaks(self, step: Step, spoken: Fence) -> tuple[tuple[str, str], ...]:
        row = _ROWS[step.operation]
        if not self.fenced or row.effect not in _WRITES or row.fences is Fences.NOTHING:
            return ()
        return spoken.headers if spoken.on_parts or row.fences is not Fences.UPLOAD else ()

    def answer(self, step: Step, target: str) -> Answer:
        answer = self.connection.answer(step.method)
        self.memory.learn(step.operation, target, answer)
        return answer

    def ask(self, step: Step, bucket: str, spoken: Fence = SILENT) -> Answer:
        """Raises `Silent`."""
        return self.answer(step, self.send(step, bucket, spoken))


class World:
    """Both sides, with buckets that serve one sequence after the other."""

    def __init__(self, sides: Sides) -> None:
        self._direct = Side(Connection(sides.direct, patient=True), False)
        self._through = Side(Connection(sides.through, patient=False), True)
        self._behind = Side(Connection(sides.behind, patient=True), False)
        self._buckets: dict[tuple[str, bool], str] = {}
        self._made = 0
        self._parted = False
        self.requests = 0
        self.operations: Counter[str] = Counter()
        """By row: how many steps were sent."""
        self.succeeded: Counter[str] = Counter()
        """By row: how many the store answered with 2xx."""
        self.used: Counter[str] = Counter()
        """By allowed difference: how often it was met."""
        self.seen_once: list[str] = []
        """Differences that did not come again."""
        self._have_probed()

    def close(self) -> None:
        for side in (self._direct, self._through, self._behind):
            side.connection.close()

    def play(self, sequence: Sequence) -> list[str]:
        """Send a sequence; what differed in the first step that did, or in the state that is left."""
        kind = sequence.fence.name, sequence.versioned
        bucket = self._buckets.pop(kind, None) or self._new_bucket(sequence.versioned)
        for side in (self._direct, self._through, self._behind):
            side.memory = Memory(sequence.fence.prefix)
        differences: list[str] = []
        for number, step in enumerate(sequence.steps, 1):
            self.requests += 1
            self.operations[step.operation] += 1
            if found := self._compare(step, bucket, sequence.fence, self._through):
                differences = [f"step {number}, {told(step)}", *found]
            if found or self._parted:
                break
        else:
            differences = self._compare_state(bucket, sequence)
        if differences:
            self.close()  # nobody knows what may still come
        if differences or self._parted or sequence.settings or not self._clean(bucket, sequence.fence):
            self._abandon(bucket)
        else:
            self._buckets[kind] = bucket
        for name in sorted({step.bucket for step in sequence.steps if step.bucket}):
            for side in (self._direct, self._through):
                side.ask(Step("DeleteBucket", "DELETE", bucket=name), "")
        return differences

    def _compare(self, step: Step, bucket: str, spoken: Fence, other: Side) -> list[str]:
        answers = []
        try:
            targets = [side.send(step, bucket, spoken) for side in (self._direct, other)]
        except Silent as error:
            return [str(error)]
        before = other.memory.of_upload(targets[1])
        for side, target in zip((self._direct, other), targets, strict=True):
            try:
                answers.append(side.answer(step, target))
            except Silent as error:
                if side is other:
                    return [f"through: {error}"]
                answers.append(NO_ANSWER)
        direct, through = answers
        again = direct.get(b"x-amz-version-id") is not None and through.get(b"x-fencing-reason") == b"StateMoved"
        if again:
            through = other.ask(step, bucket, spoken)
        if 200 <= direct.status < 300:
            self.succeeded[step.operation] += 1
        shown = Shown.of(direct, self._direct.memory), Shown.of(through, other.memory)
        exchange = Exchange(step, spoken, *shown, _keys(step, targets[0]), before, again, behind=other is self._behind)
        explain(exchange)
        self._parted = exchange.parted
        self.used.update(exchange.used)
        return exchange.differences()

    # --- the state that is left

    def _compare_state(self, bucket: str, sequence: Sequence) -> list[str]:
        # What the gateway's side calls its ids, the store behind it does as well.
        self._behind.memory.ids = dict(self._through.memory.ids)
        kept = self._found(self._direct, bucket)
        for other in (self._behind, self._through):
            for step in _looks(kept, sequence.versioned):
                if found := self._compare(step, bucket, sequence.fence, other):
                    place = "behind the gateway" if other is self._behind else "through the gateway"
                    return [f"state {place}, {told(step)}", *found]
        return []

    def _found(self, side: Side, bucket: str) -> Kept:
        """What is in a bucket, but for the record that the gateway keeps there."""
        url = ("encoding-type", "url")
        versions = side.ask(Step("ListObjectVersions", "GET", query=(("versions", ""), url)), bucket).body
        objects = side.ask(Step("ListObjectsV2", "GET", query=(("list-type", "2"), url)), bucket).body
        uploads = side.ask(Step("ListMultipartUploads", "GET", query=(("uploads", ""), url)), bucket).body
        kept = Kept(
            [_key(found) for found in re.findall(rb"<Contents><Key>([^<]*)</Key>", objects)],
            [(_key(k), v.decode()) for k, v in re.findall(rb"<Key>([^<]*)</Key>.*?<VersionId>([^<]*)</", versions)],
            [(_key(k), u.decode()) for k, u in re.findall(rb"<Key>([^<]*)</Key>.*?<UploadId>([^<]*)</", uploads)],
        )
        kept.keys = [key for key in kept.keys if key != RECORD_KEY]
        kept.versions = [(key, version) for key, version in kept.versions if key != RECORD_KEY]
        return kept

    # --- buckets

    def _have_probed(self) -> None:
        """Let the gateway find out in a bucket of its own what the store can do."""
        name = "differential-probe"
        for side in (self._through, self._direct):
            side.ask(Step("CreateBucket", "PUT", body=""), name)
            side.ask(Step("PutObject", "PUT", "renders/job/k", body=""), name, fence("rule"))
            side.ask(Step("DeleteObject", "DELETE", "renders/job/k"), name, fence("rule"))
        self._abandon(name)

    def _new_bucket(self, versioned: bool) -> str:
        self._made += 1
        name = f"differential-{self._made:05}"
        for side in (self._direct, self._behind):
            assert side.ask(Step("CreateBucket", "PUT", body=""), name).status == 200
            if versioned:
                said = Step("PutBucketVersioning", "PUT", query=(("versioning", ""),), body=_VERSIONING)
                assert side.ask(said, name).status == 200
            # SeaweedFS may go on for a moment to say that there is no such bucket.
            for _ in range(100):
                begun = side.ask(Step("CreateMultipartUpload", "POST", "k", (("uploads", ""),)), name)
                if begun.status == 200:
                    break
            ended = Step("AbortMultipartUpload", "DELETE", "k", (("uploadId", side.memory.told["UploadId"]),))
            assert side.ask(ended, name).status == 204
        return name

    def _abandon(self, bucket: str) -> None:
        """Delete a bucket on both sides, or leave it on both."""
        steps = Step("DeleteBucket", "DELETE"), Step("CreateBucket", "PUT", body="")
        if {side.ask(steps[0], bucket).status for side in (self._direct, self._through)} - {204, 404}:
            for side in (self._direct, self._through):
                side.ask(steps[1], bucket)

    def _clean(self, bucket: str, spoken: Fence) -> bool:
        """Empty a bucket on both sides, behind the gateway through it; whether it is empty then."""
        for side, store in ((self._direct, self._direct), (self._through, self._behind)):
            kept = self._found(store, bucket)
            for key, upload_id in kept.uploads:
                side.ask(Step("AbortMultipartUpload", "DELETE", key, (("uploadId", upload_id),)), bucket, spoken)
            for key, version in kept.versions:
                query = () if version == "null" else (("versionId", version),)
                side.ask(Step("DeleteObject", "DELETE", key, query), bucket, spoken)
            if self._found(store, bucket) != Kept([], [], []):
                return False
        return True


def _keys(step: Step, target: str) -> tuple[str, ...]:
    """The object keys that a request names."""
    source = dict(step.headers).get("x-amz-copy-source")
    raw = [target.partition("?")[0]] + ([source.partition("?")[0]] if isinstance(source, str) else [])
    listed = [key for key, _ in step.body.objects] if isinstance(step.body, Deleted) else []
    return tuple(unquote(path).removeprefix("/").partition("/")[2] for path in raw) + tuple(listed)


@dataclass
class Kept:
    """What a bucket holds."""

    keys: list[str]
    versions: list[tuple[str, str]]
    uploads: list[tuple[str, str]]


def _key(raw: bytes) -> str:
    return unquote_plus(unescape(raw.decode()))


def _looks(kept: Kept, versioned: bool) -> list[Step]:
    """Requests that show all of it."""
    url = ("encoding-type", "url")
    steps = [
        Step("ListObjectsV2", "GET", query=(("list-type", "2"), url, ("fetch-owner", "true"))),
        Step("ListMultipartUploads", "GET", query=(("uploads", ""), url)),
    ]
    if versioned:
        steps.append(Step("ListObjectVersions", "GET", query=(("versions", ""), url)))
    for key in kept.keys:
        steps.append(Step("HeadObject", "HEAD", key, headers=(("x-amz-checksum-mode", "ENABLED"),)))
        steps.append(Step("GetObject", "GET", key))
        steps.append(Step("GetObjectTagging", "GET", key, query=(("tagging", ""),)))
        steps.append(Step("GetObjectAcl", "GET", key, query=(("acl", ""),)))
    return steps
