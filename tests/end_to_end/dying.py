"""The gateway as a process that kills itself (SIGKILL) right after a write to its store has become durable, and before
anybody is answered: `python -m tests.end_to_end.dying FILE serve …`. FILE names the method of the store; with the death
it is gone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from gateway.cli import main
from gateway.stores.sqlite import SqliteStore
from gateway.stores.sqlite.jobs import SqliteJobs

METHODS: dict[str, type] = {
    **dict.fromkeys(("grant", "seal"), SqliteStore),
    **dict.fromkeys(("submit", "deliver", "renew", "lapse", "release", "fail", "complete", "reopen"), SqliteJobs),
}


def dies_after(method: str, file: Path) -> None:
    owner = METHODS[method]
    write = getattr(owner, method)

    async def last(*given: Any, **named: Any) -> Any:
        answer = await write(*given, **named)
        if file.exists() and file.read_text() == method:
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, method, last)


if __name__ == "__main__":
    armed = Path(sys.argv.pop(1))
    for name in METHODS:
        dies_after(name, armed)
    main()
