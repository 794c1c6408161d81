"""docs/workers.md: its Python runs as it stands and prints what is shown; its tables name what there is."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

import gateway.client
from gateway.cli.program.supervise import PASSED_ON
from gateway.client import GatewayError
from gateway.client.engine import PATIENCE_S
from tests.docs.conftest import Shell
from tests.docs.pages import DOCS, Block, blocks, first_codes, page, section
from tests.gateway_process import environment

PAGE = page("workers.md")
EXAMPLES = [(code, printed) for code, printed in pairwise(blocks(DOCS / "workers.md")) if code.language == "python"]


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=lambda block: block.place)
def test_the_examples_run(code: Block, printed: Block, shell: Shell) -> None:
    """Each ends with status 0, without a warning, and prints just what is shown."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=code.text,
        env=environment(**shell.variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, printed.text), done.stderr


def test_there_are_examples() -> None:
    """Blocks that are not found prove nothing."""
    assert [printed.language for _, printed in EXAMPLES] == ["text"] * 3


def test_every_error_has_its_row() -> None:
    """Those that the client exports, each once."""
    exported = [getattr(gateway.client, name) for name in gateway.client.__all__]
    errors = {one.__name__ for one in exported if isinstance(one, type) and issubclass(one, GatewayError)}
    assert {*first_codes(section(PAGE, "## Errors")), "GatewayError"} == errors
    assert f"for `patience_s` ({PATIENCE_S:g} s)" in PAGE


def test_the_signals_are_those_passed_on() -> None:
    """The page names all of them."""
    (sentence,) = [line for line in PAGE.splitlines() if line.startswith("**Signals and the terminal.**")]
    assert {signal.name for signal in PASSED_ON} == {word.strip(",.") for word in sentence.split() if "SIG" in word}
