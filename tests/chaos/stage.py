"""Where one scenario is played: a gateway before a real store, a proxy between them that harms what it is told to."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.chaos import mutants
from tests.chaos.client import Client, Pause, look, told
from tests.chaos.proxy import Harm, Proxy
from tests.chaos.recorder import Recorder, gather, read
from tests.chaos.torment import start, step_clock, stepping_clock
from tests.chaos.world import CLIENT, CONFIGURATION, SETTLE_S, address, payload
from tests.checker.judge import judge
from tests.checker.rules import Violation
from tests.conftest import StoreServer
from tests.end_to_end.wire import Answer
from tests.gateway_process import GatewayProcess, before

SHORT_SETTLE_S = 6.0
PATIENCE_S = {False: 1.0, True: SHORT_SETTLE_S / 2}
"""How long a gateway that should wait is watched as it does, and how long one may take which should not, on any host,
before what is held up is let go. Both are well within the settle time-out."""
QUICK = ("store.record_lapse_s=3",)
"""The shortest that the configuration takes."""
LANDING_BOUND_S = 2.0
"""By then a write that was let go has landed, on any host."""


class Once:
    """Harms the first request that begins so, once there is one to harm."""

    def __init__(self) -> None:
        self._next: tuple[bytes, Harm] | None = None
        self.done = asyncio.Event()

    def order(self, begins: str, harm: Harm) -> None:
        self._next = begins.encode(), harm
        self.done.clear()

    def __call__(self, head: bytes) -> Harm:
        if self._next is None or not head.startswith(self._next[0]):
            return Harm.NONE
        (_, harm), self._next = self._next, None
        self.done.set()
        return harm


class Stage:
    """A context; its history is judged by `violations`. The bucket is its own."""

    def __init__(self, directory: Path, store: StoreServer, bucket: str, mutant: str, *settings: str) -> None:
        self._directory = directory
        self._store = store
        self.bucket = bucket
        self._mutant = mutant
        self._settings = (*QUICK, *settings, *mutants.settings(mutant))
        self._stack = AsyncExitStack()
        self.patience_s = PATIENCE_S[bool(mutant)]
        self.job = "job"
        self.name = f"renders/{self.job}/out"
        self.recorder = Recorder(directory, "stage")
        self.once = Once()
        self.let_go = asyncio.Event()
        """Set, it lets go what the proxy holds up."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.proxy = await stack.enter_async_context(
                Proxy(lambda: address(self._store.url), self.once, self.let_go.wait)
            )
            self.gateway = await self.start_another(stack, self._directory)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start_another(self, stack: AsyncExitStack, directory: Path) -> GatewayProcess:
        """A gateway with its database in `directory`."""
        settings = before(self._store) | stepping_clock(directory) | {"FENCING_GATEWAY_UPSTREAM__URL": self.proxy.url}
        gateway = GatewayProcess(
            directory,
            *self._settings,
            configuration=CONFIGURATION.replace(str(SETTLE_S), str(SHORT_SETTLE_S)),
            program=mutants.program(self._mutant),
            **settings,
        )
        await start(gateway)
        stack.push_async_callback(asyncio.to_thread, gateway.kill)
        return gateway

    async def another(self) -> GatewayProcess:
        """A second gateway before the same store, with a database of its own."""
        directory = self._directory / "another"
        directory.mkdir()
        return await self.start_another(self._stack, directory)

    async def kill_and_start(self) -> None:
        await asyncio.to_thread(self.gateway.kill)
        await start(self.gateway)

    async def adopt(self, gateway: GatewayProcess) -> None:
        """An operator gives the bucket to that gateway. What it refuses is for the scenario to find out."""
        self.recorder.fault("second-authority", "G1", "G2")
        await asyncio.to_thread(gateway.ask, "fence", "rebuild", "--bucket", self.bucket)

    def freeze(self) -> None:
        self.gateway.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.gateway.process.send_signal(signal.SIGCONT)

    def step_clock(self, seconds: int) -> None:
        """Set the gateway's wall clock off."""
        step_clock(self._directory, seconds)

    def lose_database(self) -> None:
        """Of a gateway that does not run."""
        for file in self._directory.glob("gateway.db*"):
            file.unlink()
        self.recorder.fault("database-lost", "G0", "G1", "G2")

    async def put(
        self,
        token: int,
        value: str,
        *,
        size: int = 1000,
        pause: Pause | None = None,
        gateway: GatewayProcess | None = None,
    ) -> Answer | None:
        """A worker's PUT of the object; `value` names it."""
        value = f"{value}.{size}"
        call = self.recorder.call("PutObject", self.job, token, f"{self.bucket}/{self.name}", value)
        headers = (("x-fencing-token", str(token)), ("x-amz-meta-value", value))
        client = Client((gateway or self.gateway).url, CLIENT, self.bucket)
        answer = await client.send("PUT", self.name, payload(value), headers=headers, pause=pause)
        told(self.recorder, call, answer)
        return answer

    async def check(self, token: int) -> int:
        """Some effect outside S3 asks about its token; the answer's status."""
        call = self.recorder.call("check", self.job, token)
        url = f"{self.gateway.control_url}/v1/fences/{self.job}/check"
        async with aiohttp.request("POST", url, json={"token": token}) as answer:
            await answer.read()
        self.recorder.answer(call, answer.status)
        return answer.status

    async def look(self) -> None:
        """At the object, past the gateway."""
        await look(self._client(), self.recorder, self.name)

    async def landed(self, value: str) -> bool:
        """Look until the object has the value; whether it has come to have it."""
        deadline = asyncio.get_running_loop().time() + LANDING_BOUND_S
        while asyncio.get_running_loop().time() < deadline:
            await self.look()
            answer = await self._client().send("HEAD", self.name)
            if answer is not None and answer.headers.get("x-amz-meta-value", "").startswith(f"{value}."):
                await self.look()
                return True
            await asyncio.sleep(0.05)
        return False

    def _client(self) -> Client:
        return Client(self._store.url, self._store.credentials, self.bucket)

    def violations(self) -> list[Violation]:
        return judge(read(gather(self._directory)))


async def done_within(task: asyncio.Task[Any], bound_s: float) -> bool:
    """Wait so long for something that may take longer; whether it is done."""
    await asyncio.wait([task], timeout=bound_s)
    return task.done()
