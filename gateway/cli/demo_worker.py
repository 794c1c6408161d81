"""One worker of the demonstration, a process of its own: one PutObject, its outcome as JSON on standard output.

It begins once it has read a line from standard input. With `--report-halfway` it tells when half of the body has been
sent, and goes on once it has read another: whoever started it can stop it right there. Credentials come from
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. A script that imports nothing of the gateway, and so starts quickly.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

OBJECT, FENCE_KEY = "job-1/out.mp4", "job-1"
SIZE_BYTES = 24 * 1024 * 1024
TIMEOUT_S = 10


def content(token: int) -> bytes:
    """What the worker with this token renders."""
    line = f"rendered by the worker that holds token {token}\n".encode()
    return (line * (SIZE_BYTES // len(line) + 1))[:SIZE_BYTES]


def s3_client(url: str) -> Any:
    """botocore's own client. Without retries, and without reading a body twice to sign it: each body is sent once."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            proxies={},
        ),
    )


class HalfwayBody(io.BytesIO):
    """Reports, and waits for a line on standard input, before its second half is read."""

    _passed = False

    def read(self, size: int | None = -1) -> bytes:
        if not self._passed and self.tell() >= SIZE_BYTES // 2:
            self._passed = True
            report(halfway=self.tell())
            sys.stdin.readline()
        return super().read(size)


def report(**outcome: object) -> None:
    """Say one thing to whoever started this worker."""
    print(json.dumps(outcome), flush=True)


def main(url: str, bucket: str, token: int, *, report_halfway: bool) -> None:
    """Upload once, and report."""
    s3 = s3_client(url)
    body = (HalfwayBody if report_halfway else io.BytesIO)(content(token))
    metadata = {"fencing-key": FENCE_KEY, "fencing-token": str(token)}
    sys.stdin.readline()
    try:
        answer = s3.put_object(Bucket=bucket, Key=OBJECT, Body=body, Metadata=metadata)
        report(status=answer["ResponseMetadata"]["HTTPStatusCode"])
    except ClientError as error:
        answer = error.response
        report(status=answer["ResponseMetadata"]["HTTPStatusCode"], **answer["Error"])
    except BotoCoreError as error:
        report(status=0, Code=type(error).__name__, Message=str(error))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), report_halfway="--report-halfway" in sys.argv[4:])
