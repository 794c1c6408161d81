"""`trace`: what happens to a job or a request, line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.cli.test_fence import fenced
from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, before, environment


def refused(gateway: GatewayProcess, bucket: str, key: str, token: int) -> str:
    """Write under a token that is too low; answers the request's id."""
    with pytest.raises(ClientError) as caught:
        gateway.s3.put_object(Bucket=bucket, Key="traced", Body=b"x", Metadata=fenced(key, token))
    return str(caught.value.response["ResponseMetadata"]["RequestId"])


def started(gateway: GatewayProcess, *options: str) -> subprocess.Popen[str]:
    """A `trace` that nobody reads yet."""
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "trace", *options],
        env=environment(FENCING_GATEWAY_URL=gateway.control_url, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def following(gateway: GatewayProcess, *options: str) -> Iterator[Iterator[str]]:
    """The lines of a `trace` as they come; Ctrl-C has to end it with status 0."""
    child = started(gateway, *options)
    try:
        assert child.stdout is not None
        yield child.stdout
        child.send_signal(2)
        assert child.wait(10) == 0, child.stderr.read() if child.stderr else ""
    finally:
        child.kill()
        child.communicate()


def test_a_request_id_leads_to_its_line(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """What a client was shown is enough: who, what, which token met which floor."""
    gateway.raise_floor(key, 34)
    request_id = refused(gateway, bucket, key, 33)
    (line,) = gateway.ask("trace", "--request", request_id, "--for", "0").stdout.splitlines()
    assert re.fullmatch(
        rf"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}  refused +33, floor 34 +412 +"
        rf"StaleToken: PutObject {bucket}/traced, key {re.escape(key)}, "
        rf"{gateway.credentials.access_key} from 127\.0\.0\.1  {request_id}",
        line,
    )
    told = gateway.ask("trace", "--request", request_id, "--for", "0", "--json").stdout
    assert json.loads(told)["reason"] == "StaleToken"
    never = gateway.ask("trace", "--request", "NEVER", "--for", "0")
    assert (never.exit_code, never.stdout) == (0, "")
    assert "last 1000 requests" in never.stderr


def test_lines_of_all_keys_say_whose_they_are(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """Who follows all finds the key to look up in each line, a lease's too; who follows one is not told it again."""
    gateway.s3.put_object(Bucket=bucket, Key="traced", Body=b"x", Metadata=fenced(key, 1))
    assert f"key {key}" not in gateway.ask("trace", "--key", key, "--for", "0").stdout
    with following(gateway) as lines:
        assert f"PutObject {bucket}/traced, key {key}, " in next(line for line in lines if key in line)
        gateway.ask("lease", "acquire", key, "--holder", "host-7")
        granted = next(line for line in lines if "lease-granted" in line)
    assert granted.rstrip().endswith(f"key {key}, holder host-7")


def test_what_is_of_no_bucket_is_told_without_a_place(gateway: GatewayProcess) -> None:
    """A list of the buckets names none."""
    request_id = gateway.s3.list_buckets()["ResponseMetadata"]["RequestId"]
    told = gateway.ask("trace", "--request", request_id, "--for", "0").stdout
    assert f"  ListBuckets, {gateway.credentials.access_key} from 127.0.0.1  " in told


def test_a_key_is_followed_until_one_has_seen_enough(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """Each line comes as it happens, also the operator's doings; Ctrl-C ends it with status 0."""
    with following(gateway, "--key", key, "--json") as lines:
        gateway.raise_floor(key, 34)  # told live, or as what has been before: no event says when it follows
        gateway.s3.put_object(Bucket=bucket, Key="traced", Body=b"x", Metadata=fenced(key, 35))
        while (line := json.loads(next(lines)))["source"] != "log" or line["event"] != "request":
            pass
        assert (line["fence_key"], line["token"], line["decision"]) == (key, 35, "admitted")
        gateway.raise_floor(key, 36)
        seen: list[dict[str, object]] = []
        while not seen or seen[-1].get("kind") != "raised" or seen[-1]["token"] != 36:
            seen.append(json.loads(next(lines)))
        assert "operator-raises" in [line.get("event") for line in seen]


def test_a_gateway_that_stops_ends_it_with_a_word(tmp_path: Path, store_server: StoreServer) -> None:
    """Who watches a restart is told that nothing more comes, and so is a script that wanted to see more seconds."""
    with GatewayProcess(tmp_path, **before(store_server)) as gateway:
        gateway.s3.list_buckets()
        children = [started(gateway), started(gateway, "--for", "600")]
        for child in children:
            assert child.stdout is not None
            assert next(line for line in child.stdout if "ListBuckets" in line)
        assert gateway.stop() == 0
        for child in children:
            _, told = child.communicate(timeout=30)
            assert (child.returncode, told) == (
                3,
                f"fencing-gateway: the gateway at {gateway.control_url} follows no further: "
                "it stops, or has for a day\n",
            )
