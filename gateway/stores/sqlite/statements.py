"""Every SQL statement of the SQLite store, by name, and how a row becomes a value.

A statement that acts for a token has the token in its WHERE, or refuses in its WHERE to lower one: what the
code believes and what the database holds are both asked.
"""
# ruff: noqa: S608 - the parts put together are constants of this file; values are always bound

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.stores.values import Event, EventKind, Fence, Grant, Ruling, Upload, UploadState, Waiting

Row = Sequence[Any]
Values = Sequence[Any] | Mapping[str, Any]

BEGIN = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"

# --- fences -------------------------------------------------------------------------------------------------

_GRANT = "granted_token, holder, ttl_s, granted_at, grant_id"
_FENCE = f"key, floor, completed_floor, sealed_token, shadow_floor, raised_at, completed_token, {_GRANT}"

FENCE = f"SELECT {_FENCE} FROM fence WHERE key = ?"

WRITE_FENCE = f"""
INSERT INTO fence ({_FENCE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    floor = excluded.floor, completed_floor = excluded.completed_floor,
    sealed_token = excluded.sealed_token, shadow_floor = excluded.shadow_floor, raised_at = excluded.raised_at,
    completed_token = excluded.completed_token, granted_token = excluded.granted_token, holder = excluded.holder,
    ttl_s = excluded.ttl_s, granted_at = excluded.granted_at, grant_id = excluded.grant_id
WHERE excluded.floor >= floor AND excluded.completed_floor >= completed_floor
  AND excluded.sealed_token >= sealed_token AND excluded.shadow_floor >= shadow_floor
  AND excluded.granted_token >= granted_token
"""
"""Changes no row whose numbers would fall: then fewer rows change than were written."""

_LISTED = "key > :after AND key >= :prefix AND key < CAST(:beyond AS TEXT)"
FENCES = f"SELECT {_FENCE} FROM fence WHERE {_LISTED} ORDER BY key LIMIT :limit"
LEASES = f"""
SELECT {_FENCE} FROM fence INDEXED BY fence_held
WHERE granted_token = floor AND sealed_token < floor AND {_LISTED} ORDER BY key LIMIT :limit
"""
"""`beyond` is a blob: the prefix and the byte FF, which sorts after all UTF-8."""


def fences_of(count: int) -> str:
    """Select `count` fences by key."""
    return f"SELECT {_FENCE} FROM fence WHERE key IN ({', '.join('?' * count)})"


def fence_of(row: Row) -> Fence:
    key, floor, completed, sealed, shadow, raised_at, completed_token, *grant = row
    return Fence(key, floor, completed, sealed, shadow, raised_at, Grant(*grant) if grant[0] else None, completed_token)


def row_of_fence(fence: Fence) -> Row:
    return (
        fence.key,
        fence.floor,
        fence.completed_floor,
        fence.sealed_token,
        fence.shadow_floor,
        fence.raised_at,
        fence.completed_token,
        *(
            _NO_GRANT
            if (grant := fence.grant) is None
            else (grant.token, grant.holder, grant.ttl_s, grant.at, grant.id)
        ),
    )


_NO_GRANT = (0, "", 0.0, 0.0, "")

REMEMBER_GRANT = """
INSERT INTO repeatable (scope, idempotency_key, token, at) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET token = excluded.token, at = excluded.at WHERE excluded.token > token
"""
GRANTED_BEFORE = "SELECT token FROM repeatable WHERE scope = ? AND idempotency_key = ?"
FORGET_GRANTS = """
DELETE FROM repeatable WHERE (scope, idempotency_key) IN
    (SELECT scope, idempotency_key FROM repeatable WHERE at < :before LIMIT :limit)
RETURNING scope, idempotency_key
"""

END_LEASES = "UPDATE fence SET sealed_token = floor WHERE granted_token = floor AND sealed_token < floor"
"""Of a restored database: what has been granted since its backup, it does not know."""


# --- history ------------------------------------------------------------------------------------------------

_EVENT = "key, kind, token, floor, detail, request_id, count, at"

ADD_EVENT = f"INSERT INTO event ({_EVENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

EVENTS = f"""
SELECT {_EVENT}, serial FROM event WHERE key = :key AND (:before IS NULL OR serial < :before)
ORDER BY serial DESC LIMIT :limit
"""

PRUNE_EVENTS = """
DELETE FROM event WHERE key = :key AND serial <=
    (SELECT serial FROM event WHERE key = :key ORDER BY serial DESC LIMIT 1 OFFSET :kept)
"""
"""The newest event always stays, so that serials never come twice."""

NEWEST_EVENT = "SELECT coalesce(max(serial), 0) FROM event"
PRUNE_FLOORLESS = """
DELETE FROM event WHERE serial > :after AND serial <= :to
    AND floor = 0 AND kind IN ('refused', 'would-refuse', 'in-doubt', 'settled-by-timeout')
"""


def event_of(row: Row) -> Event:
    key, kind, token, floor, detail, request_id, times, at, serial = row
    return Event(key, EventKind(kind), token, floor, detail, request_id, times, at, serial)


def row_of_event(event: Event) -> Row:
    return (
        event.key,
        event.kind.value,
        event.token,
        event.floor,
        event.detail,
        event.request_id,
        event.times,
        event.at,
    )


# --- outbox -------------------------------------------------------------------------------------------------

ADD_WAITING = f"INSERT INTO outbox (webhook, {_EVENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
REMOVE_WAITING = "DELETE FROM outbox WHERE serial = ?"

