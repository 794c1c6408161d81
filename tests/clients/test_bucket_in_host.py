"""Which clients put a bucket's name into the host name (docs/deploying.md), where the endpoint is a name."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

ENDPOINT = "http://s3.example.com:8080"
ASKS = """
import { GetObjectCommand, S3Client } from "@aws-sdk/client-s3";
const credentials = { accessKeyId: "a", secretAccessKey: "b" };
const show = () => async ({ request }) => {
  console.log(request.hostname + request.path);
  throw new Error("shown, not sent");
};
for (const endpoint of ["http://s3.example.com:8080", "http://localhost:8080", "http://127.0.0.1:8080"]) {
  for (const forcePathStyle of [false, true]) {
    const client = new S3Client({ endpoint, forcePathStyle, credentials, region: "us-east-1", maxAttempts: 1 });
    client.middlewareStack.add(show, { step: "finalizeRequest", priority: "low" });
    await client.send(new GetObjectCommand({ Bucket: "studio", Key: "k" })).catch(() => {});
  }
}
"""


@pytest.mark.services
def test_javascript_does_unless_it_is_told_not_to(tmp_path: Path) -> None:
    """With any name, `localhost` too, and with no address."""
    (tmp_path / "node_modules").symlink_to(Path(__file__).parent / "node" / "node_modules")
    (tmp_path / "asks.mjs").write_text(ASKS)
    asked = subprocess.run(
        ("node", "--no-warnings", "asks.mjs"), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert asked.stdout.split() == [
        "studio.s3.example.com/k", "s3.example.com/studio/k",
        "studio.localhost/k", "localhost/studio/k",
        "127.0.0.1/studio/k", "127.0.0.1/studio/k",
    ]  # fmt: skip


def test_boto3_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an endpoint of one's own the bucket stays in the path, however it is named."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", ENDPOINT)
    config = Config(signature_version="s3v4")
    s3 = boto3.client("s3", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b", config=config)
    asked = urlsplit(s3.generate_presigned_url("get_object", {"Bucket": "studio", "Key": "k"}))
    s3.close()
    assert (asked.netloc, asked.path) == ("s3.example.com:8080", "/studio/k")
