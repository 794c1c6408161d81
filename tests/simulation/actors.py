"""Who is at work: workers who hold a token and may have lost it long ago, and who bears none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gateway.core.errors import FenceError
from gateway.core.keys import FencingKey, Token, key_of_object
from gateway.s3.fencing import Claimed
from gateway.s3.request import Headers, parse_head
from gateway.s3.xml import BatchObject
from gateway.service.values import Result, Write
from gateway.stores.values import Event, EventKind
from tests.simulation.chance import BUCKET
from tests.simulation.client import Client, Reply, SlowBody, Wish
from tests.simulation.gateway import Gateway
from tests.simulation.objects import MARK, SHARED
from tests.simulation.versions import NULL, Version

LONG_S = (60, 400)
"""Longer than leases and settle time-outs."""
BATCH = parse_head("POST", f"/{BUCKET}?delete", Headers([]))


class Tokens:
    """The lock service: each hand-over of a key brings a higher token."""

    def __init__(self) -> None:
        self.last: Counter[str] = Counter()
        self.leased: dict[str, str] = {}
        """The database that last granted a lease of a key."""

    def next(self, key: str) -> int:
        self.last[key] += 1
        return self.last[key]

    def granted(self, key: str, token: int, by: str) -> None:
        """By a lease of that database's."""
        self.last[key] = max(self.last[key], token)
        self.leased[key] = by


def key_of(key: str | None, name: str) -> str:
    """The fence key of an object, whose rule may name it."""
    parts = name.split("/")
    if parts[0] in ("renders", "open"):
        return "j"
    return key or key_of_object(BUCKET, name)


