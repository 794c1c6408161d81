"""Every SQL statement of the table of jobs, and how a row becomes a value."""
# ruff: noqa: S608 - the parts put together are constants of this file; values are always bound

from __future__ import annotations

import json

from gateway.core.job import Completion, Job, JobState, Output
from gateway.stores.job_base import Place, QueueLength
from gateway.stores.sqlite.statements import Row, Values

_JOB = """
serial, key, queue, state, priority, attempts, submitted_at, available_at, token, delivery, error,
completed_token, holder, completed_at, outputs, submission, result, payload
"""

ADD_JOB = f"INSERT INTO job ({_JOB}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

WRITE_JOB = """
UPDATE job SET
    state = :state, attempts = :attempts, available_at = :available_at, token = :token, delivery = :delivery,
    error = :error, completed_token = :completed_token, holder = :holder, completed_at = :completed_at,
    outputs = :outputs, result = :result
WHERE key = :key AND token = :token_before AND state = :state_before
"""
"""Changes no row that is not as it was when this was decided: then fewer rows change than were written."""

REMOVE_JOB = "DELETE FROM job WHERE key = :key AND token = :token_before AND state = :state_before"

JOB = f"SELECT {_JOB} FROM job WHERE key = ?"

WAITING = """
SELECT -priority, serial, key FROM job WHERE queue = ? AND state = 'waiting' ORDER BY priority DESC, serial LIMIT ?
"""

RUNNING = f"SELECT {_JOB} FROM job WHERE state = 'running' AND key > ? ORDER BY key LIMIT ?"

DELIVERED_BY = f"SELECT {_JOB} FROM job WHERE state = 'running' AND delivery = ? ORDER BY serial"

DUE = "SELECT key FROM job WHERE state = 'delayed' AND available_at <= ? ORDER BY available_at LIMIT ?"
NEXT_DUE = "SELECT min(available_at) FROM job WHERE state = 'delayed'"

HIGHEST_SERIAL = "SELECT coalesce(max(serial), 0) FROM job"

QUEUES = """
SELECT queue, state, count(*) FROM job WHERE queue IS NOT NULL GROUP BY queue, state ORDER BY queue, state
"""


def jobs(*, queue: bool, state: bool) -> str:
    """A page of jobs; which of the two are asked for."""
    asked = "queue = :queue AND " * queue + "state = :state AND " * state
    return f"SELECT {_JOB} FROM job WHERE {asked}key > :after ORDER BY key LIMIT :limit"


def jobs_of(count: int) -> str:
    """Select `count` jobs by key."""
    return f"SELECT {_JOB} FROM job WHERE key IN ({', '.join('?' * count)})"


def place_of(row: Row) -> Place:
    return Place(*row)


def length_of(row: Row) -> QueueLength:
    queue, state, jobs = row
    return QueueLength(queue, JobState(state), jobs)


def job_of(row: Row) -> Job:
    *head, completed_token, holder, completed_at, outputs, submission, result, payload = row
    serial, key, queue, state, priority, attempts, submitted_at, available_at, token, delivery, error = head
    completion = None
    if completed_token is not None:
        named = tuple(Output(*output) for output in json.loads(outputs))
        completion = Completion(completed_token, holder, result, named, completed_at)
    return Job(
        key,
        queue,
        JobState(state),
        priority,
        serial,
        attempts,
        payload,
        submitted_at,
        available_at,
        token,
        delivery,
        error,
        completion,
        submission,
    )


def row_of_job(job: Job) -> Row:
    values = _changing(job)
    return (
        job.serial,
        job.key,
        job.queue,
        values["state"],
        job.priority,
        job.attempts,
        job.submitted_at,
        job.available_at,
        job.token,
        job.delivery,
        job.error,
        values["completed_token"],
        values["holder"],
        values["completed_at"],
        values["outputs"],
        job.submission,
        values["result"],
        job.payload,
    )


def change_of_job(before: Job, after: Job) -> Values:
    """What `WRITE_JOB` takes."""
    return {**_changing(after), **this_job(before)}


def this_job(before: Job) -> dict[str, object]:
    """The job as it was when something was decided."""
    return {"key": before.key, "token_before": before.token, "state_before": before.state.value}


def _changing(job: Job) -> dict[str, object]:
    done = job.completion
    return {
        "state": job.state.value,
        "attempts": job.attempts,
        "available_at": job.available_at,
        "token": job.token,
        "delivery": job.delivery,
        "error": job.error,
        "completed_token": None if done is None else done.token,
        "holder": "" if done is None else done.holder,
        "completed_at": 0.0 if done is None else done.at,
        "outputs": "[]" if done is None else json.dumps([(output.bucket, output.key) for output in done.outputs]),
        "result": None if done is None else done.result,
    }
