"""Unmodified tools, started by `fencing-gateway run`: they write fenced; frozen past their lease, they are refused."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.s3.sigv4 import Credentials
from tests.clients.drivers import environment
from tests.clients.gateway import BUCKET, WatchedGateway
from tests.clients.programs import AWS_CLI_2, HERE
from tests.clients.test_every_client import new_job, shown_token
from tests.conftest import REGION, s3_client
from tests.end_to_end.process import wait_until
from tests.gateway_process import ROOT, Target

pytestmark = pytest.mark.services
RULE = '[[rule]]\nmatch = "renders/{job}/**"\nkey = "{job}"\n'
BOUND_S = 90
PIECE = os.urandom(1 << 20)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedGateway]:
    """One client, the ready-made one, so that leases come with credentials."""
    with WatchedGateway(tmp_path_factory.mktemp("run"), RULE) as running:
        running.s3.create_bucket(Bucket=BUCKET)
        yield running


def aws(source: Path, key: str, _: str) -> str:
    return f"exec aws s3 cp --no-progress - s3://{BUCKET}/{key} < {source}"


def aws2(source: Path, key: str, _: str) -> str:
    return f"exec {AWS_CLI_2}/aws s3 cp --no-progress - s3://{BUCKET}/{key} < {source}"


def s5cmd(source: Path, key: str, _: str) -> str:
    return f"exec s5cmd pipe --part-size 8 s3://{BUCKET}/{key} < {source}"


def rclone(source: Path, key: str, _: str) -> str:
    return f"exec rclone rcat --retries 1 gateway:{BUCKET}/{key} < {source}"


def s3cmd(source: Path, key: str, host: str) -> str:
    where = f"--no-ssl --host={host} --host-bucket={host} --region={REGION} --no-progress"
    return f"exec s3cmd {where} put - s3://{BUCKET}/{key} < {source}"


def arrow(source: Path, key: str, _: str) -> str:
    call = json.dumps(["upload", str(source), key])
    return f"echo {shlex.quote(call)} | {ROOT}/.services/bin/python {HERE}/arrow.py {BUCKET}"


def node(source: Path, key: str, _: str) -> str:
    call = json.dumps(["upload with lib-storage", str(source), key])
    return f"echo {shlex.quote(call)} | node {HERE}/node/client.js {BUCKET}"


TOOLS = (aws, aws2, rclone, s3cmd, s5cmd, arrow, node)
SAY_NOTHING = (aws2, s5cmd)
"""AWS CLI 2 takes a 412 for an object that is there already, and for no failure; `s5cmd pipe` fails without a word."""
Tool = Callable[[Path, str, str], str]


@contextmanager
def under_a_lease(gateway: WatchedGateway, home: Path, job: str, script: str) -> Iterator[subprocess.Popen[str]]:
    """`fencing-gateway run` with the script, which writes its process group into `group`. Nothing of AWS is in its
    environment but the endpoint and the region."""
    environ = environment(Target(gateway.url, Credentials("", "")), home)
    environ = {name: value for name, value in environ.items() if not name.startswith(("AWS_ACCESS", "AWS_SECRET"))}
    program = [sys.executable, "-m", "gateway", "run", "--key", job, "--ttl", "4", "--grace", "1", "--"]
    run = subprocess.Popen(
        [*program, "sh", "-c", f"echo $$ > {home}/group; {script}"],
        cwd=home,
        env={**environ, "PYTHONPATH": str(ROOT), "FENCING_GATEWAY_URL": gateway.control_url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    bound = threading.Timer(BOUND_S, lambda: end(run, home))
    bound.start()
    try:
        yield run
    finally:
        bound.cancel()
        end(run, home)
        run.communicate()


def end(run: subprocess.Popen[str], home: Path) -> None:
    for pid in descendants(run.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(OSError, ValueError):
        os.killpg(int((home / "group").read_text()), signal.SIGKILL)
    run.kill()


def descendants(pid: int) -> list[int]:
    """All processes below that one, as /proc has them."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found, below = list[int](), [pid]
    while below:
        below = [child for child, parent in parents.items() if parent in below]
        found += below
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_writes_fenced(tool: Tool, gateway: WatchedGateway, tmp_path: Path) -> None:
    """Every part and the end under the lease's token; the job is completed, and a second run is not needed."""
    job, source = new_job(), tmp_path / "frames"
    source.write_bytes(PIECE * 20)
    place = f"renders/{job}/out"
    script = tool(source, place, urlsplit(gateway.url).netloc)
    with under_a_lease(gateway, tmp_path, job, script) as run:
        told, _ = run.communicate(timeout=BOUND_S)
    assert run.returncode == 0, told
    assert shown_token(gateway.s3, place) == "1"
    assert gateway.s3.head_object(Bucket=BUCKET, Key=place)["ContentLength"] == 20 << 20


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_was_frozen_is_refused(tool: Tool, gateway: WatchedGateway, tmp_path: Path) -> None:
    """Stopped in the midst of its upload, with all that could renew its lease or end it; another worker takes over and
    writes. Continued alone, the tool goes on and is refused; what is stored is the other's."""
    job, source = new_job(), tmp_path / "frames"
    os.mkfifo(source)
    place = f"renders/{job}/out"
    script = tool(source, place, urlsplit(gateway.url).netloc)
    mark = len(gateway.lines)
    with under_a_lease(gateway, tmp_path, job, script) as run:
        with suppress(BrokenPipeError), source.open("wb") as feed:
            for _ in range(40):
                feed.write(PIECE)
            gateway.lines.wait(mark, lambda lines: any(is_part(line, place) for line in lines))
            frozen = overtake(run, gateway, tmp_path, job, place)
            for _ in range(40):
                feed.write(PIECE)
        told = end_of(run, frozen, gateway, tmp_path, place)
    assert (f"Token 1 is stale: token 2 now holds '{job}'" in told) == (tool not in SAY_NOTHING), told


