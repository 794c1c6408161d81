"""A gateway and a receiver, two processes that are killed, stopped and started: nothing is lost, each key in order."""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.end_to_end.receiver import Receiver
from tests.gateway_process import GatewayProcess

NOWHERE = {"FENCING_GATEWAY_UPSTREAM__URL": "http://127.0.0.1:1"}
"""What is announced here needs no object store."""
SOON_SETTLED = ("fencing.settle_timeout_s=3", "fencing.settle_timeout_assembly_s=3")
"""After a crash nobody waits longer for what the gateway may have sent."""


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, Receiver]]:
    """A gateway and its receiver; each test has a key of its own."""
    directory = tmp_path_factory.mktemp("side-by-side")
    with (
        Receiver(directory / "receiver") as receiver,
        GatewayProcess(directory, configuration=receiver.settings(timeout_s="2"), **NOWHERE) as gateway,
    ):
        yield gateway, receiver


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "receiver") as receiver:
        yield receiver


def ids(*tokens: int, key: str = "job") -> list[str]:
    return [f"handed_over:{key}:{token}" for token in tokens]


def standing(gateway: GatewayProcess) -> dict[str, object]:
    with urllib.request.urlopen(gateway.control_url + "/v1/webhooks", timeout=10) as answer:
        (webhook,) = json.load(answer)["webhooks"]
    return webhook


def test_an_announcement_is_a_cloud_event(side_by_side: tuple[GatewayProcess, Receiver]) -> None:
    """The SDK of those who receive CloudEvents reads it as it came, and finds its attributes and data."""
    gateway, receiver = side_by_side
    gateway.raise_floor("renders/job 1", 34)
    receiver.until(lambda it: it.taken)
    attempt = receiver.attempts[-1]
    headers = {name.lower(): value for name, value in attempt["headers"].items()}
    message = HTTPMessage(headers, json.dumps(attempt["told"]).encode())
    event = from_structured(message, JSONFormat(), CloudEvent)
    assert event.get_type() == "fencing.handed_over"
    assert event.get_id() == headers["webhook-id"] == "handed_over:renders/job%201:34"
    assert event.get_subject() == "renders/job 1"
    assert event.get_source().startswith("urn:fencing-gateway:")
    assert event.get_time() is not None
    assert event.get_data()["token"] == 34


def test_kill_9_between_commit_and_post(tmp_path: Path, receiver: Receiver) -> None:
    """What was acknowledged and not yet announced, or announced without an answer, is announced by the next run, under
    the same ids and in order."""
    receiver.feels("slow")
    gateway = GatewayProcess(tmp_path, configuration=receiver.settings(), **NOWHERE).start()
    gateway.raise_floor("job", 1, 2, 3)
    receiver.until(lambda it: it.attempts)
    gateway.kill()
    receiver.feels("200")
    with gateway:
        receiver.until(lambda it: len(it.taken) == 3)
        assert receiver.taken == ids(1, 2, 3)
        assert receiver.attempts[0]["id"] == ids(1)[0]
        assert receiver.attempts[0]["told"] == receiver.attempts[1]["told"]
        assert standing(gateway)["waiting"] == 0


def test_a_receiver_that_is_killed_and_comes_back(side_by_side: tuple[GatewayProcess, Receiver]) -> None:
    """While it is away floors rise as ever; once it is back it gets all."""
    gateway, receiver = side_by_side
    gateway.raise_floor("killed", 1)
    receiver.until(lambda it: ids(1, key="killed")[0] in it.taken)
    receiver.kill()
    gateway.raise_floor("killed", 2, 3)
    gateway.raise_floor("other", 1)
    assert standing(gateway)["waiting"] == 3
    receiver.start()
    receiver.until(lambda _: standing(gateway)["waiting"] == 0)
    assert [one for one in receiver.taken if ":killed:" in one] == ids(1, 2, 3, key="killed")
    assert standing(gateway)["last_error"] == f"no connection to 127.0.0.1:{receiver.port}: Connection refused"


def test_a_receiver_in_every_mood(side_by_side: tuple[GatewayProcess, Receiver]) -> None:
    """Errors, redirects, cut connections and silence have taken nothing: the same comes again, and nothing overtakes
    it."""
    gateway, receiver = side_by_side
    for token, mood in enumerate(("500", "302", "cut", "slow"), 1):
        receiver.feels(mood)
        gateway.raise_floor("moody", token)
        receiver.until(lambda it, mood=mood: mood in [one["mood"] for one in it.attempts])
        receiver.feels("200")
        receiver.until(lambda _: standing(gateway)["waiting"] == 0)
    assert [one for one in receiver.taken if ":moody:" in one] == ids(1, 2, 3, 4, key="moody")
    assert "/elsewhere" not in json.dumps(receiver.attempts)
    assert standing(gateway)["last_error"] == "it did not answer within 2 s"


def test_a_receiver_that_wants_no_more(tmp_path: Path, receiver: Receiver) -> None:
    """410 ends the posts, and is shown; the next start asks again. Nothing is lost meanwhile."""
    receiver.feels("410")
    gateway = GatewayProcess(tmp_path, configuration=receiver.settings(), **NOWHERE).start()
    gateway.raise_floor("job", 1)
    receiver.until(lambda _: standing(gateway)["state"] == "gone")
    gateway.raise_floor("other", 1)
    assert gateway.stop() == 0
    assert len(receiver.attempts) == 1
    receiver.feels("200")
    with gateway:
        receiver.until(lambda it: len(it.taken) == 2)


