"""`python -m gateway` is `fencing-gateway`."""

from gateway.cli import main

main()
