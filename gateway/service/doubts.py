"""A send whose answer was lost (R5): only its own nonce, seen on the object, tells before the settle time-out."""

from __future__ import annotations

import asyncio

from gateway.core.errors import FenceError
from gateway.core.write import Verdict
from gateway.s3.errors import S3Error
from gateway.service.beside import Beside
from gateway.service.conditions import Admitted
from gateway.service.heads import Heads, vouched
from gateway.service.passages import Passage
from gateway.service.refusals import in_doubt
from gateway.service.values import Result, Write

CHASE_S = (0.5, 1, 2, 4, 8, 16)
"""When the object is looked at for the nonce of a send in doubt, seconds after one another."""


class Doubts:
    """Looks for the nonces of sends in doubt."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._chases = Beside()

    async def answer(self, admitted: Admitted, passage: Passage, nonce: str, result: Result | None) -> Result:
        """If the object bears this very send's nonce, the send was applied; nothing else is known. Raises `TryAgain`
        (InDoubt), and goes on looking. `result` is what came in place of an answer."""
        write, entry = admitted.write, admitted.entry
        entry.state = None
        bears_nonce = bool(write.token) and write.operation.name in ("PutObject", "CopyObject")
        if bears_nonce:
            try:
                state, verdict, headers = await self._heads.look(write, admitted.live, entry, nonce)
            except (FenceError, S3Error):
                pass
            else:
                if verdict is Verdict.OURS:
                    passage.nonce_seen()
                    return vouched(write, state, headers)
            self._chases.run(self._chase(write, passage, nonce))
        seen = "no answer" if result is None else f"status {result.status} {result.code or ''}".strip()
        raise in_doubt(write, admitted.live.gate.floor, seen)

    async def _chase(self, write: Write, passage: Passage, nonce: str) -> None:
        """Go on looking for the nonce, so that a hand-over need not wait for the whole settle time-out."""
        for pause_s in CHASE_S:
            await asyncio.sleep(pause_s)
            if not passage.doubtful:
                return
            try:
                seen = await self._heads.bears(write, nonce)
            except (FenceError, S3Error):
                continue
            if seen:
                passage.nonce_seen()
                return

    @property
    def idle(self) -> bool:
        """Whether no object is looked at."""
        return self._chases.idle

    async def close(self) -> None:
        """End the looking."""
        await self._chases.stop()
