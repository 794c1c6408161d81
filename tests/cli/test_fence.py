"""`fence` and `status` against a running gateway: what they tell, what they do, how they exit."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError

from gateway.s3.sigv4 import Credentials
from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, Target, before


def fenced(key: str, token: int) -> dict[str, str]:
    """The metadata of a write under the fence."""
    return {"fencing-key": quote(key), "fencing-token": str(token)}


def refuse(gateway: GatewayProcess, bucket: str, key: str, token: int) -> None:
    """Have a write refused."""
    with pytest.raises(ClientError):
        gateway.s3.put_object(Bucket=bucket, Key="out.mp4", Body=b"late", Metadata=fenced(key, token))


def flush(gateway: GatewayProcess) -> None:
    """Refusals enter the history lazily, with the next commit at the latest: make one."""
    gateway.raise_floor(f"flush-{secrets.token_hex(4)}", 1)


# --- what they tell


def test_show_of_a_key_that_nobody_has_used(gateway: GatewayProcess, key: str) -> None:
    """An unknown key is no error: it has no floor, and everything passes."""
    result = gateway.ask("fence", "show", key)
    assert result.exit_code == 0
    assert "no token has been seen" in result.stdout
    assert "Nothing is unsettled" in result.stdout


def test_show_tells_the_floor_and_what_it_means(gateway: GatewayProcess, key: str) -> None:
    """Floor and seal are shown with what they are to the next writer."""
    gateway.raise_floor(key, 34)
    shown = gateway.ask("fence", "show", key).stdout
    assert re.search(rf"^Key +{re.escape(key)}$", shown, re.MULTILINE)
    assert re.search(r"^Floor +34, raised 20\d\d-\d\d-\d\d ", shown, re.MULTILINE)
    assert re.search(r"^Sealed +no$", shown, re.MULTILINE)
    assert "tokens below 34 are refused" in shown
    assert gateway.ask("fence", "seal", key, "--reason", "given up").exit_code == 0
    shown = gateway.ask("fence", "show", key).stdout
    assert re.search(r"^Sealed +yes$", shown, re.MULTILINE)
    assert "token 34 and all below are refused" in shown


def test_show_names_the_holder_of_a_lease(gateway: GatewayProcess, key: str) -> None:
    """And how long he holds it; without a lease there is no such line."""
    assert "Held by" not in gateway.ask("fence", "show", key).stdout
    result = gateway.ask("lease", "acquire", key, "--ttl", "600", "--holder", "host-7")
    assert result.exit_code == 0, result.output
    shown = gateway.ask("fence", "show", key).stdout
    assert re.search(r"^Held by +host-7: (599|600) s more, unless it is renewed$", shown, re.MULTILINE)


def test_show_as_json_is_the_api_s_own(gateway: GatewayProcess, key: str) -> None:
    """Programs get the members of the API, a huge token as a string."""
    gateway.raise_floor(key, 2**63 - 1)
    told = json.loads(gateway.ask("fence", "show", key, "--json").stdout)
    assert told["key"] == key
    assert told["floor"] == "9223372036854775807"
    assert told["unsettled"] == []
    assert told.keys() == {
        "key",
        "floor",
        "completed_floor",
        "sealed",
        "shadow_floor",
        "raised_at",
        "holder",
        "lease",
    } | {*("open_uploads", "unsettled", "handover", "earlier_run_settles_in_s")}


def test_events_answer_why_a_write_was_refused(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """The history, newest first, tells of a refusal when, which token, which floor, which object and which request, and
    below it who raised the floor and why."""
    gateway.raise_floor(key, 33, 34)
    refuse(gateway, bucket, key, 33)
    flush(gateway)
    result = gateway.ask("fence", "events", key)
    head, refused, second, first = result.stdout.splitlines()
    assert head.split() == ["AT", "(UTC)", "WHAT", "TOKEN", "WHY", "REQUEST"]
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  refused  33, floor 34 ", refused)
    request_id = refused.split()[-1]
    assert f"StaleToken: PutObject {bucket}/out.mp4" in refused
    assert request_id in gateway.log()
    assert "33 -> 34" in second
    assert "operator: a test" in second
    assert "0 -> 33" in first


def test_events_are_cut_at_the_limit_and_say_so(gateway: GatewayProcess, key: str) -> None:
    """`--limit` takes the newest; that older ones are left out is said, and JSON has the cursor."""
    gateway.raise_floor(key, 1, 2, 3)
    result = gateway.ask("fence", "events", key, "--limit", "2")
    assert [line.split("->")[1].split()[0] for line in result.stdout.splitlines()[1:]] == ["3", "2"]
    assert "older" in result.stderr
    told = json.loads(gateway.ask("fence", "events", key, "--limit", "2", "--json").stdout)
    assert [event["token"] for event in told["events"]] == [3, 2]
    assert told["next"] is not None


def test_list_goes_through_all_pages(gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """More keys than a page holds are all listed, in order, once; `--limit` cuts and says so."""
    prefix = f"listed-{secrets.token_hex(4)}/"
    for n in range(5):
        gateway.raise_floor(f"{prefix}{n}", n + 1)
    monkeypatch.setattr("gateway.cli.control_client.MAX_PAGE", 2)
    listed = gateway.ask("fence", "list", "--prefix", prefix).stdout.splitlines()
    assert listed[0].split()[:2] == ["KEY", "FLOOR"]
    assert [line.split()[:2] for line in listed[1:]] == [[f"{prefix}{n}", str(n + 1)] for n in range(5)]
    told = json.loads(gateway.ask("fence", "list", "--prefix", prefix, "--json").stdout)
    assert [fence["key"] for fence in told["fences"]] == [f"{prefix}{n}" for n in range(5)]
    assert told["next"] is None
    cut = gateway.ask("fence", "list", "--prefix", prefix, "--limit", "3")
    assert len(cut.stdout.splitlines()) == 4
    assert "more" in cut.stderr


def test_what_a_writer_named_an_object_steers_no_terminal(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """Control characters in an object's name are shown, not sent to the terminal."""
    gateway.raise_floor(key, 34)
    with pytest.raises(ClientError):
        gateway.s3.put_object(Bucket=bucket, Key="\x1b[2Jgone", Body=b"", Metadata=fenced(key, 33))
    flush(gateway)
    told = gateway.ask("fence", "events", key).stdout
    assert "\x1b" not in told
    assert r"\x1b[2Jgone" in told


