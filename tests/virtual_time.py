"""An event loop whose clock jumps: what waits for time waits no longer than what else there is to do takes.

For code without real I/O. Settle time-outs of minutes pass in microseconds, and always in the same order.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting it moves the clock on."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return []  # there is something to do; nobody does real I/O
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits, and for nothing that will come")
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual seconds."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class VirtualClock:
    """The gateway's clock on such a loop; nonces count up."""

    def __init__(self) -> None:
        self._nonces = 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 1_800_000_000.0 + self.monotonic()

    def nonce(self) -> str:
        self._nonces += 1
        return f"nonce{self._nonces}"

    def chance(self) -> float:
        return 0.5


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. What fails where nobody waits for it fails here."""
    unheard: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unheard.append(context))
        answer = runner.run(main)
    assert unheard == []
    return answer
