"""What a worker of the demonstration is told to do, and what it renders."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

SIZE_BYTES = 24 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to do: an upload, or with a `control_url` the next job of the queue, of which it is one step."""

    url: str
    """The S3 endpoint."""
    bucket: str
    pauses: bool = False
    object_key: str = ""
    access_key: str = ""
    secret_key: str = ""
    control_url: str = ""
    queue: str = ""
    visibility_s: float = 0.0
    careless: bool = False
    """It reports its job as done whatever has become of its upload and its lease."""


def content(name: str) -> bytes:
    """What the worker of this name renders."""
    line = f"rendered by worker {name}\n".encode()
    return (line * (SIZE_BYTES // len(line) + 1))[:SIZE_BYTES]


def line_of(task: Task) -> bytes:
    """As a worker reads it."""
    return json.dumps(asdict(task)).encode() + b"\n"


def parsed(line: str) -> Task:
    """What a worker has read."""
    return Task(**json.loads(line))
