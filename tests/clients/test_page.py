"""docs/clients.md and the clients agree: what the page shows is run, and answers as it says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.clients.browser import Browser
from tests.clients.drivers import TIMEOUT_S, environment
from tests.clients.gateway import LENIENT, STRICT, WatchedGateway
from tests.clients.programs import AWS_CLI_2, BEFORE_CHECKSUMS
from tests.gateway_process import ROOT, Target, command

PAGE = ROOT / "docs" / "clients.md"
NODE = Path(__file__).parent / "node"
_PIECE = re.compile(r"^## (?P<heading>[^\n]+)$|^```(?P<info>[a-z ]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
INTERPRETERS = {
    "python": (sys.executable, "-W", "error", "-"),
    "python before checksums": (*BEFORE_CHECKSUMS[:-1], "-"),
    "bash": ("bash", "-eu", "/dev/stdin"),
    "js": ("node", "--input-type=module", "-"),
}


@dataclass(frozen=True, slots=True)
class Example:
    """One block of code under a heading, and what the page says that it prints."""

    name: str
    language: str
    words: frozenset[str]
    """What the page says of it: `services`, needs other programs; `second`, is of the AWS CLI's version 2;
    `unsigned`, of a client that need not sign; `browser`, runs in a page, after the block before it."""
    code: str
    before: Example | None
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
            found[-1] = replace(found[-1], printed=tuple(piece["body"].splitlines()))
        elif language in ("python", "bash", "js"):
            number = sum(one.name.startswith(heading) for one in found) + 1
            before = found[-1] if "browser" in words else None
            found.append(Example(f"{heading} {number}", language, frozenset(words), piece["body"], before))
    return found


EXAMPLES = examples(PAGE.read_text("utf-8"))
OLDER = [
    replace(one, name=f"{one.name} before checksums", language="python before checksums")
    for one in EXAMPLES
    if one.name.startswith(("boto3", "aiobotocore"))
]
BY_VERSION_2 = [
    replace(one, name="AWS CLI 1 by version 2", words=one.words | {"second"})
    for one in EXAMPLES
    if one.name == "AWS CLI 1"
]


def needs_services(one: Example) -> bool:
    return "services" in one.words or one.language in ("js", "python before checksums")


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.services] * needs_services(one))
        for one in EXAMPLES + OLDER + BY_VERSION_2
    ],
)
def test_the_page_is_true(example: Example, gateway: WatchedGateway, tmp_path: Path) -> None:
    """Each example runs to its end, and prints every line that the page shows, in that order."""
    (tmp_path / "out.mp4").write_bytes(b"rendered" * 1000)
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    target = gateway.target(LENIENT if "unsigned" in example.words else STRICT)
    if example.before is not None:
        run(example.before, target, tmp_path)
        told = run_in_page(example, target, tmp_path)
    else:
        told = run(example, target, tmp_path)
    position = 0
    for line in example.printed:
        position = told.find(line, position)
        assert position >= 0, f"{line!r} is not in, or not at its place in:\n{told}"
        position += len(line)


def run(example: Example, target: Target, directory: Path) -> str:
    """What the example prints. It has to end with status 0."""
    environ = environment(target, directory)
    if "second" in example.words:
        environ["PATH"] = f"{AWS_CLI_2}:{environ['PATH']}"
    if example.language == "bash":
        environ = {name: value for name, value in environ.items() if not name.startswith("RCLONE_CONFIG_")}
    done = subprocess.run(
        INTERPRETERS[example.language],
        input=example.code,
        cwd=directory,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_in_page(example: Example, target: Target, directory: Path) -> str:
    """What the example, in a page that is served beside `urls.json`, prints."""
    page = Browser(target, directory)
    if page.home != directory:
        shutil.copy(directory / "urls.json", page.home)
    caught = "const lines = [], console = { log: (...words) => lines.push(words.join(' ')) };"
    return str(page.call(f"{caught}\n{example.code}\nreturn lines.join('\\n');"))


def test_the_page_s_configuration_is_one(tmp_path: Path) -> None:
    """What the page has its reader configure is a configuration without a fault."""
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "gateway.toml").write_text(block)
    assert command("check-config", "--config", str(tmp_path / "gateway.toml")).exit_code == 0


def test_the_page_has_examples_for_every_client() -> None:
    """A page whose blocks are not found proves nothing: each client of the table has one that runs."""
    headings = {one.name.rpartition(" ")[0] for one in EXAMPLES} - {"Before you begin"}
    assert headings == {
        "boto3", "aiobotocore", "s3fs", "smart_open", "minio-py", "AWS SDK for JavaScript", "Pages in a browser",
        "AWS CLI", "rclone", "s3cmd", "s5cmd", "curl",
    }  # fmt: skip


def tried(client: str) -> set[str]:
    """The versions of a client that the page's table names."""
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {number for name, number in rows if name == client}


@pytest.mark.parametrize(
    ("client", "package"),
    [
        ("boto3", "boto3"),
        ("aiobotocore", "aiobotocore"),
        ("minio-py", "minio"),
        ("s3fs", "s3fs"),
        ("smart_open", "smart-open"),
    ],
)
def test_the_versions_are_those_tried(client: str, package: str) -> None:
    """The table's versions of Python clients are the installed ones, which the tests have just used."""
    older = set(re.findall(rf"^{package}==([0-9.]+)", (ROOT / "requirements/before-checksums.lock").read_text(), re.M))
    assert tried(client) == {version(package)} | older


@pytest.mark.parametrize("package", ["@aws-sdk/client-s3", "@aws-sdk/lib-storage"])
def test_the_versions_on_node_are_those_tried(package: str) -> None:
    """So are those of the clients on Node."""
    assert tried(package) == {json.loads((NODE / "package.json").read_text())["dependencies"][package]}


def test_the_lock_of_node_s_packages_names_no_registry() -> None:
    """A lock that names hosts works on machines alone that reach those."""
    assert "resolved" not in (NODE / "package-lock.json").read_text()


@pytest.mark.services
@pytest.mark.parametrize(
    ("client", "shown"),
    [
        ("AWS CLI", ["aws", "--version"]),
        ("AWS CLI, [silent](#aws-cli) when refused", [f"{AWS_CLI_2}/aws", "--version"]),
        ("s3cmd", ["s3cmd", "--version"]),
        ("s5cmd", ["s5cmd", "version"]),
    ],
)
def test_the_versions_of_programs_are_those_tried(client: str, shown: list[str]) -> None:
    """So are those of the programs that a lock file pins; rclone and curl are the distribution's."""
    said: Any = subprocess.run(shown, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert any(number in said.stdout + said.stderr for number in tried(client))
