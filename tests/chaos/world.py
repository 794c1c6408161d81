"""What a run is made of, as all its processes know it: where its parts are, its jobs and objects, its bytes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway.s3.sigv4 import Credentials

BUCKET = "chaos"
CLIENT = Credentials("CHAOSCLIENT", "chaos-client-secret")
SETTLE_S = 8.0
"""The gateway's settle time-out: longer than the longest delay of a proxy, the longest pause of the store,
TCP_USER_TIMEOUT, which is a third of it, and `STARVED_S` together."""
STARVED_S = 1.0
"""A host that lets a process of the run wait longer than this does not keep what G2 is promised under."""
CONFIGURATION = f"""
[[client]]
access_key = "{CLIENT.access_key}"
secret_key = "{CLIENT.secret_key}"

[[rule]]
match = "renders/{{job}}/**"
key = "{{job}}"

[fencing]
settle_timeout_s = {SETTLE_S}
settle_timeout_assembly_s = {SETTLE_S}
handover_wait_s = 5
commit_timeout_s = 2.5
commit_timeout_assembly_s = 3
"""
RULED_JOBS = ("j1", "j2", "j3", "j4", "j5")
NAMED_JOBS = ("h1", "h2", "h3")
"""Whose objects no rule maps: their writers name the key in a header."""
JOBS = (*RULED_JOBS, *NAMED_JOBS)
FOR_GOOD = ("out", "copied", "assembled")
PASSING = ("gone", "gone-too")
"""Objects that are deleted now and then."""
OBJECTS = (*FOR_GOOD, *PASSING)


@dataclass(frozen=True)
class World:
    """Where the parts of a run are; in world.json of its directory."""

    gateway: str
    """The S3 endpoint, behind the proxy."""
    control: str
    store: str
    """The store's own endpoint, past proxy and gateway."""
    store_access_key: str
    store_secret_key: str

    @property
    def store_credentials(self) -> Credentials:
        return Credentials(self.store_access_key, self.store_secret_key)

    def save(self, directory: Path) -> None:
        (directory / "world.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, directory: Path) -> World:
        return cls(**json.loads((directory / "world.json").read_text()))


def address(url: str) -> tuple[str, int]:
    """Host and port."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def place(job: str, name: str) -> str:
    """The object key of one of a job's objects."""
    return f"{'renders' if job in RULED_JOBS else 'plain'}/{job}/{name}"


def claim(job: str, token: int) -> tuple[tuple[str, str], ...]:
    """The headers that say under which key and token a job's object is written; token 0: none."""
    key = () if job in RULED_JOBS else (("x-fencing-key", job),)
    return (*key, ("x-fencing-token", str(token))) if token else key


def payload(value: str) -> bytes:
    """The bytes of a value, whose last part is their number."""
    size = int(value.rpartition(".")[2])
    line = value.encode() + b"\n"
    return (line * (size // len(line) + 1))[:size]


def value_of(data: bytes) -> str:
    """The value whose bytes these are; of bytes that are nobody's, something that is no value."""
    value = data.partition(b"\n")[0].decode(errors="replace")
    if value.rpartition(".")[2].isdecimal() and payload(value) == data:
        return value
    return f"mixed up: {len(data)} bytes, the first of {value[:40]!r}"
