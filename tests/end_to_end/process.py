"""The gateway of these tests: one client, one rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gateway.s3.sigv4 import Credentials
from tests.gateway_process import GatewayProcess

CLIENT = Credentials("ENDTOENDKEY", "end-to-end-secret")
CONFIGURATION = f"""
[[client]]
access_key = "{CLIENT.access_key}"
secret_key = "{CLIENT.secret_key}"

[[rule]]
match = "renders/{{job}}/**"
key = "{{job}}"
"""


def gateway_over(directory: Path, *sets: str, **environ: str) -> GatewayProcess:
    """A gateway that is not yet started; before the embedded store, unless the environment names another."""
    return GatewayProcess(directory, *sets, configuration=CONFIGURATION, **environ)


def wait_until(holds: Callable[[], bool], bound_s: float = 10.0) -> None:
    """Wait for another process's state, which sends no event."""
    deadline = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)
