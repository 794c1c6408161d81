"""Bytes on their way to a peer: together, in order, at once if alone or asked to, and never to one that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from gateway.outgoing import Outgoing


class Peer(asyncio.Transport):
    """Keeps what it is handed, lot by lot."""

    def __init__(self) -> None:
        super().__init__()
        self.lots: list[bytes] = []
        self.closing = False

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        assert not self.closing, "written behind the end"
        self.lots.append(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closing = True

    abort = close


async def test_what_is_sent_in_one_turn_goes_out_together() -> None:
    """With the next turn of the loop, in its order, as one lot; the next turn's is another."""
    peer = Peer()
    outgoing = Outgoing(peer)
    outgoing.send(b"a", b"b")
    outgoing.send(b"c")
    assert peer.lots == []
    assert outgoing.waits
    await asyncio.sleep(0)
    assert not outgoing.waits
    outgoing.send(b"d")
    await asyncio.sleep(0)
    assert peer.lots == [b"abc", b"d"]


async def test_what_is_alone_goes_out_at_once() -> None:
    """With nothing to go out together with, the turn would only be waited for; what waited before goes first."""
    peer = Peer()
    outgoing = Outgoing(peer)
    outgoing.send(b"a", b"b", alone=True)
    assert peer.lots == [b"ab"]
    outgoing.send(b"c")
    outgoing.send(b"d", alone=True)
    assert peer.lots == [b"ab", b"cd"]
    await asyncio.sleep(0)
    assert peer.lots == [b"ab", b"cd"]


async def test_a_flush_sends_at_once_and_nothing_twice() -> None:
    """Before a transport closes, what waits has to be in it."""
    peer = Peer()
    outgoing = Outgoing(peer)
    outgoing.send(b"a")
    outgoing.flush()
    assert peer.lots == [b"a"]
    outgoing.send(b"b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert peer.lots == [b"a", b"b"]


async def test_a_peer_that_goes_is_handed_nothing() -> None:
    """What waited for it is dropped, not kept."""
    peer = Peer()
    outgoing = Outgoing(peer)
    outgoing.send(b"a")
    peer.closing = True
    await asyncio.sleep(0)
    assert peer.lots == []
    peer.closing = False
    outgoing.send(b"b")
    await asyncio.sleep(0)
    assert peer.lots == [b"b"]