def test_status_shows_webhooks(side_by_side: tuple[GatewayProcess, Receiver]) -> None:
    """How many wait, and what the receiver last said, in `fencing-gateway status`."""
    gateway, receiver = side_by_side
    receiver.feels("507")
    gateway.raise_floor("status", 1)
    receiver.until(lambda _: standing(gateway)["last_error"] == "it answered 507")
    shown = gateway.ask("status").output
    assert "Webhook real" in shown
    assert "1 waiting since 20" in shown
    assert "it answered 507" in shown
    assert json.loads(gateway.ask("status", "--json").output)["webhooks"][0]["waiting"] == 1


@pytest.mark.parametrize("seed", range(2))
def test_kill_9_at_any_moment_under_load(tmp_path: Path, receiver: Receiver, seed: int) -> None:
    """Whatever was acknowledged is announced, to a receiver that fails every now and then: of each key all tokens, the
    first time each comes in order."""
    chance = random.Random(seed)
    gateway = GatewayProcess(tmp_path, configuration=receiver.settings(), **NOWHERE)
    acknowledged: dict[str, int] = {}

    def work(key: str, url: str) -> None:
        while True:
            token = acknowledged.get(key, 0) + 1
            body = json.dumps({"token": token, "reason": "a test"}).encode()
            try:
                urllib.request.urlopen(f"{url}/v1/fences/{key}/raise", body, timeout=10).close()
            except OSError:
                return
            acknowledged[key] = token

    for _ in range(2):
        gateway.start()
        workers = [threading.Thread(target=work, args=(f"job-{n}", gateway.control_url)) for n in range(4)]
        for worker in workers:
            worker.start()
        for mood in ("500", "200"):
            receiver.feels(mood)
            with suppress(TimeoutError):
                workers[0].join(chance.uniform(0.1, 0.4))
        gateway.kill()
        for worker in workers:
            worker.join()
    receiver.feels("200")
    with gateway:
        receiver.until(lambda _: standing(gateway)["waiting"] == 0)
    first = list(dict.fromkeys(receiver.taken))
    for key, highest in acknowledged.items():
        told = [one for one in first if f":{key}:" in one]
        assert told[:highest] == ids(*range(1, highest + 1), key=key)
        assert len(told) <= highest + 2, "at most what was under way at each kill"


# --- what becomes of jobs


def call(gateway: GatewayProcess, path: str, **body: object) -> tuple[int, dict[str, object]]:
    """Status and document; 0 where the connection broke."""
    try:
        with urllib.request.urlopen(f"{gateway.control_url}/v1/{path}", json.dumps(body).encode(), 30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


def received(gateway: GatewayProcess, holder: str, visibility_s: float) -> int:
    """The token of the delivery of the queue's only job."""
    status, told = call(gateway, "queues/q/receive", holder=holder, visibility_s=visibility_s, wait_s=20)
    assert status == 200, told
    (job,) = told["jobs"]
    return job["token"]


def test_one_announcement_however_many_workers_believe_that_they_did_it(
    side_by_side: tuple[GatewayProcess, Receiver],
) -> None:
    """One worker was replaced and does not know it; both complete the job at once, and again: there is one completion,
    and one announcement of it, by the token that holds the job. Each delivery was announced before."""
    gateway, receiver = side_by_side
    receiver.feels("200")
    assert call(gateway, "queues/q/jobs", key="believed")[0] == 201
    stale, holder = received(gateway, "a", 1), received(gateway, "b", 60)
    answers: list[tuple[int, int]] = []

    def complete(token: int) -> None:
        answers.append((token, call(gateway, "jobs/believed/complete", token=token)[0]))

    workers = [threading.Thread(target=complete, args=(token,)) for token in (stale, holder) * 5]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {status for token, status in answers if token == holder} == {200}
    assert {status for token, status in answers if token == stale} <= {409, 412}
    receiver.until(lambda _: standing(gateway)["waiting"] == 0)
    told = [one for one in receiver.taken if ":believed:" in one]
    assert told == [*ids(stale, holder, key="believed"), f"completed:believed:{holder}"]


def test_a_dead_job_is_announced(side_by_side: tuple[GatewayProcess, Receiver]) -> None:
    """Once no attempt is left, with the token of the last."""
    gateway, receiver = side_by_side
    receiver.feels("200")
    assert call(gateway, "queues/q/jobs", key="dead")[0] == 201
    token = received(gateway, "a", 60)
    assert call(gateway, "jobs/dead/fail", token=token, error="no such scene", retry=False)[0] == 200
    receiver.until(lambda it: f"dead_lettered:dead:{token}" in it.taken)
    (told,) = [one["told"] for one in receiver.attempts if one["id"] == f"dead_lettered:dead:{token}"]
    assert "no such scene" in told["data"]["detail"]


@pytest.mark.parametrize("seed", range(2))
def test_kill_9_while_a_job_is_completed(tmp_path: Path, receiver: Receiver, seed: int) -> None:
    """Before, within or after the transaction: once the completion is answered it has been, or will be, announced, and
    never under a second id."""
    chance = random.Random(seed)
    configuration = receiver.settings(events='["fencing.completed"]')
    gateway = GatewayProcess(tmp_path, *SOON_SETTLED, configuration=configuration, **NOWHERE)
    gateway.start()
    assert call(gateway, "queues/q/jobs", key="job")[0] == 201
    token = received(gateway, "a", 60)
    worker = threading.Thread(target=call, args=(gateway, "jobs/job/complete"), kwargs={"token": token})
    worker.start()
    worker.join(chance.uniform(0, 0.03))
    gateway.kill()
    worker.join()
    with gateway:
        assert call(gateway, "jobs/job/complete", token=token)[0] == 200
        receiver.until(lambda _: standing(gateway)["waiting"] == 0)
    assert set(receiver.taken) == {f"completed:job:{token}"}
