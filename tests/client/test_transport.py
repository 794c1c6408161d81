"""One exchange with the control API: what each answer, and each lack of one, is turned into."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.client import LeaseHeld, Refused, SyncGatewayClient, Unreachable
from gateway.client.calls import Calls
from gateway.client.errors import Json
from gateway.client.transport import checked_api_token, checked_url
from tests.scripted import saying


def answer(status: str, body: bytes, *fields: str, length: int | None = None) -> bytes:
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body) if length is None else length}", *fields]
    return "\r\n".join([*head, "", ""]).encode() + body


@contextmanager
def answering(data: bytes) -> Iterator[SyncGatewayClient]:
    """A client of somebody who says just that to its first request."""
    with saying(data) as url, SyncGatewayClient(url, api_token="t", patience_s=0) as client:
        yield client


def asked(client: SyncGatewayClient) -> Json:
    return client.engine.background.call(client.engine.transport.json("GET", "/v1/leases"))


def test_a_problem_is_the_error_that_it_names() -> None:
    """Its reason makes the kind, its detail the message, its members what the error tells."""
    problem = b'{"status":409,"reason":"held","detail":"another holds it","holder":"me","expires_in_s":1.5}'
    with answering(answer("409 Conflict", problem)) as client, pytest.raises(LeaseHeld, match="another holds") as error:
        asked(client)
    assert (error.value.holder, error.value.expires_in_s, error.value.reason) == ("me", 1.5, "held")


def test_a_reason_of_a_later_gateway_is_a_refusal() -> None:
    """What this client does not know is refused all the same."""
    with (
        answering(answer("418 No", b'{"reason":"tea","detail":"no coffee"}')) as client,
        pytest.raises(Refused, match="no coffee") as error,
    ):
        asked(client)
    assert type(error.value) is Refused


def test_a_refused_token_says_where_it_came_from() -> None:
    """401 names the variable."""
    with (
        answering(answer("401 No", b'{"status":401,"reason":"unauthenticated","detail":"no"}')) as client,
        pytest.raises(Refused, match="FENCING_GATEWAY_API_TOKEN"),
    ):
        asked(client)


def test_a_gateway_that_cannot_now() -> None:
    """503 is to be asked again, when it says."""
    busy = answer("503 Later", b'{"reason":"HandoverPending","detail":"later"}', "retry-after: 7")
    with answering(busy) as client, pytest.raises(Unreachable, match="later") as error:
        asked(client)
    assert (error.value.retry_after_s, error.value.reason) == (7.0, "HandoverPending")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        answer("200 OK", b"<html>"),
        answer("200 OK", b"[1]"),
        answer("200 OK", b'{"a"', length=100),
        answer("302 Found", b"", "location: http://127.0.0.1:1/"),
        answer("404 Not Found", b"no"),
        answer("500 Oops", b'{"detail":"broken"}'),
        answer("503 Later", b"{}", "retry-after: Tue, 01 Jan 2030 00:00:00 GMT"),
    ],
)
def test_who_is_no_gateway(data: bytes) -> None:
    """Silence, another protocol, half an answer, a redirect, a fault: nobody knows what was done, and where is said."""
    with answering(data) as client, pytest.raises(Unreachable, match=r"127\.0\.0\.1:\d+") as error:
        asked(client)
    assert type(error.value) is Unreachable


@pytest.mark.parametrize(
    "call",
    [
        lambda calls: calls.acquire("k", "h", 1.0, 0.0, "once"),
        lambda calls: calls.renew("k", 1),
        lambda calls: calls.submit("q", "k", None, None, None, "once"),
        lambda calls: calls.receive("q", "h", None, 0.0, 1, "once"),
        lambda calls: calls.extend("k", 1),
        lambda calls: calls.complete("k", 1, None, ()),
        lambda calls: calls.job("k"),
    ],
)
@pytest.mark.parametrize("said", [b"{}", b'{"jobs":[{"token":"x"}],"expires_in_s":null,"token":"x","completion":7}'])
def test_json_of_somebody_else(call: Callable[[Calls], Coroutine[Any, Any, object]], said: bytes) -> None:
    """Another service has got the address since: nobody knows what was done, for every call."""
    with (
        answering(answer("200 OK", said)) as client,
        pytest.raises(Unreachable, match=r"127\.0\.0\.1:\d+ is not a gateway"),
    ):
        client.engine.background.call(call(client.engine.calls))


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1:{port}", "Connection refused"), ("nowhere.invalid:{port}", "[Nn]ame")]
)
def test_nobody_there_is_told_in_the_system_s_words(host: str, why: str) -> None:
    """Not in those of a library, which name no reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        url = f"http://{host.format(port=taken.getsockname()[1])}"
        with SyncGatewayClient(url, patience_s=0) as client, pytest.raises(Unreachable, match=f"{url}: .*{why}"):
            asked(client)


def test_an_answer_without_end_that_breaks_off() -> None:
    """What has come is given, and the end is told from a break."""
    with answering(answer("200 OK", b'{"n":1}\n{"n":2}\n', length=100)) as client:
        seen: list[Json] = []

        async def follow() -> None:
            async for line in client.engine.transport.lines("/v1/trace"):
                seen.append(line)

        with pytest.raises(Unreachable, match="has broken off"):
            client.engine.background.call(follow())
    assert seen == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://h", "http://", "http://h/v1", "http://h?x", "http://h#x", ""])
def test_what_is_no_address(url: str) -> None:
    """Told before anything is sent."""
    with pytest.raises(ValueError, match="http://host:port"):
        checked_url(url)


@pytest.mark.parametrize("host", ["a..b", "ä..b", "a" * 64])
def test_what_is_no_host(host: str) -> None:
    """A name that no resolver can be asked for."""
    with pytest.raises(ValueError, match="is no host's name"):
        checked_url(f"http://{host}:8081")


@pytest.mark.parametrize(
    "url", ["http://h:8081/", "http://h:8081?", "http://h:8081#", "HTTP://h:8081", "http://h:8081\n"]
)
def test_what_is_an_address(url: str) -> None:
    """What calls are appended to: nothing follows the port."""
    assert checked_url(url) == "http://h:8081"


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@h:8081", "http://secret@h", "http://me:se/cret@h:x", "http://me:secret@h/v1", "me:secret@h"],
)
def test_a_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    """It would come out with every error, and is no API token; the way of that is said."""
    with pytest.raises(ValueError, match="FENCING_GATEWAY_API_TOKEN") as error:
        checked_url(url)
    assert "cret" not in str(error.value)


def test_what_is_no_api_token() -> None:
    """A line's end is taken off; what no header can hold is refused."""
    assert checked_api_token("secret\n") == "secret"
    assert checked_api_token(" ") is None
    for token in ("ü", "a\nb"):
        with pytest.raises(ValueError, match="no API token"):
            checked_api_token(token)
