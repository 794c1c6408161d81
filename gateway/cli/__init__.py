"""The command line. Exit codes: 0 done, 1 refused or lost, 2 usage or configuration, 3 not reachable."""

from gateway.cli.main import main

__all__ = ["main"]