class Worker(Client):
    """Holds one token of one key and writes under it, as long as it believes that it may. Token 0: it has none."""

    def __init__(self, gateway: Gateway, name: str, key: str | None, token: int, marks: Counter[str]) -> None:
        super().__init__(gateway, name)
        self.key, self.token = key, token
        self._marks = marks
        self._twins = 0
        self._stream = self.chance.stream(name)

    async def work(self) -> None:
        """Some writes with pauses. An honest worker stops when it is told that it has been overtaken; others do not."""
        zombie = self._stream.random() < 0.3
        for _ in range(self._stream.choice((1, 2, 3))):
            await self.pause()
            habit = self.chance.habit
            versions = habit.version if self.chance.versioned else 0
            what = self._stream.choices(
                (self.put, self.delete, self.upload, self.copy, self.batch, self.check, self.delete_version),
                (habit.put, habit.delete, habit.upload, habit.copy, habit.batch, habit.check, versions),
            )[0]
            reply = await what(self._stream.choice(self.objects()))
            if reply.stop and not zombie:
                return

    def objects(self) -> Sequence[str]:
        """Those that it writes."""
        return self.chance.objects

    async def pause(self) -> None:
        """Now and then longer than any lease."""
        if self._stream.random() < 0.1:
            self.gateway.story.faults["long-pause"] += 1
            await asyncio.sleep(self.chance.pause(self.name, *LONG_S))
        else:
            await asyncio.sleep(self.chance.pause(self.name, *self.chance.pace.pauses_s))

    # --- what it asks for

    def wish(self, operation: str, name: str = "", value: str | None = "?", **more: Any) -> Wish:
        """Under `allow` a write without a token passes outside the gate."""
        fenced = bool(self.token) or not name.startswith("open/")
        return Wish(operation, key_of(self.key, name), self.token, name, value, fenced=fenced, **more)

    def write(self, method: str, name: str, body: SlowBody | None = None, **options: Any) -> Write:
        return self.gateway.rig.write(method, name, self.token, body, fence_key=self._named(name), **options)

    def _named(self, name: str) -> str | None:
        return None if key_of(None, name) == "j" else self.key

    def _content(self) -> tuple[str, bytes, str]:
        """A mark, the bytes that it stands for, now and then those of others, and what names the bytes."""
        self._marks["values"] += 1
        mark = f"v{self._marks['values']}"
        size = self._stream.choice((12, 12, 50))
        same = self._stream.random() < 0.15
        data = (SHARED if same else mark.encode()).ljust(size, b".")
        self.gateway.objects.written[mark] = data
        return mark, data, data.decode()

    async def _send(self, write: Write, wish: Wish) -> Any:
        writes = self.gateway.rig.writes
        return await (writes.fenced(write) if wish.fenced else writes.unfenced(write))

    async def put(self, name: str) -> Reply:
        return await self._put(name, self._own_condition(name))

    async def put_plain(self, name: str) -> Reply:
        """Without a condition of its own."""
        return await self._put(name, [])

    async def _put(self, name: str, condition: list[tuple[str, str]]) -> Reply:
        mark, data, shared = self._content()
        wish = self.wish("PutObject", name, mark, bytes=shared)
        headers = [(MARK, mark), *condition]
        return await self.ask(
            wish, lambda: self._send(self.write("PUT", name, self._body(data), headers=headers), wish)
        )

    def _own_condition(self, name: str) -> list[tuple[str, str]]:
        kind = self._stream.choice(("", "", "", "", "", "", "", "none", "match"))
        stored = self.gateway.objects.buckets[BUCKET].get(name)
        if not kind or (kind == "match" and stored is None):
            return []
        return [("if-none-match", "*") if kind == "none" else ("if-match", stored.etag if stored else "")]

    def _body(self, data: bytes) -> SlowBody:
        return SlowBody(data, self.gateway, self.name)

    async def delete(self, name: str) -> Reply:
        wish = self.wish("DeleteObject", name, None)
        return await self.ask(wish, lambda: self._send(self.write("DELETE", name), wish))

    async def delete_version(self, name: str) -> Reply:
        """For good; what shows then is what was before it, and for nobody to say."""
        wish = self.wish("DeleteObjectVersion", name)
        query = f"?versionId={self._a_version(name).id}"
        return await self.ask(wish, lambda: self._send(self.write("DELETE", name, query=query), wish))

    def _a_version(self, name: str) -> Version:
        """Most often the current one; now and then one that is not there any more."""
        versions = self.gateway.objects.versions.get(name, [])
        return self._stream.choice([*versions, *versions[-1:], *versions[-1:], Version(NULL, None)])

    async def copy(self, name: str) -> Reply:
        """With a mark of its own, or with all that the source bears."""
        source = self._stream.choice(self.chance.objects)
        place, stored = f"{BUCKET}/{source}", self.gateway.objects.buckets[BUCKET].get(source)
        if self.chance.versioned and self._stream.random() < 0.3:
            version = self._a_version(source)
            place, stored = f"{place}?versionId={version.id}", version.stored
        headers = [("x-amz-copy-source", place)]
        wish = self.wish("CopyObject", name)
        if stored is not None and (source == name or self._stream.random() < 0.7):
            mark, _, _ = self._content()
            self.gateway.objects.written[mark] = stored.data
            wish = self.wish("CopyObject", name, mark, bytes=stored.data.decode())
            headers += [("x-amz-metadata-directive", "REPLACE"), (MARK, mark)]
            headers += [("x-amz-copy-source-if-match", stored.etag)]
        return await self.ask(wish, lambda: self._send(self.write("PUT", name, headers=headers), wish))

    async def batch(self, name: str) -> Reply:
        """DeleteObjects over all objects, or versions of them, each answered for itself."""
        asked = {
            one: self._of_batch(one) for one in self.chance.objects if key_of(self.key, one) == key_of(self.key, name)
        }
        wishes = {
            name: self.wish("DeleteObjects", name, None)
            if one.version_id is None
            else self.wish("DeleteObjectVersion", name)
            for name, one in asked.items()
        }

        async def send(refused: dict[str, FenceError]) -> Any:
            writes: list[tuple[BatchObject, Any]] = [
                (one, self.write("DELETE", name) if wishes[name].fenced else None) for name, one in asked.items()
            ]
            return await self.gateway.batches.delete(
                BATCH, BUCKET, writes, quiet=False, on_refusal=lambda error, asked: refused.update({asked.key: error})
            )

        return await self.ask_of_each(wishes, send)

    def _of_batch(self, name: str) -> BatchObject:
        if not self.chance.versioned or self._stream.random() < 0.7:
            return BatchObject(name, None, (("Key", name),))
        version_id = self._a_version(name).id
        return BatchObject(name, version_id, (("Key", name), ("VersionId", version_id)))

    async def check(self, name: str) -> Reply:
        if not self.token:
            return Reply()
        wish = self.wish("check", name)
        return await self.ask(Wish("check", wish.key, wish.token), lambda: self._admit(wish.key, "check"))

    async def _admit(self, key: str, cause: str) -> None:
        fences = self.gateway.rig.fences
        fences.unpin(await fences.admit(FencingKey(key), Token(self.token), cause=cause))

    async def grant(self, name: str) -> Reply:
        """The lease itself: granted once its hand-over is complete."""
        key = key_of(self.key, name)
        return await self.ask(Wish("check", key, self.token), lambda: self._admit(key, "lease"), attempts=1)

    async def seal(self, name: str) -> Reply:
        """The worker gives its token up."""
        key = key_of(self.key, name)

        async def seal() -> Any:
            event = Event(key, EventKind.SEALED, self.token, self.token)
            fence = await self.gateway.rig.fences.seal(FencingKey(key), Token(self.token), event)
            return None if fence.sealed_token >= self.token else Result(409, [], b"")

        return await self.ask(Wish("seal", key, self.token), seal, attempts=1)

    # --- multipart uploads

    async def upload(self, name: str) -> Reply:
        """Create, parts, Complete; asked again, asked twice at once, or aborted."""
        if not self.token and name.startswith("open/"):
            return Reply()  # begun outside the gate it has no binding: none of the service's business
        mark, data, shown = self._content()
        created = await self.ask(self.wish("CreateMultipartUpload", name), lambda: self._create(name, mark))
        if created.result is None or created.result.status != 200:
            return created
        upload_id = created.result.body.split(b"<UploadId>")[1].split(b"</UploadId>")[0].decode()
        etags = []
        for number in (1, 2):
            await self.pause()
            half = len(data) // 2
            piece = data[:half] if number == 1 else data[half:]
            part = await self._part(name, upload_id, number, piece)
            if part.result is None or part.result.status != 200:
                return part
            etags.append(part.result.header("etag") or "")
        await self.pause()
        if self._stream.random() < 0.15:
            query = f"?uploadId={upload_id}"
            return await self.ask(self.wish("AbortMultipartUpload", name), lambda: self._abort(name, query))
        wish = self.wish("CompleteMultipartUpload", name, mark, bytes=shown)
        return await self._complete(name, upload_id, etags, wish)

    async def _create(self, name: str, mark: str) -> Any:
        write = self.write("POST", name, query="?uploads", headers=[(MARK, mark)])
        return await self.gateway.rig.uploads.create(write)

    async def _part(self, name: str, upload_id: str, number: int, data: bytes) -> Reply:
        async def send() -> Any:
            query = f"?partNumber={number}&uploadId={upload_id}"
            write = self.write("PUT", name, self._body(data), query=query)
            await self.gateway.rig.uploads.bound(write, self._claimed(name))
            return await self.gateway.rig.uploads.part(write)

        return await self.ask(self.wish("UploadPart", name), send)

    async def _complete(self, name: str, upload_id: str, etags: list[str], wish: Wish) -> Reply:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in enumerate(etags, 1)
        )
        xml = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()

        async def send() -> Any:
            write = self.write("POST", name, self._body(xml), query=f"?uploadId={upload_id}")
            upload = await self.gateway.rig.uploads.bound(write, self._claimed(name))
            return await self.gateway.rig.uploads.complete(write, upload)

        if self._stream.random() < 0.2:
            self._twins += 1
            twin = Client(self.gateway, f"{self.name}t{self._twins}")
            first, _ = await asyncio.gather(self.ask(wish, send), twin.ask(wish, send))
            return first
        first = await self.ask(wish, send)
        if self._stream.random() < 0.35:
            await asyncio.sleep(self.chance.pause(self.name, 0, 1, 30, 120))
            return await self.ask(wish, send)
        return first

    async def _abort(self, name: str, query: str) -> Any:
        write = self.write("DELETE", name, query=query)
        upload = await self.gateway.rig.uploads.bound(write, self._claimed(name))
        return await self.gateway.rig.uploads.abort(write, upload)

    def _claimed(self, name: str) -> Claimed:
        """Several clients send custom headers on Create alone."""
        if self._stream.random() < 0.5 or not self.token:
            return Claimed(None, None)
        key = self._named(name)
        return Claimed(Token(self.token), None if key is None else FencingKey(key))
