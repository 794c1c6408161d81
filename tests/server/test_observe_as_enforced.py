"""R11: mode `observe` tells just what `enforce` would have refused, request by request, through random stories."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from gateway.core.keys import Mode, Rule, TokenLimits, WithoutToken, compile_rule
from gateway.s3.sigv4 import Credentials
from gateway.server.clients import Client
from tests.server.rig import BUCKET, CREDENTIALS, Pairs, Rig, rule, running
from tests.server.test_s3_batch import batch

LIMITED = Credentials("LIMITED", "limited-secret")
CLIENTS = [Client(CREDENTIALS), Client(LIMITED, keys=("j1",))]
OBJECTS = (
    "ruled/j1/a",
    "ruled/j1/b",
    "ruled/j2/a",
    "strict/j3/a",
    "open/j4/a",
    "jump/j5/a",
    "moving/a",
    "moving/b",
    "x",
    "y",
)
KEYS = (None,) * 12 + ("j1", "j2", "k1", "%00")
STEPS = 120


def rules(mode: Mode) -> list[Rule]:
    return [
        rule("ruled/{job}/**", "{job}", mode),
        rule("strict/{job}/**", "{job}", mode, WithoutToken.REQUIRE),
        rule("open/{job}/**", "{job}", mode, WithoutToken.ALLOW),
        Rule(*compile_rule("jump/{job}/**", "{job}"), mode=mode, limits=TokenLimits(3, 5)),
        rule("moving/**", mode=mode, rekey=True),
        rule("**", mode=mode),
    ]


@dataclass(frozen=True)
class Step:
    """One write, the same for both gateways but for the upload's id."""

    method: str
    target: str
    said: Pairs
    body: bytes | None
    credentials: Credentials

    async def reason(self, rig: Rig, log: Rig) -> tuple[str | None, str]:
        """Why the fence has refused it, or would have; and the upload that it has begun."""
        answer = await rig.ask(self.method, self.target, self.said, self.body, credentials=self.credentials)
        record = log.record
        told = record["reason"] if record["decision"] in ("refused", "would-refuse") else None
        return told, answer.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()


def step(chance: random.Random, uploads: list[tuple[str, str, str]], number: int) -> tuple[str, Step, Step]:
    """The object, and the write as it goes to either gateway. Tokens grow, by and large."""
    tokens = [None, "-1", "", *(str(max(1, number // 8 + chance.randint(-2, 3))) for _ in range(9))]
    key, ids = chance.choice(OBJECTS), ("", "")
    said = [
        *((("x-fencing-token", token),) if (token := chance.choice(tokens)) is not None else ()),
        *((("x-fencing-key", name),) if (name := chance.choice(KEYS)) is not None else ()),
    ]
    kinds = ["put", "put", "put", "delete", "batch", "copy", "tag", "create", *(["part"] if uploads else [])]
    kind, credentials = chance.choice(kinds), chance.choice([CREDENTIALS] * 9 + [LIMITED])
    if kind == "part":
        key, *ids = chance.choice(uploads)  # type: ignore[assignment]

    def of(upload_id: str) -> Step:
        place = f"/{BUCKET}/{key}"
        method, target, more, body = {
            "put": ("PUT", place, (), b"x"),
            "delete": ("DELETE", place, (), None),
            "batch": ("POST", f"/{BUCKET}?delete", (), batch(key)),
            "copy": ("PUT", place, (("x-amz-copy-source", f"{BUCKET}/source"),), b""),
            "tag": ("PUT", f"{place}?tagging", (), b"<Tagging/>"),
            "create": ("POST", f"{place}?uploads", (), b""),
            "part": ("PUT", f"{place}?partNumber=1&uploadId={upload_id}", (), b"part"),
        }[kind]
        return Step(method, target, [*said, *more], body, credentials)

    return key, of(ids[0]), of(ids[1])


@pytest.mark.parametrize("seed", range(4))
async def test_observe_tells_what_enforce_refuses(seed: int) -> None:
    """Neither more nor less, for the same reason, though under `observe` all of it is written."""
    chance = random.Random(seed)
    uploads: list[tuple[str, str, str]] = []
    async with (
        running(rules=rules(Mode.ENFORCE), clients=CLIENTS) as enforcing,
        running(rules=rules(Mode.OBSERVE), clients=CLIENTS) as observing,  # its log has the lines of both
    ):
        for rig in (enforcing, observing):
            assert (await rig.put("source", b"source")).status == 200
        refused = 0
        for number in range(STEPS):
            key, enforced, observed = step(chance, uploads, number)
            due, begun = await enforced.reason(enforcing, observing)
            told, observed_id = await observed.reason(observing, observing)
            assert told == due, enforced
            refused += due is not None
            if begun and not key.startswith("open/"):  # one without a token has no binding there
                uploads.append((key, begun, observed_id))
        assert STEPS / 4 < refused < STEPS * 3 / 4
