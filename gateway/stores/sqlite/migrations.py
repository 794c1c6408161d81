"""The schema, as numbered steps: the n-th brings a database from version n-1 to n.

A step that has been released is never changed. The version is SQLite's `user_version`.
"""

from __future__ import annotations

_FIRST = """
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE fence (
    key             TEXT PRIMARY KEY,
    floor           INTEGER NOT NULL CHECK (floor >= 0),
    completed_floor INTEGER NOT NULL CHECK (completed_floor BETWEEN 0 AND floor),
    sealed_token    INTEGER NOT NULL CHECK (sealed_token BETWEEN 0 AND floor),
    shadow_floor    INTEGER NOT NULL CHECK (shadow_floor >= 0),
    raised_at       REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE event (
    serial     INTEGER PRIMARY KEY,
    key        TEXT NOT NULL,
    kind       TEXT NOT NULL,
    token      INTEGER NOT NULL,
    floor      INTEGER NOT NULL,
    detail     TEXT NOT NULL,
    request_id TEXT NOT NULL,
    count      INTEGER NOT NULL,
    at         REAL NOT NULL
);
CREATE INDEX event_of_key ON event (key, serial);

CREATE TABLE upload (
    bucket     TEXT NOT NULL,
    object_key TEXT NOT NULL,
    upload_id  TEXT NOT NULL,
    fence_key  TEXT NOT NULL,
    token      INTEGER NOT NULL,
    nonce      TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('open', 'copying', 'completed', 'revoked', 'aborted')),
    etag       TEXT,
    changed_at REAL NOT NULL,
    PRIMARY KEY (bucket, object_key, upload_id)
) WITHOUT ROWID;
CREATE INDEX upload_of_key ON upload (fence_key, state);
CREATE INDEX upload_ended ON upload (changed_at) WHERE state IN ('completed', 'aborted');

CREATE TABLE owner (
    bucket     TEXT NOT NULL,
    object_key TEXT NOT NULL,
    fence_key  TEXT NOT NULL,
    PRIMARY KEY (bucket, object_key)
) WITHOUT ROWID;
"""

_SECOND = """
INSERT INTO meta (name, value) VALUES ('database', lower(hex(randomblob(16)))), ('generation', 0);

CREATE TABLE run (
    id TEXT PRIMARY KEY
) WITHOUT ROWID;

CREATE TABLE ruling (
    bucket     TEXT PRIMARY KEY,
    claim      TEXT,
    after      TEXT,
    objects    INTEGER NOT NULL
) WITHOUT ROWID;
"""
"""Who the database is, its runs, and the buckets that it rules."""

_LEASES = """
ALTER TABLE fence ADD COLUMN granted_token INTEGER NOT NULL DEFAULT 0 CHECK (granted_token BETWEEN 0 AND floor);
ALTER TABLE fence ADD COLUMN holder TEXT NOT NULL DEFAULT '';
ALTER TABLE fence ADD COLUMN ttl_s REAL NOT NULL DEFAULT 0;
ALTER TABLE fence ADD COLUMN granted_at REAL NOT NULL DEFAULT 0;
ALTER TABLE fence ADD COLUMN grant_id TEXT NOT NULL DEFAULT '';
ALTER TABLE fence ADD COLUMN completed_token INTEGER NOT NULL DEFAULT 0 CHECK (completed_token BETWEEN 0 AND floor);
CREATE INDEX fence_held ON fence (key) WHERE granted_token = floor AND sealed_token < floor;

CREATE TABLE repeatable (
    scope           TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    token           INTEGER NOT NULL,
    at              REAL NOT NULL,
    PRIMARY KEY (scope, idempotency_key)
) WITHOUT ROWID;
CREATE INDEX repeatable_at ON repeatable (at);
"""
"""The last lease of each key, and which call it answered."""

_OUTBOX = """
CREATE TABLE outbox (
    serial     INTEGER PRIMARY KEY AUTOINCREMENT,
    webhook    TEXT NOT NULL,
    key        TEXT NOT NULL,
    kind       TEXT NOT NULL,
    token      INTEGER NOT NULL,
    floor      INTEGER NOT NULL,
    detail     TEXT NOT NULL,
    request_id TEXT NOT NULL,
    count      INTEGER NOT NULL,
    at         REAL NOT NULL
);
CREATE INDEX outbox_of_webhook ON outbox (webhook);
CREATE INDEX outbox_of_key ON outbox (webhook, key);
"""
"""What waits to be announced. Both indexes hold the serial too, as every index does."""

_JOBS = """
CREATE TABLE job (
    serial          INTEGER PRIMARY KEY,
    key             TEXT NOT NULL UNIQUE,
    queue           TEXT,
    state           TEXT NOT NULL CHECK (state IN ('waiting', 'delayed', 'running', 'completed', 'dead')),
    priority        INTEGER NOT NULL,
    attempts        INTEGER NOT NULL CHECK (attempts >= 0),
    submitted_at    REAL NOT NULL,
    available_at    REAL NOT NULL,
    token           INTEGER NOT NULL,
    delivery        TEXT NOT NULL,
    error           TEXT NOT NULL,
    completed_token INTEGER CHECK ((completed_token IS NULL) = (state <> 'completed')),
    holder          TEXT NOT NULL,
    completed_at    REAL NOT NULL,
    outputs         TEXT NOT NULL,
    result          TEXT,
    payload         TEXT
);
CREATE INDEX job_in_line ON job (queue, priority DESC, serial, key, state) WHERE state = 'waiting';
CREATE INDEX job_of_queue ON job (queue, state, key);
CREATE INDEX job_running ON job (key) WHERE state = 'running';
CREATE INDEX job_due ON job (available_at) WHERE state = 'delayed';
CREATE INDEX job_delivered ON job (delivery) WHERE state = 'running';
"""
"""Jobs. What may be long comes last in a row, so that the rest is read without it."""

_SUBMISSIONS = """
ALTER TABLE job ADD COLUMN submission TEXT NOT NULL DEFAULT '';
"""
"""Which call submitted each job."""

MIGRATIONS = (_FIRST, _SECOND, _LEASES, _OUTBOX, _JOBS, _SUBMISSIONS)
LEASES_SINCE = 3
"""The version from which on the table of floors knows leases."""
OUTBOX_SINCE = 4
"""The version from which on there is an outbox."""
JOBS_SINCE = 5
"""The version from which on there are jobs."""


def script(version: int) -> str:
    """The transaction that brings a database to `version` from the one before."""
    return f"BEGIN IMMEDIATE; {MIGRATIONS[version - 1]} PRAGMA user_version = {version}; COMMIT;"