WAITING = f"SELECT serial, webhook, {_EVENT} FROM outbox WHERE webhook = ? AND serial > ? ORDER BY serial LIMIT ?"
NEXT_WAITING = f"""
SELECT serial, webhook, {_EVENT} FROM outbox WHERE webhook = ? AND key = ? AND serial > ? ORDER BY serial LIMIT 1
"""
BACKLOGS = "SELECT webhook, count(*), min(at) FROM outbox GROUP BY webhook ORDER BY webhook"

NEWEST_TO_DROP = "SELECT serial FROM outbox WHERE webhook = ? ORDER BY serial DESC LIMIT 1 OFFSET ?"
DROP_WAITING = "DELETE FROM outbox WHERE webhook = ? AND serial <= ?"
FORGET_WAITING = "DELETE FROM outbox WHERE webhook = ? AND at < ?"


def waiting_of(row: Row) -> Waiting:
    serial, webhook, *event = row
    return Waiting(serial, webhook, event_of((*event, 0)))


# --- uploads ------------------------------------------------------------------------------------------------

_UPLOAD = "upload_id, bucket, object_key, fence_key, token, nonce, state, etag, changed_at"
_THIS_UPLOAD = "bucket = :bucket AND object_key = :object_key AND upload_id = :upload_id"

BIND_UPLOAD = f"""
INSERT INTO upload ({_UPLOAD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1
"""

UPLOAD = f"SELECT {_UPLOAD} FROM upload WHERE bucket = ? AND object_key = ? AND upload_id = ?"

COMPLETE_UPLOAD = f"""
UPDATE upload SET state = 'completed', etag = :etag, changed_at = :at
WHERE {_THIS_UPLOAD} AND token = :token
"""

MARK_ABORTED = f"""
UPDATE upload SET state = 'aborted', changed_at = :at
WHERE {_THIS_UPLOAD} AND token = :token AND state = 'revoked'
"""

CLOSE_UPLOAD = f"DELETE FROM upload WHERE {_THIS_UPLOAD} AND token = :token"

OVERTAKEN_UPLOADS = f"""
SELECT {_UPLOAD} FROM upload
WHERE fence_key = :key AND (state = 'revoked' OR (state = 'open' AND token < :below))
ORDER BY bucket, object_key, upload_id
"""

REVOKE_UPLOADS = """
UPDATE upload SET state = 'revoked', changed_at = :at
WHERE fence_key = :key AND state = 'open' AND token < :below
"""

OPEN_UPLOADS = f"""
SELECT {_UPLOAD} FROM upload
WHERE state IN ('open', 'copying', 'revoked') AND (bucket, object_key, upload_id) > (:bucket, :object_key, :upload_id)
ORDER BY bucket, object_key, upload_id LIMIT :limit
"""

FORGET_UPLOADS = """
DELETE FROM upload WHERE (bucket, object_key, upload_id) IN
    (SELECT bucket, object_key, upload_id FROM upload
     WHERE state IN ('completed', 'aborted') AND changed_at < :before LIMIT :limit)
RETURNING bucket, object_key, upload_id
"""


def upload_of(row: Row) -> Upload:
    upload_id, bucket, object_key, fence_key, token, nonce, state, etag, changed_at = row
    return Upload(upload_id, bucket, object_key, fence_key, token, nonce, UploadState(state), etag, changed_at)


def row_of_upload(upload: Upload) -> Row:
    return (
        upload.upload_id,
        upload.bucket,
        upload.object_key,
        upload.fence_key,
        upload.token,
        upload.nonce,
        upload.state.value,
        upload.etag,
        upload.changed_at,
    )


# --- owners -------------------------------------------------------------------------------------------------

OWNER = "SELECT fence_key FROM owner WHERE bucket = ? AND object_key = ?"

CLAIM = """
INSERT INTO owner (bucket, object_key, fence_key) VALUES (:bucket, :object_key, :fence_key)
ON CONFLICT (bucket, object_key) DO UPDATE SET fence_key = excluded.fence_key WHERE owner.fence_key = :instead_of
"""

# --- who rules a bucket ---------------------------------------------------------------------------------------

ADD_RUN = "INSERT INTO run (id) VALUES (lower(hex(randomblob(16)))) RETURNING id"
RUNS = "SELECT id FROM run"
KNOWN_RUN = "SELECT 1 FROM run WHERE id = ?"

_RULING = "bucket, claim, after, objects"
RULING = f"SELECT {_RULING} FROM ruling WHERE bucket = ?"
RULINGS = f"SELECT {_RULING} FROM ruling ORDER BY bucket"
WRITE_RULING = f"""
INSERT INTO ruling ({_RULING}) VALUES (:bucket, :claim, NULL, 0)
ON CONFLICT (bucket) DO UPDATE SET claim = excluded.claim, after = NULL, objects = 0
"""
ADVANCE_REBUILD = "UPDATE ruling SET after = :after, objects = :objects WHERE bucket = :bucket AND claim = :claim"
FORGET_BUCKET = "DELETE FROM ruling WHERE bucket = ?"

NEW_IDENTITY = "UPDATE meta SET value = lower(hex(randomblob(16))) WHERE name = 'database' RETURNING value"
FORGET_RUNS = "DELETE FROM run"
CLAIM_ALL = "UPDATE ruling SET claim = ?, after = NULL, objects = 0"


def ruling_of(row: Row) -> Ruling:
    return Ruling(*row)


# --- the database about itself ------------------------------------------------------------------------------

META = "SELECT name, value FROM meta"
WRITE_META = """
INSERT INTO meta (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
REMOVE_META = "DELETE FROM meta WHERE name = :name"

COUNT_CHECK = """
INSERT INTO meta (name, value) VALUES ('checks', 1)
ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1
"""
"""Counts, because SQLite writes nothing for a row that is overwritten by its equal."""

TABLES = "SELECT name FROM sqlite_master"
