"""Lists as clients see them, where a delimiter or a short page makes the record's absence more than a cut."""

from __future__ import annotations

import pytest

from gateway.core.errors import TryAgain
from gateway.core.names import RECORD_KEY
from gateway.service.listings import keys_after, listed, record_versions
from gateway.upstream.base import EMPTY_SHA256, UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse


class Script:
    """Answers reads with what stands in a script, by query."""

    def __init__(self, **answers: bytes | int) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        self.asked.append(request.raw_query)
        answer = self.answers[request.raw_query]
        if answer == 0:
            raise UpstreamLost("connection reset")
        return MemoryResponse(answer, [], b"") if isinstance(answer, int) else MemoryResponse(200, [], answer)


def page(*keys: str, prefixes: tuple[str, ...] = (), more: str = "") -> bytes:
    body = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
    body += "".join(f"<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>" for prefix in prefixes)
    flag = str(bool(more)).lower()
    return f"<ListBucketResult><IsTruncated>{flag}</IsTruncated>{more}{body}</ListBucketResult>".encode()


def request(query: str) -> UpstreamRequest:
    return UpstreamRequest("GET", "b", "", query, (), EMPTY_SHA256)


UNDER = "encoding-type=url&list-type=2&max-keys=2&prefix=.fencing-"


async def test_a_common_prefix_that_holds_the_record_alone_is_hidden() -> None:
    """The store is asked once what lies under it."""
    found = page("a", prefixes=(".fencing-", "b-"))
    script = Script(**{"delimiter=-": found, UNDER: page(RECORD_KEY)})
    result = await listed(script, request("delimiter=-"))  # type: ignore[arg-type]
    assert result.body == page("a", prefixes=("b-",))
    assert len(script.asked) == 2


async def test_a_common_prefix_that_holds_more_is_shown() -> None:
    """It would be missed."""
    found = page("a", prefixes=(".fencing-", "b-"))
    script = Script(**{"delimiter=-": found, UNDER: page(RECORD_KEY, ".fencing-posts")})
    assert (await listed(script, request("delimiter=-"))).body == found  # type: ignore[arg-type]


async def test_a_delimiter_costs_nothing_where_the_prefix_is_not_there() -> None:
    """Only what is found is looked under."""
    script = Script(**{"delimiter=-": page("a", prefixes=("b-",))})
    await listed(script, request("delimiter=-"))  # type: ignore[arg-type]
    assert script.asked == ["delimiter=-"]


async def test_an_empty_page_is_skipped() -> None:
    """The answer is the next page's, as if it had been asked for; an error there is the answer."""
    first = page(RECORD_KEY, more="<NextMarker>m</NextMarker>")
    second = page("a", more="<Marker>m</Marker>")
    script = Script(**{"max-keys=1": first, "max-keys=1&marker=m": second})
    assert (await listed(script, request("max-keys=1"))).body == page("a", more=" ").replace(b" ", b"")  # type: ignore[arg-type]
    script = Script(**{"max-keys=1": first, "max-keys=1&marker=m": 404})
    assert (await listed(script, request("max-keys=1"))).status == 404  # type: ignore[arg-type]


async def test_what_cannot_be_listed_is_no_empty_bucket() -> None:
    """A refusal, and an answer that was lost, are the store's unavailability to who has to know."""
    everything = "encoding-type=url&list-type=2&max-keys=9"
    for answer in (403, 500, 0):
        script = Script(**{everything: answer})
        with pytest.raises(TryAgain):
            await keys_after(script, "b", "", "", 9)  # type: ignore[arg-type]
    script = Script(**{f"prefix={RECORD_KEY}&versions=": 501})
    assert await record_versions(script, "b") == []  # type: ignore[arg-type]
