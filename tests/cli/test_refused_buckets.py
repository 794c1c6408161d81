"""What the commands tell of a key where the gateway refuses what its floor would let through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from gateway.core.names import RECORD_KEY
from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, Target, before

RULES = '[[rule]]\nmatch = "renders/{job}/**"\nkey = "{job}"\n'


@pytest.fixture
def superseded(store_server: StoreServer, tmp_path: Path, bucket: str) -> Iterator[GatewayProcess]:
    """A gateway that has found another's record in the bucket."""
    record = {"Bucket": bucket, "Key": RECORD_KEY}
    store_server.client.put_object(**record, Body=b"another's")
    with GatewayProcess(tmp_path, configuration=RULES, **before(store_server)) as child:
        with pytest.raises(ClientError, match="lets no fenced write into bucket"):
            child.s3.put_object(Bucket=bucket, Key="renders/7/o", Body=b"x", Metadata={"fencing-token": "34"})
        yield child
    store_server.client.delete_object(**record)


def test_a_bucket_that_is_refused_is_told_beside_the_floor(
    superseded: GatewayProcess, tmp_path: Path, bucket: str
) -> None:
    """Of a key that nobody had used it was told that any token is let through, and of a raise that no lower one takes
    effect any more, which the gateway that rules the bucket knows nothing of. `explain` tells it of its own bucket."""
    config = ("--config", str(tmp_path / "gateway.toml"))
    sentence = f"Nothing fenced is served in {bucket}: "
    for command in (
        ("fence", "show", "7"),
        ("fence", "raise", "7", "34", "--reason", "x"),
        ("fence", "seal", "7", "--reason", "x"),
        ("explain", f"s3://{bucket}/renders/7/o", *config),
    ):
        result = superseded.ask(*command)
        assert result.exit_code == 0, result.output
        assert sentence in result.stdout, command
        assert f"fencing-gateway fence rebuild --bucket {bucket}" in result.stdout
    assert sentence not in superseded.ask("explain", "s3://another/renders/7/o", *config).stdout


def test_a_gateway_that_takes_no_requests_says_so_beside_the_floor(store_server: StoreServer, tmp_path: Path) -> None:
    """Whatever the floor would let through."""
    target = Target(store_server.url.replace("http://", "https://"), store_server.credentials)
    with GatewayProcess(tmp_path, configuration=RULES, **before(target)) as child:
        config = ("--config", str(tmp_path / "gateway.toml"))
        for command in (("fence", "show", "7"), ("explain", "s3://b/renders/7/o", *config)):
            result = child.ask(*command)
            assert result.exit_code == 0, result.output
            assert "The gateway takes no requests now: upstream: no TLS connection to " in result.stdout
