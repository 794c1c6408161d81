"""What holds for every client: with a token, with a lower one, without; refused, told to come again, unfenced."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.s3.sigv4 import Credentials
from tests.clients.browser import Browser
from tests.clients.drivers import Driver, Failed
from tests.clients.gateway import BUCKET, LENIENT, LIMITED, STRICT, WatchedGateway
from tests.clients.libraries import Aiobotocore, Boto3, MinioPy, S3fs, SmartOpen
from tests.clients.programs import (
    AwsCli,
    ClientS3,
    Curl,
    LibStorage,
    OldAiobotocore,
    OldBoto3,
    Rclone,
    S3cmd,
    S5cmd,
)

PROGRAMS = (OldBoto3, OldAiobotocore, AwsCli, Rclone, S3cmd, S5cmd, Curl, ClientS3, LibStorage, Browser)
CLIENTS = [
    *(pytest.param(one, id=one.__name__) for one in (Boto3, Aiobotocore, MinioPy, S3fs, SmartOpen)),
    *(pytest.param(one, id=one.__name__, marks=pytest.mark.services) for one in PROGRAMS),
]
every_client = pytest.mark.parametrize("client", CLIENTS)
ODD_NAMES = [
    "a b + c/100% %41%2F", "ü/日本 &<c>\"q\"?x=1#y", "'quoted'~ a:b;c=d,e@f", "star*[x]{y} $a!(b) end ", "back\\slash",
]  # fmt: skip


def driver(client: type[Any], gateway: WatchedGateway, home: Path) -> Driver:
    """The client at the gateway, under the credentials that its way of saying a token needs."""
    return client(gateway.target(LENIENT if client is Rclone else STRICT), home)  # type: ignore[no-any-return]


def new_job() -> str:
    return f"job-{secrets.token_hex(4)}"


def raise_floor(s3: Any, job: str, token: int = 34) -> None:
    s3.put_object(Bucket=BUCKET, Key=f"renders/{job}/floor", Body=b"", Metadata={"fencing-token": str(token)})


def content(s3: Any, key: str) -> bytes | None:
    try:
        return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    except s3.exceptions.NoSuchKey:
        return None


def shown_token(s3: Any, key: str) -> str | None:
    head = s3.head_object(Bucket=BUCKET, Key=key)
    token = head["ResponseMetadata"]["HTTPHeaders"].get("x-fencing-object-token")
    return None if token is None else str(token)


@every_client
def test_a_token_goes_along(
    client: type[Any], gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """What the client uploads, copies and deletes with a token is admitted under that token, and reads back."""
    calls, place = driver(client, gateway, tmp_path), f"renders/{new_job()}"
    (tmp_path / "empty").write_bytes(b"")
    calls.upload(tmp_path / "empty", f"{place}/empty", "34")
    assert content(s3, f"{place}/empty") == b""
    assert shown_token(s3, f"{place}/empty") == "34"
    odd = f"{place}/a b + 100% %41 ü&<'c>"
    calls.upload(small_file, odd, "34")
    assert shown_token(s3, odd) == "34"
    calls.download(odd, tmp_path / "received")
    assert (tmp_path / "received").read_bytes() == small_file.read_bytes()
    if "copy" in calls.tells_token_on:
        # s5cmd names a copy's source with a plus for each space.
        calls.copy(f"{place}/empty" if client is S5cmd else odd, f"{place}/b", "35")
        assert content(s3, f"{place}/b") == (b"" if client is S5cmd else small_file.read_bytes())
        assert shown_token(s3, f"{place}/b") == "35"
    if "delete" in calls.tells_token_on:
        calls.delete(odd, "36")
        assert content(s3, odd) is None


@every_client
def test_a_lower_token_is_refused(
    client: type[Any], gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """The user is told who holds the job and what to do, and nothing has changed."""
    calls, job = driver(client, gateway, tmp_path), new_job()
    place = f"renders/{job}/a"
    s3.put_object(Bucket=BUCKET, Key=place, Body=b"of token 34", Metadata={"fencing-token": "34"})
    attempts: list[Callable[[], None]] = [lambda: calls.upload(small_file, place, "33")]
    if "copy" in calls.tells_token_on:
        s3.put_object(Bucket=BUCKET, Key="source", Body=b"another")
        attempts.append(lambda: calls.copy("source", place, "33"))
    if "delete" in calls.tells_token_on:
        attempts.append(lambda: calls.delete(place, "33"))
    for attempt in attempts:
        with pytest.raises(Failed) as caught:
            attempt()
        assert f"Token 33 is stale: token 34 now holds '{job}'." in caught.value.text
        assert "do not retry with this token" in caught.value.text
        assert caught.value.exit_status != 0
        assert content(s3, place) == b"of token 34"


@every_client
def test_what_cannot_say_a_token_is_refused(
    client: type[Any], gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """Under a fence, a call that bears no token is refused and says so, and the object stays."""
    calls, job = driver(client, gateway, tmp_path), new_job()
    place = f"renders/{job}/floor"
    raise_floor(s3, job)
    attempts: list[Callable[[], None]] = [
        lambda: calls.upload(small_file, place),
        lambda: calls.copy("source", place),
        lambda: calls.delete(place),
    ]
    for attempt in attempts:
        s3.put_object(Bucket=BUCKET, Key="source", Body=b"another")
        with pytest.raises(Failed, match=f"'{job}' is fenced: token 34 holds it, and this write bears none"):
            attempt()
        assert content(s3, place) == b""


REFUSALS: dict[str, tuple[Credentials | None, str, str | None, str]] = {
    # credentials, prefix, token, what the user reads
    "412": (None, "renders", "33", "Token 33 is stale"),
    "428": (None, "masters", None, "need a fencing token"),
    "403": (LIMITED, "renders", "34", "may not write under the fencing key"),
    "400": (None, "renders", "034", "A fencing token is a whole number"),
}


@every_client
@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_final(
    client: type[Any], status: str, gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """The client asks once, and takes the answer for an answer."""
    credentials, prefix, token, message = REFUSALS[status]
    job = new_job()
    raise_floor(s3, job)
    calls = driver(client, gateway, tmp_path) if credentials is None else client(gateway.target(credentials), tmp_path)
    with gateway.recorded() as requests, pytest.raises(Failed) as caught:
        calls.upload(small_file, f"{prefix}/{job}/a", token)
    assert message in caught.value.text
    answers = Counter(line["status"] for line in requests if line["method"] in ("PUT", "POST"))
    del answers[409]  # rclone's CreateBucket
    # s3cmd takes any InvalidArgument for a server that knows only Signature V2, tries that, and comes back.
    assert answers == {int(status): 3 if client is S3cmd and status == "400" else 1}


# The others send all that is 5xx again, six times and for 45 s in s3cmd's case; a page may not even ask for this key.
@pytest.mark.parametrize("client", [one for one in CLIENTS if one.id not in ("Rclone", "S3cmd", "Browser")])
def test_what_is_not_implemented_is_final(
    client: type[Any], gateway: WatchedGateway, small_file: Path, tmp_path: Path
) -> None:
    """Told 501, the client asks once, though it is 5xx."""
    calls = driver(client, gateway, tmp_path)
    with gateway.recorded() as requests, pytest.raises(Failed, match="that the store keeps for itself"):
        calls.upload(small_file, f".uploads/{new_job()}/a", "34")
    assert Counter(line["status"] for line in requests if line["method"] in ("PUT", "POST")) == {501: 1}


@every_client
@pytest.mark.parametrize("reason", ["Overloaded", "StoreUnavailable"])
def test_come_again_is_heeded(
    client: type[Any], reason: str, gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """Told 503, by either of its codes, the client sends the same request again, and it passes once it can."""
    calls, place = driver(client, gateway, tmp_path), f"renders/{new_job()}/a"
    mark = len(gateway.lines)
    with ThreadPoolExecutor(1) as thread:
        with gateway.full() if reason == "Overloaded" else gateway.without_database():
            upload = thread.submit(calls.upload, small_file, place, "34")
            gateway.lines.wait(mark, lambda lines: any(line.get("reason") == reason for line in lines))
        upload.result(60)
    assert content(s3, place) == small_file.read_bytes()


@every_client
def test_unfenced_small_and_empty(client: type[Any], gateway: WatchedGateway, small_file: Path, tmp_path: Path) -> None:
    """Without any token the client writes, lists, copies, reads and deletes as at any S3 server."""
    calls, place = driver(client, gateway, tmp_path), f"plain/{new_job()}"
    (tmp_path / "empty").write_bytes(b"")
    calls.upload(small_file, f"{place}/small")
    calls.upload(tmp_path / "empty", f"{place}/empty")
    calls.copy(f"{place}/small", f"{place}/copy")
    assert calls.names(f"{place}/") == {f"{place}/small", f"{place}/empty", f"{place}/copy"}
    for name, sent in (("small", small_file), ("copy", small_file), ("empty", tmp_path / "empty")):
        calls.download(f"{place}/{name}", tmp_path / f"received-{name}")
        assert (tmp_path / f"received-{name}").read_bytes() == sent.read_bytes()
    for name in ("small", "empty", "copy"):
        calls.delete(f"{place}/{name}")
    assert calls.names(f"{place}/") == set()


@every_client
def test_large(client: type[Any], gateway: WatchedGateway, s3: Any, large_file: Path, tmp_path: Path) -> None:
    """100 MB go up in the client's own way, in parts where it makes parts, and come down unchanged; also fenced."""
    calls, received = driver(client, gateway, tmp_path), tmp_path / "received"
    for place, token in ((f"plain/{new_job()}/large", None), (f"renders/{new_job()}/large", "34")):
        calls.upload(large_file, place, token)
        calls.download(place, received)
        assert digest(received) == digest(large_file)
        assert shown_token(s3, place) == token
        received.unlink()