def test_a_key_without_history_says_which_key_that_may_be(gateway: GatewayProcess, key: str) -> None:
    """Nothing to tell is no error; how an object's own key is written is said, and JSON stays the API's."""
    result = gateway.ask("fence", "events", key)
    assert result.exit_code == 0
    assert "has no history" in result.stdout
    assert "object:BUCKET/KEY" in result.stdout
    assert json.loads(gateway.ask("fence", "events", key, "--json").stdout) == {"events": [], "next": None}


def test_a_floor_under_an_observing_rule_is_not_told_as_if_it_refused(observing: GatewayProcess, bucket: str) -> None:
    """A raised floor refuses nothing there: whoever raises it or looks at it is told that the mode decides."""
    observing.s3.put_object(Bucket=bucket, Key="job-2/o", Body=b"x", Metadata={"fencing-token": "5"})
    flush(observing)
    raised = observing.ask("fence", "raise", "job-2", "10", "--reason", "test").stdout
    observing.s3.put_object(Bucket=bucket, Key="job-2/o", Body=b"x", Metadata={"fencing-token": "6"})
    assert "takes effect any more, where a rule enforces; mode observe refuses nothing" in raised
    shown = observing.ask("fence", "show", "job-2").stdout
    assert re.search(r"^Meaning +tokens below 10 .*, where a rule enforces; mode observe refuses nothing$", shown, re.M)