FRAMES = "plain/frames.mkv"
PRESIGN = """
import sys, boto3
from botocore.config import Config
s3 = boto3.client("s3", config=Config(signature_version="s3v4"))
print(s3.generate_presigned_url(sys.argv[1], {"Bucket": sys.argv[2], "Key": sys.argv[3]}))
"""


def encode_to(place: str, home: Path) -> str:
    """A script: ffmpeg encodes what a presigned URL reads; after a word in `gate` curl puts it to another URL."""
    (home / "presign.py").write_text(PRESIGN)
    presign = f"{sys.executable} presign.py"
    return f"""
        set -e
        ffmpeg -nostdin -loglevel error -i "$({presign} get_object {BUCKET} {FRAMES})" -c:v mpeg4 film.mkv
        url=$({presign} put_object {BUCKET} {place})
        read line < gate
        curl -sS --noproxy '*' --fail-with-body -T film.mkv "$url"
    """


@pytest.fixture(scope="module")
def frames(gateway: WatchedGateway, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A short film in the bucket, as `FRAMES`."""
    file = tmp_path_factory.mktemp("frames") / "frames.mkv"
    source = ("-f", "lavfi", "-i", "testsrc=duration=1:size=64x48:rate=10")
    subprocess.run(["ffmpeg", "-nostdin", "-loglevel", "error", *source, "-c:v", "ffv1", file], timeout=60, check=True)
    gateway.s3.put_object(Bucket=BUCKET, Key=FRAMES, Body=file.read_bytes())


@pytest.mark.usefixtures("frames")
def test_programs_that_know_no_s3_write_fenced(gateway: WatchedGateway, tmp_path: Path) -> None:
    """ffmpeg and curl, by URLs that the script presigns with what it finds in its environment."""
    job = new_job()
    place = f"renders/{job}/film.mkv"
    (tmp_path / "gate").write_text("go\n")
    with under_a_lease(gateway, tmp_path, job, encode_to(place, tmp_path)) as run:
        told, _ = run.communicate(timeout=BOUND_S)
    assert run.returncode == 0, told
    assert shown_token(gateway.s3, place) == "1"
    assert gateway.s3.get_object(Bucket=BUCKET, Key=place)["Body"].read() == (tmp_path / "film.mkv").read_bytes()


@pytest.mark.usefixtures("frames")
def test_programs_that_know_no_s3_are_refused_when_frozen(gateway: WatchedGateway, tmp_path: Path) -> None:
    """The URL was presigned while the lease was held; its upload comes when it is another's."""
    job = new_job()
    place = f"renders/{job}/film.mkv"
    os.mkfifo(tmp_path / "gate")
    with under_a_lease(gateway, tmp_path, job, encode_to(place, tmp_path)) as run:
        with (tmp_path / "gate").open("w") as gate:  # once the script reads from it
            frozen = overtake(run, gateway, tmp_path, job, place)
            gate.write("go\n")
        told = end_of(run, frozen, gateway, tmp_path, place)
    assert f"Token 1 is stale: token 2 now holds '{job}'" in told


def overtake(run: subprocess.Popen[str], gateway: WatchedGateway, home: Path, job: str, place: str) -> list[int]:
    """Stop `run` and all below it; another worker takes over and writes. Then the tool alone is continued. Answers with
    the processes that were stopped."""
    frozen = [run.pid, *descendants(run.pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    taken = gateway.lease(job)
    assert taken["token"] == 2
    given = taken["credentials"]
    pair = Credentials(given["access_key_id"], given["secret_access_key"], given["session_token"])
    other = s3_client(gateway.url, pair)
    other.put_object(Bucket=BUCKET, Key=place, Body=b"the other's")
    other.close()
    os.killpg(int((home / "group").read_text()), signal.SIGCONT)
    return frozen


def end_of(run: subprocess.Popen[str], frozen: list[int], gateway: WatchedGateway, home: Path, place: str) -> str:
    """The tool is refused and ends, and then `run`, which is continued, with 1; what is stored is the other's. Answers
    with what both have said."""
    gateway.lines.wait(0, lambda lines: any(is_refusal(line, place) for line in lines))
    wait_until(lambda: not group_lives(home), BOUND_S)
    for pid in frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    told, _ = run.communicate(timeout=BOUND_S)
    assert run.returncode == 1, told
    assert gateway.s3.get_object(Bucket=BUCKET, Key=place)["Body"].read() == b"the other's"
    assert shown_token(gateway.s3, place) == "2"
    return told


def is_part(line: dict[str, Any], place: str) -> bool:
    return line.get("object") == place and line.get("operation") == "UploadPart" and line.get("status") == 200


def is_refusal(line: dict[str, Any], place: str) -> bool:
    return line.get("object") == place and line.get("status") == 412 and line.get("reason") == "StaleToken"


def group_lives(home: Path) -> bool:
    """Whether anything of the tool still runs; what has ended and waits for its stopped parent does not."""
    group = int((home / "group").read_text())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                return True
    return False
