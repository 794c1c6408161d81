"""A worker that may die at a step of its job: `python -m tests.end_to_end.working CONTROL S3 ACCESS SECRET VISIBILITY_S
STEP QUEUE …`. STEP is `received`, `written` or `completing`, after which it kills itself (SIGKILL); `frozen`, after
which it stops itself (SIGSTOP) with its output written; or `none`. It takes one queue after another until each is
empty, and prints a line for each completion that was answered: key, token, status."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from typing import Any
from urllib.parse import quote, urlsplit

from gateway.s3.sigv4 import Credentials
from tests.conftest import s3_client


class Worker:
    def __init__(self, control: str, s3: str, access_key: str, secret_key: str, visibility_s: str, step: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(control).netloc, timeout=30)
        self.s3 = s3_client(s3, Credentials(access_key, secret_key), signature_version="s3v4")
        self.visibility_s = float(visibility_s)
        self.step = step

    def reached(self, step: str) -> None:
        if self.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def ask(self, path: str, body: object) -> None:
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})

    def told(self) -> tuple[int, Any]:
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())

    def work(self, queue: str) -> None:
        while True:
            self.ask(
                f"/v1/queues/{queue}/receive",
                {"holder": f"{os.getpid()}", "visibility_s": self.visibility_s, "wait_s": 4},
            )
            status, answer = self.told()
            assert status == 200, answer
            if not answer["jobs"]:
                return
            self.do(answer["jobs"][0])

    def do(self, job: dict[str, Any]) -> None:
        self.reached("received")
        name, metadata = f"renders/{job['key']}/final", {"fencing-token": str(job["token"])}
        self.s3.put_object(Bucket="films", Key=name, Body=str(job["token"]).encode(), Metadata=metadata)
        self.reached("written")
        if self.step == "frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
        body = {"token": job["token"], "result": os.getpid(), "outputs": [{"bucket": "films", "key": name}]}
        self.ask(f"/v1/jobs/{quote(job['key'], safe='')}/complete", body)
        self.reached("completing")
        status, _ = self.told()
        print(job["key"], job["token"], status, flush=True)


if __name__ == "__main__":
    worker = Worker(*sys.argv[1:7])
    for name in sys.argv[7:]:
        worker.work(name)
