"""`run` on a terminal, under a shell with job control: Ctrl-C, Ctrl-Z and reading go where the user means them."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

from tests.cli.working import BOUND_S, command, environ
from tests.gateway_process import GatewayProcess

ON_ITS_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"


class Shell:
    """An interactive bash on a terminal of its own."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read on until the terminal shows it."""
        deadline_s = time.monotonic() + BOUND_S
        while not (found := re.search(pattern, self._seen)):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, self._seen
            if select([self._terminal], [], [], left_s)[0]:
                self._seen += os.read(self._terminal, 65536).decode("utf-8", "replace")
        self._seen = self._seen[found.end() :]
        return found


@contextmanager
def shell(gateway: GatewayProcess) -> Iterator[Shell]:
    """It knows `work`, which runs what follows under a lease."""
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_ITS_TERMINAL, "bash", "--norc", "--noediting", "-i"],
        env=environ(gateway, PS1="> ", TERM="dumb"),
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    one = Shell(terminal)
    try:
        one.wait_for("> ")
        one.type(f'work() {{ {" ".join(command("run", "--key"))} "$@"; }}; stty -echo\n')
        one.wait_for("> $")
        yield one
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_the_command_reads_the_terminal(gateway: GatewayProcess, key: str) -> None:
    """What is typed reaches the command; the end of input ends it; the shell has its terminal back."""
    with shell(gateway) as one:
        one.type(f"work '{key}' -- sh -c 'echo begun; cat'; echo status $?\n")
        one.wait_for(r"begun\r")
        one.type("typed\n")
        one.wait_for(r"typed\r")
        one.type(CTRL_D)
        one.wait_for(r"status 0\r")
        one.type("echo the shell reads\n")
        one.wait_for(r"the shell reads\r")


def test_ctrl_c_is_the_command_s(gateway: GatewayProcess, key: str) -> None:
    """It interrupts the command once, which may take it as it likes; `run` goes on until it ends."""
    with shell(gateway) as one:
        one.type(f"work '{key}' -- sh -c 'trap \"echo heard; exit 4\" INT; echo begun; while :; do sleep 0.05; done'")
        one.type("; echo status $?\n")
        one.wait_for(r"begun\r")
        one.type(CTRL_C)
        one.wait_for(r"heard\r")
        one.wait_for(r"status 4\r")


def test_ctrl_c_ends_the_script_that_it_is_part_of(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    """A command that dies of Ctrl-C takes the script along, as it does without `run`; the lease is given back."""
    script = tmp_path / "script.sh"
    line = shlex.join([*command("run", "--key", key), "--", "sh", "-c", "echo begun; read line"])
    script.write_text(f"{line}\necho the script goes on\n")
    with shell(gateway) as one:
        one.type(f"bash {script}\n")
        one.wait_for(r"begun\r")
        one.type(CTRL_C)
        one.wait_for(r"> $")
        one.type("echo status $?\n")
        assert "goes on" not in one.wait_for(r"(?s).*status 130\r")[0]
    assert gateway.ask("lease", "acquire", key).exit_code == 0


def test_ctrl_z_stops_both_and_fg_continues_both(gateway: GatewayProcess, key: str) -> None:
    """The shell gets its prompt; continued within the lease, the command has the terminal again, and ends well."""
    with shell(gateway) as one:
        one.type(f"work '{key}' --ttl 60 -- sh -c 'echo begun; read line; echo read $line'; echo status $?\n")
        one.wait_for(r"begun\r")
        one.type(CTRL_Z)
        one.wait_for(r"Stopped")
        one.wait_for(r"status 148\r")
        one.type("fg; echo then $?\n")
        one.wait_for(r"gateway run")
        one.type("a line\n")
        one.wait_for(r"read a line\r")
        one.wait_for(r"then 0\r")


def test_a_job_in_the_background_that_wants_to_read(gateway: GatewayProcess, key: str) -> None:
    """It stops, as every job does that reads from a terminal which is not its own; `fg` gives it the terminal."""
    with shell(gateway) as one:
        one.type(f"work '{key}' --ttl 60 -- sh -c 'echo begun; read line; echo read $line' &\n")
        one.wait_for(r"begun\r")
        one.type("until jobs -s | grep -q .; do sleep 0.1; done; fg; echo then $?\n")
        one.wait_for(r"Stopped[^\r]*\r\nwork [^\r]*\r")
        one.type("a line\n")
        one.wait_for(r"read a line\r")
        one.wait_for(r"then 0\r")


def test_a_stopped_command_whose_lease_runs_out(gateway: GatewayProcess, key: str) -> None:
    """Stopped for longer than its lease, it is ended while the user does something else; `fg` tells."""
    with shell(gateway) as one:
        one.type(f"work '{key}' --ttl 2 -- sh -c 'echo begun $$; read line'; echo status $?\n")
        group = int(one.wait_for(r"begun (\d+)\r")[1])
        one.type(CTRL_Z)
        one.wait_for(r"status 148\r")
        deadline_s = time.monotonic() + BOUND_S
        while not ended(group):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        one.type("fg; echo then $?\n")
        one.wait_for(r"could not be renewed in time")
        one.wait_for(r"then 1\r")


def ended(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"
