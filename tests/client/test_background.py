"""The client's own thread: who may use it, what ends it, and what it leaves to others."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateway.client import SyncGatewayClient
from gateway.client.background import Background
from tests.client.rig import BOUND_S, Served
from tests.gateway_process import ROOT, environment

FORKED = """
import os, sys
from gateway.client import SyncGatewayClient

client = SyncGatewayClient(sys.argv[1])
with client.lease("forked") as lease:
    if os.fork() == 0:
        try:
            lease.release()
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(3)
    print("exit", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    lease.check()
client.close()
"""
ONE_FOR_THE_PROCESS = """
import sys, threading
from gateway.client import SyncGatewayClient

client = SyncGatewayClient(sys.argv[1])
with client.lease("all-along") as lease:
    print("token", lease.token)
    threading.Thread(target=client.lease("all-along", wait_s=600).__enter__, daemon=True).start()
    sys.stdin.readline()
"""
FROZEN = """
import sys
from gateway.client import LeaseLost, SyncGatewayClient

with SyncGatewayClient(sys.argv[1]) as client:
    try:
        with client.lease("frozen", ttl_s=1) as lease:
            print("held", flush=True)
            sys.stdin.readline()
            lease.check()
            print("went on")
    except LeaseLost as lost:
        print(lost)
"""


async def nothing() -> None:
    """Ends at once."""


def python(script: str, gateway: Served) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, gateway.url],
        env=environment(PYTHONPATH=str(ROOT)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_ends_what_runs() -> None:
    """Closed, it has cancelled what was under way, ended its thread, and takes nothing more."""
    background = Background()
    waiting = background.submit(asyncio.sleep(BOUND_S))
    (thread,) = [one for one in threading.enumerate() if one.name == "fencing-gateway"]
    background.close(nothing())
    assert waiting.cancelled()
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        background.call(nothing())
    background.close(nothing())


def test_signals_are_not_for_it() -> None:
    """Whoever waits for a signal elsewhere in the process gets it: all are blocked here."""

    async def blocked() -> set[int]:
        return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    background = Background()
    assert {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT} <= background.call(blocked())
    background.close(nothing())


def test_a_fork_has_none(gateway: Served) -> None:
    """A child has the client's memory and not its thread: it is told, leaves the context as it likes, and its parent's
    lease stays as it was."""
    with python(FORKED, gateway) as process:
        told, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0
    assert told.splitlines() == ["this client was made before a fork: make one in each process", "exit 3"]


def test_one_that_nobody_closes(gateway: Served) -> None:
    """A client for a whole process ends with it, also under a call that has no end; nothing is said of connections left
    open."""
    with python(ONE_FOR_THE_PROCESS, gateway) as process:
        gateway.until(lambda: gateway.rig.gateway.leases.waiting == 1)
        told = process.communicate("end\n", timeout=BOUND_S)
    assert (process.returncode, told) == (0, ("token 1\n", ""))


def test_a_frozen_process_notices_at_its_first_look(gateway: Served) -> None:
    """Stopped past its lease while another takes it, and continued: the first `check` raises, whatever its heartbeat
    has heard by then."""
    with python(FROZEN, gateway) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        with SyncGatewayClient(gateway.url) as client, client.lease("frozen", wait_s=BOUND_S) as second:
            assert second.token == 2
            process.send_signal(signal.SIGCONT)
            told, _ = process.communicate("go on\n", timeout=BOUND_S)
    assert "went on" not in told
    assert "lease" in told
    assert "frozen" in told


@pytest.mark.parametrize("wait", [Background.call, Background.close], ids=["gateway", "end"])
def test_a_callback_that_waits(wait: Callable[[Background, Coroutine[Any, Any, None]], None]) -> None:
    """For the gateway or the client's end: it would wait for its own thread, and all heartbeats with it. It is told so
    instead, and all goes on."""
    background = Background()

    async def callback() -> None:
        wait(background, nothing())

    try:
        with pytest.raises(RuntimeError, match="must not wait"):
            background.submit(callback()).result(BOUND_S)
        background.call(nothing())
    finally:
        background.close(nothing())


def test_two_threads_that_close_it() -> None:
    """The second one has nothing left to do, and does not cut the first one's short."""
    background, closing, go_on = Background(), threading.Event(), threading.Event()
    background.call(nothing())

    async def last() -> None:
        closing.set()
        await asyncio.to_thread(go_on.wait, BOUND_S)

    with ThreadPoolExecutor(1) as first:
        closed = first.submit(background.close, last())
        assert closing.wait(BOUND_S)
        background.close(nothing())
        go_on.set()
        closed.result(BOUND_S)
