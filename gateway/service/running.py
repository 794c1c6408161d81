"""What is delivered: jobs that run, each under the token of its delivery.

The store's answers are dealt with in any order. So what is known of a delivery is changed by its token, never by its
key alone: another delivery of the key may have been made since.
"""

from __future__ import annotations

from gateway.core.job import Job
from gateway.core.keys import FencingKey


class Running:
    """The deliveries of one gateway that have not run out, as far as it knows."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def of(self, key: FencingKey, token: int) -> Job | None:
        """The job that runs under `token`."""
        job = self._jobs.get(key)
        return job if job is not None and job.token == token else None

    def note(self, job: Job) -> bool:
        """The job runs; False where it is known to have been delivered again since."""
        known = self._jobs.get(job.key)
        if known is not None and known.token > job.token:
            return False
        self._jobs[job.key] = job
        return True

    def forget(self, key: FencingKey, token: int) -> Job | None:
        """The job runs under `token` no more; answers it, if it did."""
        job = self.of(key, token)
        if job is not None:
            del self._jobs[key]
        return job
