"""One round: a store, a gateway between two proxies, a crew, a seed; afterwards its history is judged."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gateway.upstream.embedded import EmbeddedStore
from tests.chaos import mutants
from tests.chaos.crew import Crew
from tests.chaos.onlookers import look_at_all
from tests.chaos.proxy import LONGEST_DELAY_S, TO_GATEWAY, TO_STORE, Chance, Proxy, held_for
from tests.chaos.recorder import Recorder, gather, read
from tests.chaos.referee import Referee
from tests.chaos.torment import QUIET_SHARE, Torment, start, stepping_clock
from tests.chaos.world import BUCKET, CLIENT, CONFIGURATION, STARVED_S, World, address
from tests.checker.history import Answer, Call, Line, Seen
from tests.checker.judge import judge
from tests.checker.rules import Violation
from tests.conftest import s3_client
from tests.gateway_process import GatewayProcess

CALM_S = 4.0
"""At the end nothing is harmed any more, so that the last late writes land and are seen."""


@dataclass
class Outcome:
    """What a round brought."""

    history: str
    violations: list[Violation]
    faults: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    fallen: list[str] = field(default_factory=list)
    """Workers that ended by themselves: a fault of the harness."""

    @property
    def calls(self) -> int:
        return sum(self.answers.values())


async def play(directory: Path, seed: str, for_s: float, mutant: str = "") -> Outcome:
    """Play a round in an empty directory, about `for_s` seconds and what start, calm and judgement take."""
    async with AsyncExitStack() as stack:
        store = EmbeddedStore(directory / "store")
        stack.push_async_callback(store.stop)
        await store.start()
        to_store = Chance(f"{seed} to store", TO_STORE, 0)
        to_gateway = Chance(f"{seed} to gateway", TO_GATEWAY, 0)
        hold = held_for(seed, LONGEST_DELAY_S)
        upstream = await stack.enter_async_context(Proxy(lambda: address(store.url), to_store, hold, seed))
        gateway = _gateway(directory, upstream.url, store, mutant)
        await start(gateway)
        stack.push_async_callback(asyncio.to_thread, gateway.kill)
        downstream = await stack.enter_async_context(Proxy(lambda: gateway.address, to_gateway, hold, seed))
        control = await stack.enter_async_context(Proxy(lambda: address(gateway.control_url)))
        await stack.enter_async_context(Referee(directory))
        pair = store.credentials
        World(downstream.url, control.url, store.url, pair.access_key, pair.secret_key).save(directory)
        await asyncio.to_thread(_make_bucket, gateway)
        crew = Crew(directory, seed)
        stack.push_async_callback(crew.end)
        await crew.start()
        stack.push_async_callback(_ended, asyncio.ensure_future(_watch(Recorder(directory, "watch"))))
        torment = Torment(seed, directory, gateway, store, crew, (to_store, to_gateway))
        to_store.share = to_gateway.share = QUIET_SHARE
        await torment.run(for_s)
        to_store.share = to_gateway.share = 0
        await asyncio.sleep(CALM_S)
        fallen = torment.fallen + crew.fallen()
        await crew.end()
        await look_at_all(directory, "last")
        await asyncio.to_thread(gateway.stop)
    history = gather(directory)
    (directory / "history.json-lines").write_text(history)
    lines = read(history)
    return Outcome(
        history,
        await asyncio.to_thread(judge, lines),
        torment.done
        + Counter({f"to-store/{harm}": n for harm, n in upstream.harmed.items()})
        + Counter({f"to-gateway/{harm}": n for harm, n in downstream.harmed.items()}),
        _answers(lines),
        fallen,
    )


def _gateway(directory: Path, upstream: str, store: EmbeddedStore, mutant: str) -> GatewayProcess:
    return GatewayProcess(
        directory,
        *mutants.settings(mutant),
        configuration=CONFIGURATION,
        program=mutants.program(mutant),
        FENCING_GATEWAY_UPSTREAM__URL=upstream,
        FENCING_GATEWAY_UPSTREAM__ACCESS_KEY=store.credentials.access_key,
        FENCING_GATEWAY_UPSTREAM__SECRET_KEY=store.credentials.secret_key,
        **stepping_clock(directory),
    )


async def _watch(recorder: Recorder) -> None:
    """Tell when this process, and with it the proxies, has been kept waiting."""
    while True:
        since = time.monotonic()
        await asyncio.sleep(STARVED_S / 4)
        if time.monotonic() - since > STARVED_S * 5 / 4:
            recorder.fault("starved", "G2", since=since)


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _make_bucket(gateway: GatewayProcess) -> None:
    client = s3_client(gateway.url, CLIENT, signature_version="s3v4")
    try:
        client.create_bucket(Bucket=BUCKET)
    finally:
        client.close()


def _answers(lines: list[Line]) -> Counter[str]:
    """Calls by the kind of their answer."""
    answers = {line.id: line for line in lines if isinstance(line, Answer)}
    found: Counter[str] = Counter()
    for line in lines:
        if isinstance(line, Call):
            answer = answers.get(line.id)
            found["no answer" if answer is None else f"{answer.status} {answer.outcome}".strip()] += 1
        elif isinstance(line, Seen):
            found["seen"] += 1
    return found