def test_an_observed_key_is_told_as_such(observing: GatewayProcess, bucket: str) -> None:
    """Mode observe: `list` has the shadow floors, `show` says that nothing is refused, `status` counts what would have
    been beside what was."""
    for token in ("34", "33"):
        observing.s3.put_object(Bucket=bucket, Key="job-1/o", Body=b"x", Metadata={"fencing-token": token})
    flush(observing)
    shown = observing.ask("fence", "show", "job-1").stdout
    assert re.search(r"^Shadow floor +34 ", shown, re.MULTILINE)
    assert re.search(r"^Meaning +observed, nothing is refused; enforced, tokens below 34 ", shown, re.MULTILINE)
    head, flushed, job = observing.ask("fence", "list").stdout.splitlines()
    assert "SHADOW FLOOR" in head
    assert (flushed.split()[1], flushed.split()[4]) == ("1", "0")
    assert job.split() == ["job-1", "0", "0", "no", "34", "never"]
    assert "SHADOW" not in observing.ask("fence", "list", "--prefix", "flush").stdout
    assert json.loads(observing.ask("status", "--json").stdout)["would_refuse"] == {"StaleToken": 1}
    told = observing.ask("status").stdout
    assert re.search(r"^Refused since the start +nothing$", told, re.MULTILINE)
    assert re.search(r"^Mode observe would have refused +StaleToken 1$", told, re.MULTILINE)


@pytest.fixture
def observing(store_server: StoreServer, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that observes every object, under its first path segment."""
    settings = '[[rule]]\nmatch = "{job}/**"\nkey = "{job}"\nmode = "observe"\n'
    child = GatewayProcess(tmp_path, configuration=settings, **before(store_server)).start()
    yield child
    child.kill()


def test_after_an_unclean_start_show_says_until_when(store_server: StoreServer, tmp_path: Path) -> None:
    """What a killed run sent may still land: `show` says for how long, and not that nothing is unsettled."""
    sentence = "What an earlier run of the gateway sent may still land for "
    first = GatewayProcess(tmp_path, **before(store_server)).start()
    try:
        assert sentence not in first.ask("fence", "show", "job-1").stdout
    finally:
        first.kill()
    second = GatewayProcess(tmp_path, **before(store_server)).start()
    try:
        shown = second.ask("fence", "show", "job-1").stdout
    finally:
        second.kill()
    assert re.search(rf"^{sentence}(2\d|30) s: tokens above the completed floor wait$", shown, re.MULTILINE)
    assert "Nothing is unsettled" not in shown


# --- what they do


def test_raise_and_seal_shut_tokens_out(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """After `raise` a lower token is refused and the same one passes; after `seal` that one is refused, too."""

    def put(token: int) -> str:
        try:
            gateway.s3.put_object(Bucket=bucket, Key="o", Body=b"x", Metadata=fenced(key, token))
        except ClientError as error:
            return str(error.response["Error"]["FencingReason"])
        return "OK"

    gateway.raise_floor(key, 34)
    assert (put(33), put(34)) == ("StaleToken", "OK")
    other = gateway.ask("fence", "seal", key, "--token", "33", "--reason", "given up")
    assert (other.exit_code, other.stderr.count("nothing was sealed")) == (1, 1)
    assert gateway.ask("fence", "seal", key, "--token", "34", "--reason", "given up").exit_code == 0
    assert (put(34), put(35)) == ("Sealed", "OK")


def test_raise_below_the_floor_is_refused(gateway: GatewayProcess, key: str) -> None:
    """A floor never falls: status 1, the message says what holds it, and JSON is the API's problem."""
    gateway.raise_floor(key, 34)
    result = gateway.ask("fence", "raise", key, "33", "--reason", "by mistake")
    assert result.exit_code == 1
    assert "is 34 already" in result.stderr
    result = gateway.ask("fence", "raise", key, "33", "--reason", "by mistake", "--json")
    assert result.exit_code == 1
    problem = json.loads(result.stdout)
    assert (problem["status"], problem["reason"], problem["floor"]) == (412, "stale", 34)


def test_seal_without_a_floor_is_refused(gateway: GatewayProcess, key: str) -> None:
    """There is no token to seal: status 1."""
    result = gateway.ask("fence", "seal", key, "--reason", "x")
    assert result.exit_code == 1
    assert "no floor" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("raise", "k", "34"),
        ("raise", "k", "0", "--reason", "x"),
        ("raise", "k", "034", "--reason", "x"),
        ("raise", "k", str(2**63), "--reason", "x"),
        ("seal", "k"),
        ("show",),
        ("list", "--limit", "0"),
        ("list", "--url", "file:///etc/passwd"),
        ("list", "--url", "127.0.0.1:8081"),
        ("list", "--token", "secret"),
    ],
)
def test_bad_usage_is_status_2(gateway: GatewayProcess, arguments: tuple[str, ...]) -> None:
    """What cannot be meant is told before anything is sent."""
    assert gateway.ask("fence", *arguments).exit_code == 2


