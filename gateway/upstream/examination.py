"""All that can be found out about a store by trying, for `fencing-gateway doctor`: what the gateway relies on
(`gateway.upstream.experiments`), and what a person wants to know beside.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import quote

from gateway.core.keys import FencingKey, Token, key_in_metadata
from gateway.s3.fencing import object_metadata, object_state
from gateway.s3.xml import find_text
from gateway.upstream.base import Capabilities, Upstream
from gateway.upstream.experiments import ABSENT, Experiments, Finding, judged
from gateway.upstream.probe import first_look, raced
from gateway.upstream.scratch import CannotProbe, Heard, NotReached, Scratch, SignedChunks, side_by_side

RACERS = 20
COMPLETES = 4
STAGED_BYTES = 300_000
"""More than proxies and sockets hold back by themselves."""
NO_RACE = Finding(False, "not tried, since conditions are not honoured one after another")
LATE_S = 1.0
"""How long after a cut one looks whether something has come of it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one bucket of a store."""

    findings: dict[str, Finding]
    """By the experiment's name, in the order in which they are told."""
    capabilities: Capabilities
    left: tuple[str, ...]
    """Keys of scratch objects that could not be removed."""


async def examine(
    upstream: Upstream,
    bucket: str,
    nonce: str,
    *,
    silence_s: float,
    signed_chunks: SignedChunks | None = None,
) -> Report:
    """Make all experiments in `bucket` and leave nothing there, also when cancelled.

    `silence_s` is how long an upload is held without a byte; `signed_chunks` sends a request with a payload in signed
    chunks and waits for so many seconds. Raises `CannotProbe`."""
    async with Scratch(upstream, bucket, nonce) as scratch:
        examination = _Examination(scratch)
        first, capabilities = await first_look(examination)
        others = {
            "put-race": examination.put_race(capabilities.conditional_put),
            "plain": examination.plain(),
            "metadata": examination.metadata(),
            "ranges": examination.ranges(),
            "copy-metadata": examination.copy_metadata(),
            "withheld": examination.withheld(),
            "cut": examination.cut(),
            "silence": examination.silence(silence_s),
            "complete": examination.complete(),
            "abort": examination.abort(),
            "signed-chunks": examination.signed_chunks(signed_chunks),
            "expect": examination.expect(),
            "versions": examination.versions(),
        }
        found = dict(zip(others, await side_by_side(*others.values()), strict=True))
        found["complete-race"] = await examination.complete_race(found["complete"].holds)
    findings = first | found
    return Report(
        {name: findings[name] for name in TOLD}, raced(capabilities, findings["put-race"]), tuple(scratch.left)
    )


TOLD = (
    "plain", "metadata", "withheld", "cut", "silence", "ranges", "copy-metadata",
    "put-absent", "put-match", "put-moment", "put-race", "copy", "delete", "complete", "complete-race", "abort",
    "versions", "trailers", "signed-chunks", "expect", "paths", "subresources",
)  # fmt: skip


