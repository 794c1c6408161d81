"""Workers of a run that write in parts, with botocore: only Create carries the token, as with many programs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from tests.chaos.recorder import Recorder
from tests.chaos.referee import next_token
from tests.chaos.world import BUCKET, CLIENT, JOBS, World, claim, payload, place
from tests.chaos.writer import LEASE_S
from tests.conftest import s3_client

ATTEMPTS = 3
NAMES = ("assembled", "out")


class Assembler:
    """One worker."""

    def __init__(self, directory: Path, name: str, seed: str) -> None:
        self._directory = directory
        self._name = name
        self._random = random.Random(seed)
        self._recorder = Recorder(directory, name)
        self._s3 = s3_client(World.load(directory).gateway, CLIENT, signature_version="s3v4")
        self._s3.meta.events.register("before-call.s3.CreateMultipartUpload", self._claim)
        self._headers: tuple[tuple[str, str], ...] = ()
        self._serial = 0

    def _claim(self, params: dict[str, Any], **_: object) -> None:
        params["headers"].update(self._headers)

    async def run(self) -> None:
        """For ever."""
        while True:
            job = self._random.choice(JOBS)
            if token := await next_token(self._directory, job, LEASE_S):
                self._assemble(job, token)
            else:
                time.sleep(self._random.uniform(0.01, 0.1))  # nothing else goes on in this process

    def _assemble(self, job: str, token: int) -> None:
        self._serial += 1
        value = f"{self._name}-{self._serial}.{self._random.randint(1000, 300_000)}"
        data, name = payload(value), self._random.choice(NAMES)
        self._headers = claim(job, token)
        where = {"Bucket": BUCKET, "Key": place(job, name)}

        def attempts(operation: str, send: Callable[[], Any], told: str | None) -> Any:
            for _ in range(ATTEMPTS):
                call = self._recorder.call(operation, job, token, f"{BUCKET}/{place(job, name)}", told)
                answer, final = self._told(call, send)
                if answer is not None or final:
                    return answer
                time.sleep(self._random.uniform(0.05, 0.5))
            return None

        made = attempts(
            "CreateMultipartUpload", lambda: self._s3.create_multipart_upload(**where, Metadata={"value": value}), value
        )
        if made is None or "UploadId" not in made:  # botocore takes an answer for whole that ends in its head
            return
        upload = {**where, "UploadId": made["UploadId"]}
        part = attempts("UploadPart", lambda: self._s3.upload_part(**upload, PartNumber=1, Body=data), value)
        if part is None or "ETag" not in part:
            return
        time.sleep(self._random.uniform(0, 0.5))
        listed = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        attempts(
            "CompleteMultipartUpload",
            lambda: self._s3.complete_multipart_upload(**upload, MultipartUpload=listed),
            value,
        )

    def _told(self, call: str, send: Callable[[], Any]) -> tuple[Any, bool]:
        """The answer, None if it is an error or did not come; whether it is final."""
        try:
            answer = send()
        except ClientError as error:
            status = self._record(call, error.response)
            return None, status < 500
        except (BotoCoreError, HTTPClientError):
            return None, False
        self._record(call, answer)
        return answer, True

    def _record(self, call: str, answer: dict[str, Any]) -> int:
        told = answer["ResponseMetadata"]
        headers, status = told.get("HTTPHeaders", {}), int(told["HTTPStatusCode"])
        outcome, floor = headers.get("x-fencing-outcome", ""), int(headers.get("x-fencing-floor", -1))
        self._recorder.answer(call, status, outcome, floor)
        return status
