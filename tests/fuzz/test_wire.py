"""Whatever bytes come, in whatever pieces: every answer is HTTP, nothing is a fault, nothing is left, and where the
bytes are cut changes neither answers nor what is stored."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.memory_wire import GONE, HALF_CLOSED, SILENT, Ending, Outcome, talk
from tests.fuzz.requests import streams
from tests.fuzz.settings import short
from tests.s3.bodies import cut

_HEAD = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]+\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\r\n\0]*\r\n)*)\r\n")
_UNEXPECTED = frozenset({500, 503})


def answers(sent: bytes, methods: list[str]) -> list[int]:
    """The statuses of what was sent, read strictly. Raises `AssertionError` for what is not HTTP."""
    found: list[int] = []
    at = 0
    while at < len(sent):
        head = _HEAD.match(sent, at)
        assert head, f"no HTTP: {sent[at : at + 80]!r}"
        at = head.end()
        status = int(head[1])
        if status == 100:
            continue
        pairs = [line.split(b": ", 1) for line in head[2].split(b"\r\n") if line]
        names = [name.lower() for name, _ in pairs]
        headers = {name.lower(): value for name, value in pairs}
        assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
        assert len(found) < len(methods), "an answer to nothing"
        if methods[len(found)] != "HEAD" and status not in (204, 304):
            if headers.get(b"transfer-encoding") == b"chunked":
                end = sent.index(b"0\r\n\r\n", at) + 5
            else:
                end = at + int(headers[b"content-length"])
            assert end <= len(sent), "an answer is cut short"
            at = end
        found.append(status)
        assert headers.get(b"connection") != b"close" or at == len(sent), "an answer behind the last"
    return found


def check(outcome: Outcome, *, whole: bool) -> None:
    """What holds for every connection. `whole`: the client has read all."""
    statuses = [status for _, status, _ in outcome.answered]
    assert not _UNEXPECTED & set(statuses), outcome.answered
    if whole:
        assert answers(outcome.sent, [method for method, _, _ in outcome.answered]) == [s for s in statuses if s]


@short(120)
@given(
    data=streams(),
    places=st.lists(st.integers(0, 4000), max_size=6),
    pause_s=st.sampled_from((0, 0, 0, 5)),
    takes=st.sampled_from((1 << 16, 1 << 16, 100)),
    ending=st.sampled_from((SILENT, HALF_CLOSED)),
)
def test_any_bytes_in_any_pieces(data: bytes, places: list[int], pause_s: int, takes: int, ending: Ending) -> None:
    """One answer after the other, each of them HTTP; cut differently the same. Where one of the two connections ends
    earlier (a refusal may come before the body or behind it), what both have answered is the same."""
    one = talk([data], ending)
    places = [place % (len(data) + 1) for place in places]
    other = talk(cut(data, places), ending, pause_s=pause_s, takes=takes)
    for outcome in (one, other):
        check(outcome, whole=True)
    both = min(len(one.answered), len(other.answered))
    assert one.answered[:both] == other.answered[:both]
    if len(one.answered) == len(other.answered):
        assert (one.stored, one.floors) == (other.stored, other.floors)


@short(40)
@given(data=streams(), places=st.lists(st.integers(0, 4000), max_size=3), keep=st.integers(0, 4000))
def test_a_client_that_goes_at_any_byte(data: bytes, places: list[int], keep: int) -> None:
    """Nothing is left of a connection that is lost anywhere."""
    data = data[: keep % (len(data) + 1)]
    check(talk(cut(data, [place % (len(data) + 1) for place in places]), GONE), whole=False)
