"""One worker of the demonstration, a process of its own: `python -m gateway.cli.demonstration.worker NAME`.

It says that it is ready, and begins once it has read its task, a line of JSON, from standard input. What happens to it
is a line of JSON on standard output. A task with `pauses` is held when half of the body has been sent, until another
line is read: whoever started it can stop it right there. It imports little of the gateway, and so starts quickly.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gateway.cli.demonstration.task import SIZE_BYTES, Task, content, parsed
from gateway.client import LeaseLost, Refused, SyncGatewayClient, SyncJob

TIMEOUT_S = 30


class Worker:
    """It does one task, and reports."""

    def __init__(self, name: str, task: Task) -> None:
        self._name = name
        self._task = task

    def work(self) -> int:
        """Its exit status."""
        task = self._task
        if not task.control_url:
            self._upload(task.object_key, (task.access_key, task.secret_key))
            return 0
        with SyncGatewayClient(task.control_url, api_token="", holder=f"worker {self._name}") as client:
            (job,) = client.receive(task.queue, visibility_s=task.visibility_s, wait_s=TIMEOUT_S)
            try:
                with job:
                    self._do(client, job)
            except LeaseLost as error:
                report("stopped", why=str(error))
                return 1
        return 0

    def _do(self, client: SyncGatewayClient, job: SyncJob) -> None:
        report("job", token=job.token, attempts=job.attempts)
        assert job.output is not None
        assert job.credentials is not None
        pair = job.credentials
        # No header, no metadata: the lease's credentials are the token, for any S3 client as it is.
        self._upload(job.output, (pair.access_key_id, pair.secret_access_key, pair.session_token))
        outputs = [f"{self._task.bucket}/{job.output}"]
        try:
            if self._task.careless:
                client.engine.background.call(client.engine.calls.complete(job.key, job.token, None, outputs))
            else:
                job.complete(outputs=outputs)
            report("completion", status=200)
        except Refused as error:
            told = error.problem
            report("completion", status=told.get("status"), reason=error.reason, token=told.get("token"))
            job.check()  # asks the worker's own clock and heartbeat, not the gateway
            job.fail(str(error))

    def _upload(self, key: str, credentials: tuple[str, ...]) -> None:
        s3 = s3_client(self._task.url, *credentials)
        body = (HalfwayBody if self._task.pauses else io.BytesIO)(content(self._name))
        try:
            answer = s3.put_object(Bucket=self._task.bucket, Key=key, Body=body)
            report("upload", status=answer["ResponseMetadata"]["HTTPStatusCode"])
        except ClientError as error:
            told = error.response["Error"]
            report(
                "upload",
                status=error.response["ResponseMetadata"]["HTTPStatusCode"],
                code=told["Code"],
                reason=told.get("FencingReason", ""),
                token=told.get("FencingToken"),
                floor=told.get("FencingFloor"),
            )
        except BotoCoreError as error:
            report("upload", status=0, code=type(error).__name__)


class HalfwayBody(io.BytesIO):
    """Reports, and waits for a line on standard input, before its second half is read."""

    _passed = False

    def read(self, size: int | None = -1) -> bytes:
        if not self._passed and self.tell() >= SIZE_BYTES // 2:
            self._passed = True
            report("halfway", sent_bytes=self.tell())
            sys.stdin.readline()
        return super().read(size)


def s3_client(url: str, access_key: str, secret_key: str, session_token: str | None = None) -> Any:
    """botocore's own client. Without retries, and without reading a body twice to sign it: each body is sent once."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=session_token,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            proxies={},
        ),
    )


def report(what: str, **facts: object) -> None:
    """Say one thing to whoever started this worker."""
    print(json.dumps({"report": what} | facts), flush=True)


if __name__ == "__main__":
    report("ready")
    if line := sys.stdin.readline():
        sys.exit(Worker(sys.argv[1], parsed(line)).work())