# --- status, and what is unsettled


def test_status_tells_what_the_gateway_is_busy_with(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """A ready gateway is status 0, with its refusals counted by reason."""
    gateway.raise_floor(key, 34)
    before = json.loads(gateway.ask("status", "--json").stdout)
    refuse(gateway, bucket, key, 33)
    after = json.loads(gateway.ask("status", "--json").stdout)
    assert after["status"] == "ready"
    assert after["refusals"]["StaleToken"] == before["refusals"].get("StaleToken", 0) + 1
    assert (after["sends_unsettled"], after["sends_in_doubt"]) == (0, 0)
    told = gateway.ask("status")
    assert told.exit_code == 0
    assert re.search(r"^Status +ready$", told.stdout, re.MULTILINE)
    assert f"StaleToken {after['refusals']['StaleToken']}" in told.stdout


class Silent(BaseHTTPRequestHandler):
    """An upstream that holds nothing, and answers no write."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def do_PUT(self) -> None:
        self.rfile.read()  # up to the reset

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()


@pytest.fixture
def silent_upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(5)


def test_a_send_in_doubt_is_shown_and_holds_the_hand_over(silent_upstream: str, tmp_path: Path) -> None:
    """`show` names the send in doubt and until when; a raise that has to wait for it is status 3 and says so."""
    child = GatewayProcess(
        tmp_path,
        "upstream.conditional=off",
        "upstream.silence_timeout_s=0.2",
        "fencing.commit_timeout_s=0.2",
        "fencing.handover_wait_s=0.2",
        **before(Target(silent_upstream, Credentials("access", "secret"))),
    ).start()
    try:
        with pytest.raises(ClientError) as lost:
            child.s3.put_object(Bucket="b", Key="out.mp4", Body=b"x", Metadata=fenced("job-1", 33))
        assert lost.value.response["Error"]["FencingReason"] == "InDoubt"
        shown = child.ask("fence", "show", "job-1").stdout.splitlines()
        assert re.match(r"33 +in-doubt +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, in (2\d|30) s +b/out\.mp4 +\S+$", shown[-1])
        waiting = child.ask("fence", "raise", "job-1", "34", "--reason", "A is gone")
        assert waiting.exit_code == 3
        assert "503" in waiting.stderr
        assert "token 33 on b/out.mp4, in-doubt" in waiting.stderr
        shown = child.ask("fence", "show", "job-1").stdout
        assert "not recorded as complete" in shown
        assert re.search(
            r"^The hand-over to token 34 waits since 20.* for 1 send of a lower token, until 20.* at the latest, "
            r"in (2\d|30) s; 0 requests wait for it now\.$",
            shown,
            re.MULTILINE,
        )
        assert re.search(r"^Hand-overs waiting +1, the longest for \d+ s$", child.ask("status").stdout, re.MULTILINE)
        events = [e["kind"] for e in json.loads(child.ask("fence", "events", "job-1", "--json").stdout)["events"]]
        assert events[0] == "raised"
        assert "in-doubt" in events
        settled = child.ask("fence", "settle", "job-1", "--reason", "the store was wiped")
        assert (settled.exit_code, settled.stdout) == (0, "Settled: token 33 on b/out.mp4.\n")
        again = child.ask("fence", "settle", "job-1", "--reason", "the store was wiped")
        assert (again.exit_code, again.stdout) == (0, "Nothing was in doubt; nothing has been changed.\n")
        assert child.ask("fence", "raise", "job-1", "34", "--reason", "A is gone").exit_code == 0
        told = json.loads(child.ask("fence", "events", "job-1", "--json").stdout)["events"]
        assert ("settled-by-operator", 33, "b/out.mp4: the store was wiped") in [
            (e["kind"], e["token"], e["detail"]) for e in told
        ]
        lines = [json.loads(line) for line in child.log().splitlines()]
        assert {"in-doubt", "handover-waits", "settled-by-operator", "operator-raises"} <= {e["event"] for e in lines}
    finally:
        child.kill()