@every_client
def test_a_large_stale_upload_is_refused(
    client: type[Any], gateway: WatchedGateway, s3: Any, large_file: Path, tmp_path: Path
) -> None:
    """Refused while 100 MB are still to come, the client reads why, and no broken pipe; and it asks once."""
    calls, job = driver(client, gateway, tmp_path), new_job()
    raise_floor(s3, job)
    with gateway.recorded() as requests, pytest.raises(Failed, match="Token 33 is stale: token 34 now holds"):
        calls.upload(large_file, f"renders/{job}/large", "33")
    assert [line["status"] for line in requests if line["method"] in ("PUT", "POST") and line["status"] != 409] == [412]


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@every_client
def test_odd_names_as_at_the_store(
    client: type[Any], gateway: WatchedGateway, small_file: Path, tmp_path: Path
) -> None:
    """Names with spaces, signs, escapes and letters of any script behave as they do without a gateway."""
    through = outcomes(driver(client, gateway, tmp_path), small_file, tmp_path)
    assert through == outcomes(client(gateway.store, tmp_path), small_file, tmp_path)
    assert any(text == "comes back" for text in through.values())


def outcomes(calls: Driver, sent: Path, directory: Path) -> dict[str, object]:
    """What becomes of an object of each name: whether it comes back, can be copied and deleted, and what lists show."""
    place = f"odd/{secrets.token_hex(4)}"
    told: dict[str, object] = {name: fate(calls, place, name, sent, directory) for name in ODD_NAMES}
    told["listed"] = {found.removeprefix(place) for found in calls.names(f"{place}/")}
    for name in ODD_NAMES:
        with suppress(Failed):
            calls.delete(f"{place}/{name}")
    told["left"] = {found.removeprefix(place) for found in calls.names(f"{place}/")}
    return told


def fate(calls: Driver, place: str, name: str, sent: Path, directory: Path) -> str:
    received = directory / "received"
    received.unlink(missing_ok=True)
    try:
        calls.upload(sent, f"{place}/{name}")
        calls.copy(f"{place}/{name}", f"{place}/copy")
        calls.download(f"{place}/copy", received)
    except Failed as error:
        return f"failed: {error.exit_status}"
    return "comes back" if received.read_bytes() == sent.read_bytes() else "is another"
