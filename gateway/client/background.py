"""An event loop in a thread of its own: what runs there goes on while the caller's loop or thread is busy or blocked.

Both faces of the client hand their coroutines to it, so that there is one implementation, and a heartbeat that depends
on nobody. What it cannot survive is code in the same process that keeps the interpreter's lock for long.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from gateway.client.errors import GatewayError

T = TypeVar("T")
Farewell = Callable[[], Coroutine[Any, Any, None]]
FAREWELL_S = 5.0
"""How long giving back may take: it is a courtesy, since what is not given back runs out."""


CLOSED = "this client is closed"


class Ended(RuntimeError):
    """The client is closed, or was made before a fork: nothing runs there any more."""


class Background:
    """Starts with the first call; ends with `close`, or with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._closed = False
        self._farewells: set[asyncio.Future[None]] = set()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Have it run. Raises `Ended` once closed, and in a process forked since."""
        try:
            loop = self._running()
        except Ended:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def call(self, coroutine: Coroutine[Any, Any, T], farewell: Farewell | None = None) -> T:
        """Its result. Interrupted (Ctrl-C), it is cancelled, and `farewell` is called after it. Raises `Ended`, also
        when it is closed meanwhile; and `RuntimeError` in this very thread, which would wait for itself."""
        self._not_from_within(coroutine)
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise Ended(CLOSED) from None
        except BaseException as error:
            future.cancel()
            self._see_off(error, farewell)
            raise

    async def run(self, coroutine: Coroutine[Any, Any, T], farewell: Farewell | None = None) -> T:
        """Its result, awaited in the caller's loop. Cancelled with its caller, and `farewell` is called after it.
        Raises `Ended`, also when it is closed meanwhile."""
        future = asyncio.wrap_future(self.submit(coroutine))
        try:
            await asyncio.wait([future])
        except BaseException as error:
            future.cancel()
            self._see_off(error, farewell)
            raise
        if future.cancelled():
            raise Ended(CLOSED)
        return future.result()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Wait for farewells, cancel everything else, run `last`, and end the thread. Called again it does nothing.
        Raises `RuntimeError` in that thread."""
        self._not_from_within(last)
        with self._lock:
            loop, thread, self._loop, self._closed = self._loop, self._thread, None, True
        if loop is None or thread is None or self._process != os.getpid():
            last.close()
            return
        asyncio.run_coroutine_threadsafe(self._wind_up(last), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _see_off(self, error: BaseException, farewell: Farewell | None) -> None:
        """Of who has gone away without hearing what became of his call. How that fares is nobody's concern."""
        if farewell is not None and not isinstance(error, Exception):
            with suppress(Ended):
                self.submit(self._say(farewell))

    async def _say(self, farewell: Farewell) -> None:
        saying = asyncio.ensure_future(farewell())
        self._farewells.add(saying)
        try:
            with suppress(GatewayError, TimeoutError):
                await asyncio.wait_for(saying, FAREWELL_S)
        finally:
            self._farewells.discard(saying)

    async def _wind_up(self, last: Coroutine[Any, Any, None]) -> None:
        if self._farewells:
            await asyncio.wait(self._farewells)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await last
        await asyncio.get_running_loop().shutdown_default_executor()

    def _not_from_within(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a callback of a lease must not wait for the gateway: it would hold up all heartbeats")

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._process != os.getpid():
            raise Ended("this client was made before a fork: make one in each process")
        with self._lock:
            if self._closed:
                raise Ended(CLOSED)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_exception_handler(_tell)
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="fencing-gateway", daemon=True)
                self._thread.start()
            return self._loop


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody catches; but not what aiohttp says of connections left open, as by a client that serves a process to
    its end. Who asks Python for warnings is told by one."""
    if not str(context.get("message")).startswith("Unclosed "):
        loop.default_exception_handler(context)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    if hasattr(signal, "pthread_sigmask"):  # signals are for the threads of those who wait for them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    loop.run_forever()
