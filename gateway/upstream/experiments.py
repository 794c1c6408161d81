"""Experiments on a store: each tries one thing on scratch objects of its own and tells what it has seen.

Some stores ignore a condition in silence, some want the ETag without its quotes, some let two racers win, some judge a
condition when the head of a request arrives. So nothing is believed that has not been seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.write import Answer
from gateway.s3 import checksums
from gateway.s3.chunked import TrailerEncoder
from gateway.s3.claim import STREAMING_UNSIGNED_TRAILER
from gateway.upstream.scratch import CannotProbe, Heard, NotReached, Scratch, side_by_side

RACE_TIMEOUT_S = 60.0
"""SeaweedFS lets a loser wait for a second, then for one and a half, and so on, until nobody else has the object."""
ABSENT = ("if-none-match", "*")
_WRONG = '"' + hashlib.md5(b"never written", usedforsecurity=False).hexdigest() + '"'
_TRAILED = b"trailed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What an experiment has seen."""

    holds: bool
    seen: str
    """For people."""


class Experiments:
    """Those that the gateway relies on. `match` comes first; each raises `CannotProbe`."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.bare_etag = False
        """The store takes an ETag only without its quotes; known after `match`."""
        self.kept_trailers: frozenset[str] = frozenset()
        """Known after `trailers`."""
        self.is_seaweedfs = False
        """By the name that it gives itself; known after `subresources`."""

    def on(self, etag: str) -> tuple[str, str]:
        """The condition on that state, as the store understands it."""
        return "if-match", etag.strip('"') if self.bare_etag else etag

    async def write(self, name: str, body: bytes = b"1") -> str:
        """Write an object without a condition, and answer its ETag."""
        heard = await self.scratch.put(name, body)
        if not heard.applied or not heard.etag:
            raise CannotProbe(f"a plain PUT was answered {heard}")
        return heard.etag

    async def absence(self) -> Finding:
        """PUT with `If-None-Match: *`."""
        first = await self.scratch.put("absent", b"1", ABSENT)
        if not first.applied:
            return Finding(False, f"{first} although the object was absent")
        again = await self.scratch.put("absent", b"2", ABSENT)
        return judged(again, "the object was there")

    async def match(self) -> Finding:
        """PUT with `If-Match`: the right ETag, a wrong one, one of the past. Finds out how ETags are to be written."""
        first = await self.write("match")
        wrong = judged(await self.scratch.put("match", b"2", ("if-match", _WRONG)), "the ETag was wrong")
        if not wrong.holds:
            return wrong
        right = await self.scratch.put("match", b"2", ("if-match", first))
        if not right.applied:
            self.bare_etag = True
            right = await self.scratch.put("match", b"2", self.on(first))
        if not right.applied:
            self.bare_etag = False
            return Finding(False, f"{right} although the ETag was right")
        past = judged(await self.scratch.put("match", b"3", self.on(first)), "the ETag was of the past")
        if past.holds and self.bare_etag:
            return Finding(True, f"{past.seen}; takes ETags without quotes only")
        return past

    async def moment(self) -> Finding:
        """When the condition of an upload is judged: opened, withheld, overtaken, released, it has to fail."""
        first = await self.write("moment")
        staged = await self.scratch.stage("moment", b"late", self.on(first))
        await self.write("moment", b"newer")
        return judged((await staged.release()).conclusive(), "the object changed before the last byte")

    async def race(self, racers: int) -> Race:
        """`racers` uploads under one condition, all but their last bytes sent, then released at the same time.

        Answers as soon as one has won and its object is gone again, since stores may let the losers wait for seconds.
        No racer can win by the removal: all demand a state that has been replaced."""
        first = await self.write("race")
        bodies = [b"racer %d" % number for number in range(racers)]
        staged = await side_by_side(*(self.scratch.stage("race", body, self.on(first)) for body in bodies))
        answers = {
            asyncio.create_task(one.release(RACE_TIMEOUT_S)): body for one, body in zip(staged, bodies, strict=True)
        }
        race, waiting = Race(list(answers)), set(answers)
        while waiting and not race.won:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for winner in [answer for answer in done if answer.result().applied]:
                race.won = True
                with contextlib.suppress(NotReached):  # some stores break off what is overwritten while it is read
                    left = await self.scratch.get("race")
                    race.kept = left.applied and left.body == answers[winner]
        await self.scratch.remove("race")
        return race

    async def copy(self) -> Finding:
        """CopyObject with conditions on its destination."""
        first = await self.write("copy")
        there = judged(await self._copy(ABSENT), "the object was there")
        if not there.holds:
            return there
        right = await self._copy(self.on(first))
        if not right.applied:
            return Finding(False, f"{right} although the ETag was right")
        await self.write("copy", b"another")
        return judged(await self._copy(self.on(first)), "the ETag was of the past")

    async def _copy(self, condition: tuple[str, str]) -> Heard:
        """Copy the object onto itself."""
        source = ("x-amz-copy-source", f"{self.scratch.bucket}/{self.scratch.key('copy')}")
        return await self.scratch.send("PUT", "copy", [source, ("x-amz-metadata-directive", "REPLACE"), condition])

    async def delete(self) -> Finding:
        """DELETE with `If-Match`."""
        first = await self.write("delete")
        current = await self.write("delete", b"newer")
        past = judged(await self.scratch.send("DELETE", "delete", [self.on(first)]), "the ETag was of the past")
        if not past.holds:
            return past
        right = await self.scratch.send("DELETE", "delete", [self.on(current)])
        return past if right.applied else Finding(False, f"{right} although the ETag was right")

    # --- beside conditions

    async def trailers(self) -> Finding:
        """Of which algorithms a trailing checksum is kept. Some stores store an aws-chunked body's framing as data;
        one that keeps CRC32 may know no other, and refuses a body that the others trail."""
        if not await self._keeps_trailer("crc32"):
            return Finding(False, "no CRC32 that trails a body is kept")
        others = sorted(checksums.ALGORITHMS - {"crc32"})
        kept = await side_by_side(*map(self._keeps_trailer, others))
        self.kept_trailers = frozenset(["crc32", *(name for name, keeps in zip(others, kept, strict=True) if keeps)])
        return Finding(True, "kept: " + ", ".join(sorted(self.kept_trailers)))

    async def _keeps_trailer(self, algorithm: str) -> bool:
        running = checksums.start(algorithm)
        running.update(_TRAILED)
        field, value = f"x-amz-checksum-{algorithm}", checksums.encode(running.digest())
        encoder = TrailerEncoder(len(_TRAILED), field)
        headers = [("x-amz-decoded-content-length", str(len(_TRAILED))), ("x-amz-trailer", field)]
        body = b"".join(encoder.encode(_TRAILED)) + encoder.closing(value)
        name = f"trailer_{algorithm}"
        sent = await self.scratch.send("PUT", name, headers, body, payload_sha256=STREAMING_UNSIGNED_TRAILER)
        if not sent.applied:
            return False
        kept = await self.scratch.head(name, ("x-amz-checksum-mode", "ENABLED"))
        return kept.fields.get(field) == value and kept.fields.get("content-length") == str(len(_TRAILED))

    async def paths(self) -> Finding:
        """Whether keys that differ as text are different objects; else they are filed as paths."""
        differ = await self._differs("path", "/" + self.scratch.key("path"), "/a where a was written")
        if not differ.holds:
            return differ  # and no folder is made, which such a store would keep
        return await self._differs("folder/path", self.scratch.key("folder//path"), "a//b where a/b was written")

    async def _differs(self, name: str, raw_key: str, words: str) -> Finding:
        await self.write(name)
        seen = await self.scratch.send("HEAD", name, raw_key=raw_key)
        # Absent, or no name at all (rclone); any other error tells nothing.
        return Finding(seen.status in (400, 404), f"{seen} to {words}")

    async def subresources(self) -> Finding:
        """Whether an operation that the store may not know leaves the object alone: some do the plain one instead."""
        await self.write("subresource")
        body = b"not the object"
        sent = await self.scratch.send("PUT", "subresource", body=body, query="annotation&annotationName=probe")
        left = await self.scratch.head("subresource")
        self.is_seaweedfs = left.fields.get("server", "").startswith("SeaweedFS")
        overlooked = left.status != 200 or left.fields.get("content-length") == str(len(body))
        return Finding(
            not overlooked and sent.outcome is not Answer.LOST,
            f"{sent} to an annotation" + (", which replaced the object" if overlooked else ""),
        )


class Race:
    """A race that somebody has won, or nobody; losers may still wait for their answers."""

    def __init__(self, answers: Sequence[asyncio.Task[Heard]]) -> None:
        self._answers = asyncio.gather(*answers, return_exceptions=True)
        self.won = False
        self.kept: bool | None = None
        """The winner's bytes were there once it had been answered; None: that could not be seen."""

    async def result(self) -> Finding:
        """Whether exactly one has won. Raises `CannotProbe` if an answer was lost that would tell."""
        answers = await self._answers
        heard = [answer for answer in answers if isinstance(answer, Heard)]
        winners = sum(answer.applied for answer in heard)
        seen = f"{winners} of {len(answers)} won; answers: {_counted(heard)}"
        if not winners and any(answer.busy for answer in heard):
            raise CannotProbe(f"the store was too busy for a race: {seen}")
        if winners <= 1 and (len(heard) < len(answers) or (winners and self.kept is None)):
            raise NotReached("answers were lost in a race of conditional writes")
        if winners == 1 and not self.kept:
            return Finding(False, f"{seen}; the object was not the winner's")
        return Finding(winners == 1, seen)


def judged(heard: Heard, why: str) -> Finding:
    """A write that had to fail for its condition."""
    return Finding(heard.condition_failed, f"{heard} where {why}")


def _counted(heard: Iterable[Heard]) -> str:
    """The answers with how often each came."""
    return ", ".join(f"{answer} ({count}x)" for answer, count in Counter(map(str, heard)).most_common())