class _Examination(Experiments):
    async def plain(self) -> Finding:
        """What is written is read, byte for byte, at once."""
        body = bytes(range(256)) * 4
        await self.write("plain", body)
        seen = await self.scratch.get("plain")
        kept = seen.applied and seen.body == body
        return Finding(kept, "read as it was written" if kept else f"{seen}, {len(seen.body)} bytes of {len(body)}")

    async def metadata(self) -> Finding:
        """The metadata by which an object remembers its fence."""
        key, token, nonce = FencingKey("probe/ü"), Token(2**63 - 1), "nonce"
        sent = await self.scratch.put("metadata", b"1", *object_metadata(key, token, nonce))
        state = object_state((await self.scratch.head("metadata")).fields.items())
        kept = (state.key, state.token, state.nonce) == (key_in_metadata(key), token, nonce)
        return Finding(kept, "key, token and nonce are kept" if kept else f"{sent}, and the object does not show them")

    async def ranges(self) -> Finding:
        """A part of an object is answered as one: 206 with those bytes alone."""
        await self.write("ranges", b"0123456789")
        heard = await self.scratch.send("GET", "ranges", [("range", "bytes=2-4")])
        return Finding(heard.status == 206 and heard.body == b"234", f"{heard}, {len(heard.body)} bytes of 3")

    async def copy_metadata(self) -> Finding:
        """A copy takes along its source's metadata, unless it is to replace it."""
        await self.scratch.put("copied", b"1", ("x-amz-meta-a", "own"))
        source = ("x-amz-copy-source", f"{self.scratch.bucket}/{self.scratch.key('copied')}")
        fields = [source, ("x-amz-metadata-directive", "COPY"), ("x-amz-meta-a", "other")]
        heard = await self.scratch.send("PUT", "copied-to", fields)
        kept = (await self.scratch.head("copied-to")).fields.get("x-amz-meta-a")
        return Finding(kept == "own", f"{heard}, and the copy bears {_whose(kept)}")

    async def withheld(self) -> Finding:
        """An upload whose last byte is withheld shows nothing: neither as a new object nor over an old one."""
        await self.write("withheld-old")
        new = await self.scratch.stage("withheld-new", b"x" * STAGED_BYTES)
        old = await self.scratch.stage("withheld-old", b"x" * STAGED_BYTES)
        fault = await self._shows(new="withheld-new", old="withheld-old")
        finished = [(await new.release()).conclusive(), (await old.release()).conclusive()]
        refused = next((heard for heard in finished if not heard.applied), None)
        if fault is None and refused is not None:
            fault = f"once released it was answered {refused}"
        return Finding(fault is None, fault or "invisible until its last byte, then answered 200")

    async def cut(self) -> Finding:
        """An upload whose connection is reset before the last byte leaves nothing."""
        await self.write("cut-old")
        for name in ("cut-new", "cut-old"):
            (await self.scratch.stage(name, b"x" * STAGED_BYTES)).cut()
        await asyncio.sleep(LATE_S)
        fault = await self._shows(new="cut-new", old="cut-old")
        return Finding(fault is None, fault or f"nothing {LATE_S:g} s after it was cut")

    async def _shows(self, *, new: str, old: str) -> str | None:
        """What can be seen of two uploads that must not be seen."""
        made, kept = await self.scratch.get(new), await self.scratch.get(old)
        if made.status != 404:
            return f"a new object shows: {made}, {len(made.body)} bytes"
        if not kept.applied or kept.body != b"1":
            return f"the old object has gone: {kept}, {len(kept.body)} bytes"
        return None

    async def silence(self, longest_s: float) -> Finding:
        """How long the store waits for the next byte of an upload, tried for parts of `longest_s`."""
        tried = [longest_s / 4, longest_s / 2, longest_s]
        heard = await side_by_side(*(self._silent(f"silence-{n}", pause_s) for n, pause_s in enumerate(tried)))
        borne = max([pause_s for pause_s, one in zip(tried, heard, strict=True) if one is None], default=0.0)
        fault = next((one for one in heard if one is not None), None)
        return Finding(fault is None, f"{borne:g} s at least" if fault is None else f"{borne:g} s, then {fault}")

    async def _silent(self, name: str, pause_s: float) -> str | None:
        staged = await self.scratch.stage(name, b"12")
        await asyncio.sleep(pause_s)
        try:
            heard = await staged.release()
        except NotReached as error:
            return str(error)
        return None if heard.applied else str(heard)

    async def put_race(self, conditional: bool) -> Finding:
        """A race to its end. Where conditions mean nothing all would win, and rclone keeps phantoms of the losers."""
        return await (await self.race(RACERS)).result() if conditional else NO_RACE

    # --- multipart

    async def complete(self) -> Finding:
        """Conditions on CompleteMultipartUpload: absence on an object that is there, an ETag of the past, the right
        one. The gateway does not rely on them."""
        past = await self.write("complete")
        now = await self.write("complete", b"newer")
        there = judged(await self._complete("complete", ABSENT), "the object was there")
        stale = judged(await self._complete("complete", self.on(past)), "the ETag was of the past")
        for one in (there, stale):
            if not one.holds:
                return one
        right = await self._complete("complete", self.on(now))
        return stale if right.applied else Finding(False, f"{right} although the ETag was right")

    async def complete_race(self, conditional: bool) -> Finding:
        """Several Completes that demand absence, at the same time."""
        if not conditional:
            return NO_RACE
        name = "complete-race"
        uploads = await side_by_side(*(self._upload(name) for _ in range(COMPLETES)))
        heard = await side_by_side(*(self._finish(name, upload, ABSENT) for upload in uploads))
        winners = sum(one.applied for one in heard)
        return Finding(winners == 1, f"{winners} of {COMPLETES} won")

    async def abort(self) -> Finding:
        """An aborted upload takes no more parts."""
        upload, _ = await self._upload("abort")
        await self.scratch.send("DELETE", "abort", query=f"uploadId={quote(upload, safe='')}")
        late = await self._part("abort", upload)
        return Finding(late.status == 404, f"{late} to a part of an aborted upload")

    async def _complete(self, name: str, condition: tuple[str, str]) -> Heard:
        return await self._finish(name, await self._upload(name), condition)

    async def _upload(self, name: str) -> tuple[str, str]:
        """An upload with one part: its id, and the part's ETag."""
        upload = await self.scratch.begin_upload(name)
        return upload, (await self._part(name, upload)).etag

    async def _part(self, name: str, upload: str) -> Heard:
        return await self.scratch.send(
            "PUT", name, body=b"part", query=f"partNumber=1&uploadId={quote(upload, safe='')}"
        )

    async def _finish(self, name: str, upload: tuple[str, str], condition: tuple[str, str]) -> Heard:
        part = f"<Part><PartNumber>1</PartNumber><ETag>{upload[1]}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
        return await self.scratch.send("POST", name, [condition], body, query=f"uploadId={quote(upload[0], safe='')}")

    # --- beside

    async def signed_chunks(self, send: SignedChunks | None) -> Finding:
        """A body in signed chunks is unpacked. The gateway sends none, whatever its clients do."""
        if send is None:
            return Finding(False, "not tried")
        payload = b"signed"
        try:
            heard = await self.scratch.send_by(send, "signed-chunks", payload)
        except NotReached:
            raise
        except CannotProbe as error:  # without credentials
            return Finding(False, f"not tried: {error}")
        unpacked = heard.applied and (await self.scratch.get("signed-chunks")).body == payload
        return Finding(unpacked, f"{heard}, {'unpacked' if unpacked else 'not unpacked'}")

    async def expect(self) -> Finding:
        """A request with `Expect: 100-continue` whose body comes at once."""
        heard = await self.scratch.put("expect", b"1", ("expect", "100-continue"))
        return Finding(heard.applied, f"{heard} to Expect: 100-continue")

    async def versions(self) -> Finding:
        """Whether the bucket keeps no versions; where it does, the gateway sends nothing again by itself."""
        heard = await self.scratch.send("GET", "", raw_key="", query="versioning")
        status = find_text(heard.body, "Status") if heard.applied else None
        if not heard.applied:
            return Finding(False, f"{heard} to the question whether versions are kept")
        return Finding(status is None, "none are kept" if status is None else f"versioning is {status}")


def _whose(metadata: str | None) -> str:
    return {"own": "its source's", "other": "that of the request"}.get(metadata or "", "none")
