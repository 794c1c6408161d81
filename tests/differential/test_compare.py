"""What the harness calls a difference, and what it lets pass: a harness that sees nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from tests.differential.allowed import ALLOWED, explain
from tests.differential.compare import Exchange, Shown
from tests.differential.memory import Memory
from tests.differential.sequences import Sequence
from tests.differential.sides import Sides
from tests.differential.steps import Bytes, Step, fence
from tests.differential.wire import Answer, Connection
from tests.differential.world import World

FIELDS = (
    (b"Server", b"Store/1"),
    (b"ETag", b'"0a"'),
    (b"x-amz-meta-a", b"a  b"),
    (b"Vary", b"Origin"),
    (b"Vary", b"Accept"),
    (b"Content-Length", b"4"),
    (b"Last-Modified", b"Thu, 01 Jan 2026 00:00:00 GMT"),
)
ANSWER = Answer(200, b"OK", FIELDS, b"<a/>")


def told(direct: Answer, through: Answer, step: Step | None = None, spoken: str = "none") -> list[str]:
    """What differs between two answers, as the harness tells it."""
    one, other = Shown.of(direct, Memory()), Shown.of(through, Memory())
    exchange = Exchange(step or Step("GetObject", "GET", "k"), fence(spoken), one, other)
    explain(exchange)
    return exchange.differences()


def changed(*fields: tuple[bytes, bytes], **parts: object) -> Answer:
    """The answer, with other values for its fields, and other parts."""
    named = dict(fields)
    return replace(ANSWER, fields=tuple((n, named.get(n, v)) for n, v in FIELDS), **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        changed(status=206),
        changed(reason=b"Fine"),
        changed(body=b"<b/>"),
        changed(body=b"<a/> "),
        changed(interim=(100,)),
        changed((b"ETag", b'"0b"')),
        changed((b"x-amz-meta-a", b"a b")),
        replace(ANSWER, fields=FIELDS[1:]),
        replace(ANSWER, fields=(*FIELDS, (b"x-added", b""))),
        replace(ANSWER, fields=(*FIELDS[:3], FIELDS[4], FIELDS[3], *FIELDS[5:])),
        replace(ANSWER, fields=(*FIELDS[:6], (b"Last-Modified", b"yesterday"))),
        replace(ANSWER, fields=(*FIELDS, (b"x-fencing-token", b"7"))),
    ],
)
def test_a_difference_is_told(other: Answer) -> None:
    """Status, reason, body, interim answers, each field's value, presence and order among its like."""
    assert told(ANSWER, other)
    assert told(other, ANSWER)


@pytest.mark.parametrize(
    "other",
    [
        ANSWER,
        replace(ANSWER, fields=tuple((n.lower(), v) for n, v in reversed(FIELDS[5:])) + FIELDS[:5]),
        replace(ANSWER, fields=(*FIELDS[:6], (b"Last-Modified", b"Fri, 02 Jan 2026 11:00:00 GMT"))),
        replace(ANSWER, fields=(*FIELDS, (b"Date", b"now"), (b"x-amz-request-id", b"1"))),
    ],
)
def test_what_says_nothing_is_passed_over(other: Answer) -> None:
    """Case and order of names, dates, request ids."""
    assert told(ANSWER, other) == []


def test_heads_length_is_compared() -> None:
    """HEAD has no body whose length could be seen."""
    head = Step("HeadObject", "HEAD", "k")
    assert told(replace(ANSWER, body=b""), changed((b"Content-Length", b"5"), body=b""), head)


def error(status: int, code: str, *fields: tuple[bytes, bytes]) -> Answer:
    return Answer(status, b"", fields, f"<Error><Code>{code}</Code></Error>".encode())


STORES = (b"Server", b"Store/1")
PUT = Step("PutObject", "PUT", "k")


@pytest.mark.parametrize(
    ("direct", "through", "step", "spoken"),
    [
        (error(404, "NoSuchKey", STORES), error(404, "NoSuchBucket", STORES), PUT, "none"),
        (error(404, "NoSuchKey", STORES), error(404, "NoSuchBucket"), PUT, "none"),
        (error(403, "AccessDenied", STORES), error(400, "AccessDenied"), PUT, "none"),
        (error(500, "InternalError", STORES), error(503, "SlowDown"), PUT, "rule"),
        (ANSWER, error(503, "SlowDown", (b"x-fencing-reason", b"InDoubt")), PUT, "rule"),
        (ANSWER, error(412, "PreconditionFailed", (b"x-fencing-reason", b"StaleToken")), PUT, "rule"),
        (ANSWER, error(501, "NotImplemented", (b"x-fencing-reason", b"OperationNotFenced")), PUT, "rule"),
        (ANSWER, error(400, "BadDigest"), replace(PUT, digest="content-md5"), "none"),
        (ANSWER, error(404, "NoSuchKey"), Step("GetObject", "GET", "k"), "none"),
    ],
)
def test_no_refusal_of_what_the_store_takes_is_passed_over(
    direct: Answer, through: Answer, step: Step, spoken: str
) -> None:
    """Allowed are the refusals that `ALLOWED` names, each in its own place."""
    assert told(direct, through, step, spoken)


def test_every_allowed_difference_has_its_reason() -> None:
    """Nobody has to guess why a difference is let pass."""
    assert all(len(rule.reason) > 20 for rule in ALLOWED.values())


class Scripted(Connection):
    """Answers a store's answers, but for what `tamper` does to them."""

    def __init__(self, answers: Iterator[Answer]) -> None:
        super().__init__(("", 0), patient=False)
        self._answers = answers

    def send(self, head: bytes, body: bytes, *, expects: bool) -> None:
        pass

    def answer(self, method: str) -> Answer:
        return next(self._answers)


def test_a_sequence_ends_at_its_first_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tells the step."""
    monkeypatch.setattr(World, "_have_probed", lambda world: None)
    world = World(Sides(("", 0), ("", 0), ("", 0)))
    other = changed(body=b"<b/>")
    for side, answers in (
        (world._direct, (ANSWER for _ in count())),
        (world._through, (other if number == 1 else ANSWER for number in count())),
        (world._behind, (ANSWER for _ in count())),
    ):
        side.connection = Scripted(iter(answers))
    world._buckets["none", False] = "b"
    steps = tuple(Step("PutObject", "PUT", "k", body=Bytes(1)) for _ in range(3))
    first, *differences = world.play(Sequence(fence("none"), False, steps))
    assert first.startswith("step 2, PutObject")
    assert len(differences) == 1
    assert differences[0].startswith("body: ")
