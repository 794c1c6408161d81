"""A gateway whose rule names each job, and the services that give out the tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, before
from tests.recipes.sources import SERVICES, prepare

BUCKET = "recipes"
RULE = """
[[rule]]
match = "renders/{job}/**"
key = "{job}"
"""


@pytest.fixture(scope="session")
def gateway(store_server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with a bucket of its own; ended with the session."""
    with GatewayProcess(tmp_path_factory.mktemp("recipes"), configuration=RULE, **before(store_server)) as running:
        running.s3.create_bucket(Bucket=BUCKET)
        yield running


@pytest.fixture(scope="session")
def serving() -> Iterator[Callable[[str], str]]:
    """The address of a service, started when first asked for; all are ended with the session."""
    with ExitStack() as running:
        addresses: dict[str, str] = {}

        def address_of(name: str) -> str:
            if name not in addresses:
                directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="recipes-")))
                addresses[name] = running.enter_context(SERVICES[name](reachable(directory)))
                prepare(name, addresses[name])
            return addresses[name]

        yield address_of


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for a service of the test's own."""
    with tempfile.TemporaryDirectory(prefix="recipes-") as made:
        yield reachable(Path(made))


def reachable(directory: Path) -> Path:
    """Other users' programs reach what is theirs in it."""
    directory.chmod(0o711)
    return directory
