"""The house is as docs/architecture.md draws it; time and chance come from its clock alone, so that tests and
simulations hold both in their hands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gateway

ROOT = Path(gateway.__file__).parent
MAP = ROOT.parent / "docs/architecture.md"
CLOCK = "clock.py"
FORBIDDEN_MODULES = ("time", "random", "secrets", "uuid")
FORBIDDEN_NAMES = (
    "asyncio.sleep",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.getrandom",
    "os.urandom",
)

# What stands outside the clock all the same, and why it decides nothing that a test would want to hold.
ALLOWED = {
    ("cli/demonstration/incident.py", "asyncio.sleep"): "pauses between looks at what is still to be announced",
    ("cli/demonstration/receiver.py", "secrets.token_bytes"): "makes a webhook's secret, for one demonstration",
    ("cli/program/guard.py", "time.CLOCK_BOOTTIME"): "a script that imports nothing, on the clock of the holder",
    ("cli/program/guard.py", "time.clock_gettime"): "the same",
    ("cli/program/guard.py", "time.monotonic"): "the same, where there is no such clock",
    ("cli/program/guard.py", "time.sleep"): "a look at the group now and then; when it is killed is the clock's",
    ("client/calls.py", "asyncio.sleep"): "pauses between attempts; until when is the clock's",
    ("client/receiving.py", "asyncio.sleep"): "the least turn of a long poll; until when it goes on is the clock's",
    ("client/hold.py", "asyncio.sleep"): "the same, of a wait in line",
    ("client/heartbeat.py", "asyncio.sleep"): "the heartbeat's beat; what is due is decided by the clock",
    ("credentials_file.py", "secrets.token_bytes"): "makes a key for session tokens, once for a data directory",
    ("credentials_file.py", "secrets.token_hex"): "makes an access key, once for a data directory",
    ("credentials_file.py", "secrets.token_urlsafe"): "makes its secret",
    ("server/app.py", "asyncio.sleep"): "a drain's look at a counter, within a bound of the clock's",
    ("server/body.py", "asyncio.sleep"): "the sweeper's beat; what is due is decided by the clock",
    ("service/completions.py", "asyncio.sleep"): "pauses between attempts",
    ("service/returns.py", "asyncio.sleep"): "pauses between attempts; when a job is due is the clock's",
    ("service/rebuild.py", "asyncio.sleep"): "waits for moments of the clock, and between attempts",
    ("service/records.py", "asyncio.sleep"): "pauses between looks at a record; its age is the clock's",
    ("service/doubts.py", "asyncio.sleep"): "pauses between looks for a nonce; the settle time-out decides",
    ("stores/memory/store.py", "time.time"): "the default of a parameter; stamps rows, decides on none",
    ("stores/sqlite/lock.py", "datetime.datetime.now"): "a note in the lock file, for people",
    ("stores/sqlite/store.py", "time.time"): "the default of a parameter; stamps rows, decides on none",
    ("upstream/embedded.py", "asyncio.sleep"): "pauses between looks, and before another start",
    ("upstream/examination.py", "asyncio.sleep"): "how long an upload is held, on purpose",
    ("upstream/embedded_ports.py", "secrets.randbelow"): "tries ports until one is free",
}


def test_the_map_names_every_module() -> None:
    """Each module is on the map in its folder, and the map names no other."""
    assert drawn() == {
        path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if not path.stem.startswith("__")
    }


def test_the_map_names_every_kind_of_test() -> None:
    """A folder of tests is that of a folder of the code, or on the map."""
    kinds = {path.parent.name for path in (ROOT.parent / "tests").glob("*/__init__.py")}
    mirrored = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    (told,) = re.findall(r"^tests/ .*?^\S", MAP.read_text(), re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"(\w+)/", told)) - {"gateway", "tests"} == kinds - mirrored


def drawn() -> set[str]:
    """The modules on the map: what is indented below a folder is in it."""
    (tree,) = re.findall(r"^gateway/\n(.*?)^\S", MAP.read_text(), re.DOTALL | re.MULTILINE)
    modules: set[str] = set()
    folders: list[tuple[int, str]] = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        folders = [(outer, name) for outer, name in folders if outer < indent]
        if folder := re.match(r" *(\w+/) ", line):
            folders.append((indent, folder[1]))
        inside = "".join(name for _, name in folders)
        modules.update(inside + module for module in re.findall(r"\w+\.py", line))
    return modules


def names_used(source: str) -> Iterator[str]:
    """Each name that comes from an import, written out from its module on (`datetime.datetime.now`)."""
    tree = ast.parse(source)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                imported[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        path: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            path.insert(0, inner.attr)
            inner = inner.value
        if path and isinstance(inner, ast.Name) and inner.id in imported:
            yield ".".join([imported[inner.id], *path])


def is_forbidden(name: str) -> bool:
    return name.partition(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_NAMES


def test_time_and_chance() -> None:
    """Wall clock, randomness and sleep are nowhere but in the clock and where a reason is given; no reason is stale."""
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in ROOT.rglob("*.py")
        for name in names_used(path.read_text())
        if is_forbidden(name)
    }
    outside = {(path, name) for path, name in found if path != CLOCK}
    assert len(outside) < len(found), "the clock itself is found"
    assert outside == ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic()",
        "from time import monotonic\nmonotonic()",
        "from time import sleep as rest\nrest(1)",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now(None)",
        "from datetime import datetime as when\nwhen.utcnow()",
        "from datetime import date\ndate.today()",
        "import random\nrandom.random()",
        "import secrets\nsecrets.token_hex(3)",
        "from uuid import uuid4\nuuid4()",
        "import os\nos.urandom(3)",
        "import asyncio\nasync def f():\n    await asyncio.sleep(1)",
        "import asyncio\ndef f(pause=asyncio.sleep): pass",
        "def f():\n    import time\n    return time.time()",
    ],
)
def test_the_scan_sees(source: str) -> None:
    """The scan sees each of them, however it was imported."""
    assert any(is_forbidden(name) for name in names_used(source))


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import asyncio\nasyncio.timeout(1)",
        "class C:\n    def f(self):\n        return self.time.time()",
        "def f(clock):\n    return clock.monotonic()",
        "from gateway.clock import SystemClock\nSystemClock().wall()",
    ],
)
def test_the_scan_lets_pass(source: str) -> None:
    """What takes its time from the clock, or needs none, passes."""
    assert not any(is_forbidden(name) for name in names_used(source))
