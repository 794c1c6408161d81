"""docs/clients.md and the clients agree: what the page shows is run, and answers as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.clients.drivers import TIMEOUT_S, environment
from tests.clients.gateway import LENIENT, STRICT, WatchedGateway

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
_PIECE = re.compile(r"^## (?P<heading>[^\n]+)$|^```(?P<info>[a-z ]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """One block of code under a heading, and what the page says that it prints."""

    name: str
    language: str
    words: frozenset[str]
    """What the page says of it: `services`, needs other programs; `unsigned`, of a client that need not sign."""
    code: str
    printed: tuple[str, ...] = ()


def examples(page: str) -> list[Example]:
    """The page's blocks of code, each with the lines of the `text` block that follows it."""
    found: list[Example] = []
    heading = ""
    for piece in _PIECE.finditer(page):
        if piece["heading"]:
            heading = piece["heading"]
            continue
        language, *words = piece["info"].split()
        if language == "text":
            found[-1] = Example(*_parts(found[-1]), tuple(piece["body"].splitlines()))
        elif language in ("python", "bash"):
            number = sum(one.name.startswith(heading) for one in found) + 1
            found.append(Example(f"{heading} {number}", language, frozenset(words), piece["body"]))
    return found


def _parts(one: Example) -> tuple[str, str, frozenset[str], str]:
    return one.name, one.language, one.words, one.code


EXAMPLES = examples(PAGE.read_text("utf-8"))


@pytest.mark.parametrize(
    "example",
    [pytest.param(one, id=one.name, marks=[pytest.mark.services] * ("services" in one.words)) for one in EXAMPLES],
)
def test_the_page_is_true(example: Example, gateway: WatchedGateway, tmp_path: Path) -> None:
    """Each example runs to its end, and prints every line that the page shows, in that order."""
    (tmp_path / "out.mp4").write_bytes(b"rendered" * 1000)
    target = gateway.target(LENIENT if "unsigned" in example.words else STRICT)
    command = [sys.executable, "-W", "error"] if example.language == "python" else ["bash", "-eu"]
    environ = environment(target, tmp_path)
    if example.language == "bash":
        environ = {name: value for name, value in environ.items() if not name.startswith("RCLONE_CONFIG_")}
    done = subprocess.run(
        [*command, "/dev/stdin"],
        input=example.code,
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    position = 0
    for line in example.printed:
        position = done.stdout.find(line, position)
        assert position >= 0, f"{line!r} is not in, or not at its place in:\n{done.stdout}"
        position += len(line)


def test_the_page_has_examples_for_every_client() -> None:
    """A page whose blocks are not found proves nothing: each client of the table has one that runs."""
    headings = {one.name.rpartition(" ")[0] for one in EXAMPLES}
    assert headings == {"boto3", "aiobotocore", "minio-py", "AWS CLI", "rclone", "s3cmd", "curl"}


def tried(client: str) -> set[str]:
    """The versions of a client that the page's table names."""
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {number for name, number in rows if name == client}


@pytest.mark.parametrize(
    ("client", "package"), [("boto3", "boto3"), ("aiobotocore", "aiobotocore"), ("minio-py", "minio")]
)
def test_the_versions_are_those_tried(client: str, package: str) -> None:
    """The table's versions of Python clients are the installed ones, which the tests have just used."""
    assert tried(client) == {version(package)}


@pytest.mark.services
@pytest.mark.parametrize(
    ("client", "command"),
    [("AWS CLI", ["aws", "--version"]), ("s3cmd", ["s3cmd", "--version"])],
)
def test_the_versions_of_programs_are_those_tried(client: str, command: list[str]) -> None:
    """So are those of the programs that a lock file pins; rclone and curl are the distribution's."""
    said: Any = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert any(number in said.stdout + said.stderr for number in tried(client))
