"""What workers import: leases and jobs as contexts, typed errors, S3 clients that carry the token (docs/workers.md)."""

from gateway.client.blocking import SyncGatewayClient, SyncJob, SyncLease
from gateway.client.client import GatewayClient
from gateway.client.errors import (
    Distrusted,
    GatewayError,
    JobCompleted,
    LeaseHeld,
    LeaseLost,
    Refused,
    StaleToken,
    Unreachable,
)
from gateway.client.lease import Job, Lease
from gateway.client.records import Completion, JobRecord, LeaseCredentials
from gateway.client.s3 import fenced_s3, fenced_session

__all__ = [
    "Completion",
    "Distrusted",
    "GatewayClient",
    "GatewayError",
    "Job",
    "JobCompleted",
    "JobRecord",
    "Lease",
    "LeaseCredentials",
    "LeaseHeld",
    "LeaseLost",
    "Refused",
    "StaleToken",
    "SyncGatewayClient",
    "SyncJob",
    "SyncLease",
    "Unreachable",
    "fenced_s3",
    "fenced_session",
]
