"""`url = "aws"`: endpoint, region and credentials come from the AWS SDKs' own configuration."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import StoreServer
from tests.end_to_end.process import CLIENT, gateway_over
from tests.end_to_end.wire import exchange, request


async def test_the_aws_configuration_leads_to_the_store(tmp_path: Path, store_server: StoreServer, bucket: str) -> None:
    """A fenced write goes to the endpoint that the environment names, signed with its credentials."""
    configured = {
        "AWS_ENDPOINT_URL_S3": store_server.url,
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": store_server.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": store_server.credentials.secret_key,
    }
    with gateway_over(tmp_path, "upstream.url=aws", "upstream.addressing=path", **configured) as gateway:
        host = "{}:{}".format(*gateway.address)
        path = f"/{bucket}/renders/j/out"
        put = request("PUT", host, path, b"bytes", CLIENT, headers=(("x-fencing-token", "33"),))
        answer = await exchange(gateway.address, put)
    assert answer.status == 200
    stored = store_server.client.get_object(Bucket=bucket, Key="renders/j/out")
    assert stored["Body"].read() == b"bytes"
    assert stored["Metadata"]["fencing-token"] == "33"
