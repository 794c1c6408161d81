"""docs/webhooks.md: its receiver runs as it stands, and its tables say what is announced."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.core.announcements import Announcement, Topic
from gateway.service.courier import FAILURES_UNTIL_DOWN, MAX_HEADS, Pace
from gateway.service.webhooks import MAX_BEHIND_REFUSALS, signed
from gateway.upstream import tied_exec
from tests.docs.pages import DOCS, blocks, codes, page, rows, section
from tests.gateway_process import GatewayProcess, environment

PAGE = page("webhooks.md")
SECRET = "whsec_" + base64.b64encode(b"known to the test alone, not more").decode()


def test_every_topic_has_its_row() -> None:
    """With the id that its announcements have."""
    told = {codes(row[0])[0]: codes(row[2])[0] for row in rows(section(PAGE, "## What is announced"))}
    for topic in Topic:
        named = Announcement(topic, "KEY", 7, 7, 1.0).id.replace("1000000", "MOMENT").replace("7", "TOKEN")
        assert told.pop(topic) == named
    assert not told


def test_the_figures_are_those_of_the_code() -> None:
    """Pauses, posts at a time, and bounds."""
    pace = Pace()
    assert f"about 1, 2, 4 … seconds, at most {pace.most_s:g}" in PAGE
    assert pace.first_s == 1
    assert f"When {FAILURES_UNTIL_DOWN} posts in a row" in PAGE
    assert f"pauses of up to {pace.down_s:g} s" in PAGE
    assert f"At most {pace.at_a_time} posts" in PAGE
    bounds = [row[0] for row in rows(section(PAGE, "## What is kept, and for how long"))]
    assert bounds[2:] == [f"{MAX_BEHIND_REFUSALS} that wait", f"{MAX_HEADS} keys at hand"]


@contextmanager
def running(directory: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """The page's receiver, on a free port in place of the one that it names."""
    (block,) = [block for block in blocks(DOCS / "webhooks.md") if block.language == "python"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = directory / "receiver.py"
    program.write_text(block.text.replace("9000", str(port)))
    tied = (sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()))
    process = subprocess.Popen(
        [*tied, sys.executable, str(program)],
        cwd=directory,
        env=environment(WEBHOOK_SECRET=SECRET),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield port, process
    finally:
        process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def post(port: int, headers: dict[str, str], body: bytes) -> int:
    """The status that the receiver answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_receiver_takes_each_announcement_once(tmp_path: Path) -> None:
    """From a real gateway; what it gets twice it does once, and what is not signed, not at all."""
    with running(tmp_path) as (port, process):
        assert process.stdout is not None
        webhook = f'[[webhook]]\nurl = "http://127.0.0.1:{port}/"\nsecret = "{SECRET}"\n'
        with GatewayProcess(
            tmp_path, configuration=webhook, FENCING_GATEWAY_UPSTREAM__URL="http://127.0.0.1:1"
        ) as gateway:
            gateway.raise_floor("job-1", 33, 34)
            told = [process.stdout.readline() for _ in range(2)]
            assert told == [f"fencing.handed_over job-1 {token}\n" for token in (33, 34)]
        body = b'{"id":"completed:job-1:34","type":"fencing.completed","data":{"key":"job-1","token":34}}'
        headers = signed([SECRET], "completed:job-1:34", int(time.time()), body)
        assert [post(port, headers, body) for _ in range(3)] == [204, 204, 204]
        assert post(port, headers, body.replace(b"34}", b"35}")) == 401
        assert post(port, headers | {"webhook-timestamp": "1700000000"}, body) == 401
        assert process.stdout.readline() == "fencing.completed job-1 34\n"
        process.kill()
        assert process.stdout.read() == ""


@pytest.mark.parametrize("word", ["timeout_s", "keep_s", "max_waiting", "tls_ca", "events", "keys", "name"])
def test_every_setting_of_weight_is_explained(word: str) -> None:
    """Those that decide what arrives."""
    assert f"`{word}`" in PAGE
