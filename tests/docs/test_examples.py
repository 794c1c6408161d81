"""The examples work as they stand: configurations load, commands run and print what is shown."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.core.keys import Rule, Ruleset, compile_rule
from tests.docs.conftest import SECRETS, Shell
from tests.docs.pages import DOCS, PAGES, ROOT, Block, blocks, codes, name_of, page, rows, section

CONFIGURATIONS = [block for path in PAGES for block in blocks(path) if block.language == "toml"]
RUN_PAGES = [path for path in PAGES if any(block.marker == "run" for block in blocks(path))]


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=lambda block: block.place)
def test_configurations_load(block: Block, tmp_path: Path) -> None:
    """Each configuration is valid by itself."""
    file = tmp_path / "gateway.toml"
    file.write_text(block.text)
    load(file, SECRETS, {})


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.toml")), ids=name_of)
def test_ready_set_ups_load(path: Path) -> None:
    """Each file of config/ is valid as it is, with the secrets that it takes from the environment."""
    load(path, SECRETS, {})


def test_the_unit_gives_the_gateway_what_it_needs() -> None:
    """systemd waits longer than a gateway drains, starts none again whose configuration is wrong, and drops no line of
    its log."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "config" / "fencing-gateway.service").read_text(), re.MULTILINE))
    assert int(unit["TimeoutStopSec"]) > load(None, {}, {}).server.drain_timeout_s + 10
    assert unit["RestartPreventExitStatus"] == "2"
    assert unit["LogRateLimitIntervalSec"] == "0"
    command = shlex.split(unit["ExecStart"])
    deploying = page("deploying.md")
    assert command[1:3] == ["serve", "--config"]
    for path in (command[0], command[3], unit["EnvironmentFile"].removeprefix("-"), unit["WorkingDirectory"]):
        assert f"`{path}`" in deploying


MATCHES = [row for row in rows(section(page("adopting.md"), "## 2. Write rules")) if len(row) == 4]


@pytest.mark.parametrize("row", MATCHES, ids=lambda row: f"{row[0]} {row[2]}")
def test_rules_map_as_shown(row: list[str]) -> None:
    """Each row of the table of rules: object and rule give that key."""
    match, key, object_key = (codes(cell)[0] for cell in row[:3])
    expected = None if row[3] == "no match" else codes(row[3])[0]
    assert Ruleset([Rule(*compile_rule(match, key))]).map("studio", object_key).key == expected


# --- commands


@pytest.mark.services
@pytest.mark.parametrize("path", RUN_PAGES, ids=name_of)
def test_commands_print_what_is_shown(path: Path, shell: Shell) -> None:
    """The commands of a page, in their order, end with status 0, and each line shown is printed, in that order."""
    output = ""
    for block in blocks(path):
        if block.language == "toml":
            (shell.directory / "gateway.toml").write_text(block.text)
        elif block.marker == "run":
            require_programs(block.text)
            output = shell.run(block.text)
        elif block.marker == "prints":
            printed = iter(steady(line) for line in output.splitlines())
            for line in block.text.splitlines():
                assert steady(line) in printed, f"{block.place} shows {line!r}; printed was:\n{output}"


def require_programs(script: str) -> None:
    for name in ("curl", "sqlite3"):
        if re.search(rf"\b{name} ", script) and shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")


def steady(line: str) -> str:
    """A line without what is different each time: moments, request ids, senders, serials, the completed floor (which is
    recorded a little later), times that are left, and the width of columns."""
    line = re.sub(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "MOMENT", line)
    line = re.sub(r"\b[0-9A-F]{16}\b", "ID", line)
    line = re.sub(r", \w+ from \d[\d.]+\b", ", SENDER", line)
    line = re.sub(r'("next":"|"completed_floor":|"\w+_in_s":)\d+(\.\d+)?', r"\1NUMBER", line)
    return " ".join(line.split())


def test_pages_that_are_run() -> None:
    """A page that lost its markers would pass unread."""
    assert {DOCS / name for name in ("adopting.md", "api.md", "deploying.md", "operating.md")} <= set(RUN_PAGES)
