"""docs/operations.md, made from the table of operations: `make docs` writes it, a test holds it to the table."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.write import FINAL_ERRORS, FINAL_STATUS
from gateway.s3.operations import OPERATIONS, Body, Effect, Fences, Operation
from tests.docs.pages import DOCS

PAGE = DOCS / "operations.md"

_HEAD = """\
# The operations of S3

Made from `gateway/s3/operations.py` by `make docs`. Every operation of the S3 API has one row there, and routing,
authorisation (`[[client]] operations`), metrics and fence read it; so does this page.

| column | says |
|---|---|
| request | method, target (`b` a bucket, `k` a key), query parameters and header by which it is recognised |
| effect | reads; stages what a later commit makes visible; commits; discards what was staged; configures a bucket |
| commit point | from here on the store may apply it. Before, a write that is overtaken leaves nothing behind |
| condition | with a token it demands that the object is as last seen, where the store proved to honour that |
| fence scope | whose token decides: that of the object's key, of the upload's, of each listed object's |
| policy | *by its rule*: `mode` and `without_token` decide. *passed*: no fence looks at it. *501*: in any mode |

What is marked ¹ some stores overlook where they do not know it, and do the plain operation instead (the embedded one:
to delete a bucket's website deletes the bucket). Of an object it is 501 until the store has been seen not to, of a
bucket where the store is SeaweedFS.

Copies, Complete and UploadPartCopy may take the store minutes: for them the longer time-outs hold
(`settle_timeout_assembly_s`, `commit_timeout_assembly_s`).
"""

_SETTINGS = """\
A bucket's settings change no object by themselves. Some have the store write or remove objects later, by itself and
past every fence: lifecycle, replication, inventory, analytics, logging, metadata tables. Leave them out of
`[[client]] operations` for clients that need none.
"""

_FINAL = """\
After its commit point a write is settled as refused by one of these codes in the store's answer, or, in an answer
without a code, by one of these statuses. A success settles it as applied. Everything else leaves it in doubt (R5 of
[the protocol](protocol.md)).
"""

_POLICY = {
    Effect.READ: "passed",
    Effect.CONFIGURE: "passed",
    Effect.STAGE: "by its rule",
    Effect.COMMIT: "by its rule",
    Effect.DISCARD: "by its rule",
    Effect.NEVER: "501",
}


def render() -> str:
    """The whole page."""
    fenced = [row for row in OPERATIONS if row.effect in (Effect.COMMIT, Effect.STAGE, Effect.DISCARD)]
    sections = [
        _HEAD,
        "## With an effect on objects\n\n" + _table(fenced),
        "## Never passed\n\n" + _never(row for row in OPERATIONS if row.effect is Effect.NEVER),
        "## Reads\n\n" + _table(row for row in OPERATIONS if row.effect is Effect.READ),
        f"## Settings of buckets\n\n{_SETTINGS}\n"
        + _table(row for row in OPERATIONS if row.effect is Effect.CONFIGURE),
        f"## Final errors\n\n{_FINAL}\n" + _final(),
    ]
    return "\n".join(sections)


def _table(rows: Iterable[Operation]) -> str:
    lines = [
        "| operation | request | effect | commit point | condition | fence scope | policy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            _names(row),
            f"`{_request(row)}`",
            row.effect.value,
            _commit_point(row),
            "yes" if row.conditional else "-",
            row.fences.value,
            _POLICY[row.effect] + ("¹" if row.overlooked else ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _never(rows: Iterable[Operation]) -> str:
    lines = ["| operation | request | policy | instead |", "|---|---|---|---|"]
    lines += [f"| {_names(row)} | `{_request(row)}` | {_POLICY[row.effect]} | {row.instead} |" for row in rows]
    return "\n".join(lines) + "\n"


def _names(row: Operation) -> str:
    also = f" (also {', '.join(row.aliases)})" if row.aliases else ""
    return f"{row.name}{also}"


def _request(row: Operation) -> str:
    target = {"service": "/", "bucket": "/b", "object": "/b/k"}[row.level.value]
    query = "&".join(name for name in (row.subresource, *row.requires) if name)
    header = f" {row.header}:" if row.header else ""
    return f"{row.method} {target}{'?' if query else ''}{query}{header}"


def _commit_point(row: Operation) -> str:
    if row.effect is not Effect.COMMIT:
        return "none" if row.fences is not Fences.NOTHING else "-"
    return "the last bytes of the body" if row.body is Body.PAYLOAD else "sending the request"


def _final() -> str:
    codes = ", ".join(f"`{code}`" for code in sorted(FINAL_ERRORS))
    statuses = ", ".join(str(status) for status in sorted(FINAL_STATUS))
    return f"| | |\n|---|---|\n| codes | {codes}, and `NotImplemented` with 501 |\n| statuses | {statuses} |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
