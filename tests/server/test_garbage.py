"""What a request leaves behind once it has been answered: nothing that only the garbage collector finds.

A circle of references in each request would have to be looked for all the time, and costs more than many a check.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from tests.cases.uploads import Mode, upload
from tests.server.rig import Rig, running, signed

TOKEN = ("x-fencing-token", "7")
UPLOADS = {
    "put": upload("/b/k", b"x", Mode.HEX, fields=[TOKEN]),
    "put large": upload("/b/k", b"x" * 100_000, Mode.UNSIGNED, fields=[TOKEN]),
    "put signed chunks": upload("/b/k", b"x" * 100_000, Mode.SIGNED_TRAILER, fields=[TOKEN]),
    "put trailer": upload("/b/k", b"x", Mode.UNSIGNED_TRAILER, fields=[TOKEN]),
    "refused": upload("/b/k", b"x", Mode.HEX, fields=[("x-fencing-token", "6")]),
    "no signature": upload("/b/k", b"x", Mode.HEX),
}
READS = {"get": ("GET", "/b/k"), "head": ("HEAD", "/b/k"), "list": ("GET", "/b"), "absent": ("GET", "/b/absent")}


def left_behind() -> Counter[str]:
    """The gateway's kinds of objects that are garbage now."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = [type(one) for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return Counter(kind.__name__ for kind in kinds if kind.__module__.startswith(("gateway.", "httptools")))


async def ask(rig: Rig, what: str) -> None:
    """One request on a connection of its own, and the end of both."""
    wire = await rig.wire()
    if what in UPLOADS:
        head = UPLOADS[what].head
        await wire.send(head.replace(b"Signature=", b"Signature=0") if what == "no signature" else head)
        await wire.send(UPLOADS[what].framed())
        await wire.answer()
    else:
        method, target = READS[what]
        await wire.send(signed(method, target))
        await wire.answer(method)
    wire.close()
    assert rig.gateway._connections is not None
    async with asyncio.timeout(5):
        while rig.gateway._connections.connections:
            await asyncio.sleep(0)


@pytest.mark.parametrize("what", [*UPLOADS, *READS])
async def test_a_request_leaves_no_garbage(what: str) -> None:
    """Three alike on connections of their own, with the collector off: none of the gateway's objects wait for it."""
    async with running() as rig:
        await rig.put("k", b"x", 7)
        gc.collect()
        # What earlier tests have left, a thread that ends late for one, is none of these requests' doing.
        gc.freeze()
        gc.disable()
        try:
            for _ in range(3):
                await ask(rig, what)
            assert left_behind() == {}
        finally:
            gc.enable()
            gc.unfreeze()
