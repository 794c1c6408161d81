"""`fencing-gateway status` of a gateway that cannot do its work."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, Target, before


def test_status_of_a_gateway_that_is_not_ready_tells_why_and_all_the_rest(
    store_server: StoreServer, tmp_path: Path
) -> None:
    """When something is wrong an operator wants the numbers most: status 3, the reason, and the table all the same."""
    target = Target(store_server.url.replace("http://", "https://"), store_server.credentials)
    with GatewayProcess(tmp_path, **before(target)) as child:
        told = child.ask("status")
        assert told.exit_code == 3
        assert re.search(r"^Status +unavailable: upstream: no TLS connection to ", told.stdout, re.MULTILINE)
        assert re.search(r"^Sends unsettled +0, in doubt 0$", told.stdout, re.MULTILINE)
        assert "answers 503: upstream: no TLS connection to" in told.stderr
        as_json = child.ask("status", "--json")
        answer = json.loads(as_json.stdout)
        assert (as_json.exit_code, answer["status"], answer["refusals"]) == (3, "unavailable", {})
        assert answer["reason"].startswith("upstream: no TLS connection to ")
