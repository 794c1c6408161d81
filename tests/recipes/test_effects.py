"""docs/effects.md is true: `check`, and what databases do with tokens, in SQLite and PostgreSQL alike."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.error import HTTPError

import psycopg
import pytest

from tests.gateway_process import GatewayProcess
from tests.recipes.conftest import BUCKET
from tests.recipes.services import wait_until_blocked
from tests.recipes.snippets import code, for_psycopg, shown
from tests.recipes.sources import PATIENCE_S, write

Serving = Callable[[str], str]
DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.services))
_numbers = itertools.count()


class Database:
    """A database of the test's own, and the page's code for it."""

    def __init__(self, connection: Any, address: str | None) -> None:
        self.connection = connection
        self.address = address
        self.is_postgresql = address is not None

    def make(self, marker: str) -> None:
        """The tables under that marker."""
        script = shown("effects.md", marker, "sql")
        if self.is_postgresql:
            self.connection.execute(script)
        else:
            self.connection.executescript(script)

    def code(self, marker: str) -> dict[str, Any]:
        return code("effects.md", marker, psycopg=self.is_postgresql)

    def statement(self, marker: str) -> str:
        text = shown("effects.md", marker, "sql")
        return for_psycopg(text) if self.is_postgresql else text

    def rows(self, query: str) -> list[Any]:
        return [tuple(row) for row in self.connection.execute(query).fetchall()]

    def another(self) -> psycopg.Connection:
        assert self.address is not None
        return psycopg.connect(self.address)


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """SQLite in memory; PostgreSQL, a database made for the test. Transactions are begun by the page's code."""
    if request.param == "sqlite":
        with closing(sqlite3.connect(":memory:")) as connection:
            yield Database(connection, None)
    else:
        yield from postgresql_database(request)


@pytest.fixture
def postgresql(request: pytest.FixtureRequest) -> Iterator[Database]:
    """PostgreSQL alone."""
    yield from postgresql_database(request)


def postgresql_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    address = request.getfixturevalue("serving")("postgresql")
    name = f"effects_{next(_numbers)}"
    with psycopg.connect(address, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    address = address.replace("dbname=postgres", f"dbname={name}")
    with psycopg.connect(address, autocommit=True) as connection:
        yield Database(connection, address)


# --- one row


def test_a_row_takes_no_lower_token(database: Database) -> None:
    """The first write inserts, the same token may repeat, a lower one changes nothing and is told so, a higher one
    writes."""
    database.make("one_row")
    save = database.code("one_row")["save"]
    told = [save(database.connection, "job-1", token, f"by {token}") for token in (34, 34, 33, 35, 34)]
    assert told == [True, True, False, True, False]
    assert database.rows("SELECT job, result, fencing_token FROM render") == [("job-1", "by 35", 35)]


def test_the_plain_update(database: Database) -> None:
    """The plain update counts 1 for an equal or higher token, 0 for a lower one and for a row that is not there."""
    database.make("one_row")
    database.code("one_row")["save"](database.connection, "job-1", 34, "first")
    counts = [
        database.connection.execute(
            database.statement("update"), {"job": job, "token": token, "result": f"by {token}"}
        ).rowcount
        for job, token in (("job-1", 34), ("job-1", 33), ("job-2", 34), ("job-1", 35))
    ]
    assert counts == [1, 0, 0, 1]
    assert database.rows("SELECT result, fencing_token FROM render") == [("by 35", 35)]


def late_write(postgresql: Database, first: str, level: str) -> tuple[list[Any], list[Any]]:
    """Token 34 writes and has not committed when 33 comes; what 33 is told, and the row in the end."""
    names = postgresql.code("one_row")
    told: list[Any] = []

    def late(connection: psycopg.Connection) -> None:
        try:
            told.append(names["save"](connection, "job-1", 33, "late"))
        except psycopg.errors.SerializationFailure as error:
            told.append(error.sqlstate)

    with postgresql.another() as ours, postgresql.another() as theirs:
        theirs.isolation_level = getattr(psycopg.IsolationLevel, level)
        ours.execute(first, {"job": "job-1", "token": 34, "result": "ours"})
        thread = threading.Thread(target=late, args=(theirs,))
        thread.start()
        wait_until_blocked(postgresql.connection, theirs.info.backend_pid)
        ours.commit()
        thread.join(PATIENCE_S)
    return told, postgresql.rows("SELECT result, fencing_token FROM render")


@pytest.mark.services
@pytest.mark.parametrize("there", [True, False], ids=["an update", "the first insert"])
@pytest.mark.parametrize(
    ("level", "expected"), [("READ_COMMITTED", False), ("REPEATABLE_READ", "40001"), ("SERIALIZABLE", "40001")]
)
def test_transactions_that_overlap(postgresql: Database, level: str, expected: object, there: bool) -> None:
    """At READ COMMITTED the lower token, which has waited for the higher one's commit, is told 0 rows; above that it
    fails to be serialised. It writes at no level."""
    postgresql.make("one_row")
    names = postgresql.code("one_row")
    if there:
        names["save"](postgresql.connection, "job-1", 30, "before")
    assert late_write(postgresql, names["SAVE"], level) == ([expected], [("ours", 34)])


# --- several rows


def test_a_stale_worker_s_transaction_leaves_nothing(database: Database) -> None:
    """The floor apart from the rows outlives their deletion; who comes below it changes none of them."""
    database.make("several")
    names = database.code("several")
    replace = names["replace_frames"]
    for frames in ([3], [1, 2]):
        replace(database.connection, "job-1", 34, frames)
    with pytest.raises(names["StaleToken"]):
        replace(database.connection, "job-1", 33, [3])
    assert database.rows("SELECT number FROM frame ORDER BY number") == [(1,), (2,)]
    replace(database.connection, "job-1", 35, [])
    with pytest.raises(names["StaleToken"]):
        replace(database.connection, "job-1", 34, [4])
    assert database.rows("SELECT number FROM frame") == []
    assert database.rows("SELECT job, token FROM fence") == [("job-1", 35)]


@pytest.mark.services
def test_nobody_comes_in_between(postgresql: Database) -> None:
    """Who has entered holds the job's row until the commit: a lower token waits, and is then refused."""
    postgresql.make("several")
    names = postgresql.code("several")
    told: list[BaseException] = []

    def late(connection: psycopg.Connection) -> None:
        try:
            names["replace_frames"](connection, "job-1", 33, [3])
        except names["StaleToken"] as error:
            told.append(error)

    with postgresql.another() as ours, postgresql.another() as theirs:
        names["enter"](ours, "job-1", 34)
        thread = threading.Thread(target=late, args=(theirs,))
        thread.start()
        wait_until_blocked(postgresql.connection, theirs.info.backend_pid)
        ours.execute("INSERT INTO frame VALUES ('job-1', 1)")
        ours.commit()
        thread.join(PATIENCE_S)
    assert len(told) == 1
    assert postgresql.rows("SELECT number FROM frame") == [(1,)]


# --- triggers


class Guarded:
    """The table `frame` behind the page's triggers, and statements in transactions of their own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.kind = "trigger_postgresql" if database.is_postgresql else "trigger_sqlite"
        database.make("several")
        database.make(self.kind)

    def write(self, token: int | None, statement: str) -> int:
        connection = self.database.connection
        with connection.transaction() if self.database.is_postgresql else connection:
            if token is not None:
                self.database.code(self.kind)["hold"](connection, token)
            elif not self.database.is_postgresql:
                self.database.code(self.kind)["hold"](connection, None)
            return int(connection.execute(statement).rowcount)


INSERT, MORE = "INSERT INTO frame VALUES ('job-1', 1)", "INSERT INTO frame VALUES ('job-1', 2)"
WRITES = (
    MORE,
    "INSERT INTO frame VALUES ('job-1', 1) ON CONFLICT (job, number) DO UPDATE SET number = 3",
    "UPDATE frame SET number = number + 10",
    "DELETE FROM frame",
)
ERRORS = (sqlite3.IntegrityError, psycopg.errors.IntegrityError)


@pytest.mark.parametrize("right", [34, 35])
@pytest.mark.parametrize("statement", WRITES)
def test_a_trigger_cannot_be_forgotten(database: Database, statement: str, right: int) -> None:
    """Without a token, and with a lower one, no statement changes anything; with the same token or a higher one each
    does, and the floor is its token."""
    guarded = Guarded(database)
    guarded.write(34, INSERT)
    for token, told in ((None, "no fencing token"), (33, "stale")):
        with pytest.raises(ERRORS, match=told):
            guarded.write(token, statement)
        assert database.rows("SELECT number FROM frame") == [(1,)]
    assert guarded.write(right, statement) == 1
    assert database.rows("SELECT job, token FROM fence") == [("job-1", right)]


def test_a_trigger_remembers_what_is_deleted(database: Database) -> None:
    """Deleted rows leave their floor behind, and no row moves to another job."""
    guarded = Guarded(database)
    guarded.write(34, INSERT)
    with pytest.raises(ERRORS, match="another job"):
        guarded.write(35, "UPDATE frame SET job = 'job-2'")
    guarded.write(35, "DELETE FROM frame")
    with pytest.raises(ERRORS, match="stale"):
        guarded.write(34, INSERT)
    assert database.rows("SELECT number FROM frame") == []


def test_sqlite_without_the_function() -> None:
    """A connection that has registered no token cannot write."""
    with closing(sqlite3.connect(":memory:")) as connection:
        Guarded(Database(connection, None))
        with pytest.raises(sqlite3.OperationalError, match="no such function: fencing_token"):
            connection.execute(INSERT)


@pytest.mark.parametrize("how", ["IGNORE", "REPLACE", "FAIL"])
def test_sqlite_s_conflict_clause_opens_no_way(how: str) -> None:
    """`INSERT OR IGNORE` and the like, whose policy reaches into triggers, are fenced as well, and raise the floor."""
    with closing(sqlite3.connect(":memory:")) as connection:
        guarded = Guarded(Database(connection, None))
        guarded.write(34, INSERT)
        for token in (33, None):
            with pytest.raises(ERRORS):
                guarded.write(token, MORE.replace("INSERT", f"INSERT OR {how}"))
        assert guarded.write(35, MORE.replace("INSERT", f"INSERT OR {how}")) == 1
        assert guarded.database.rows("SELECT token FROM fence") == [(35,)]


@pytest.mark.services
def test_a_worker_s_rights_end_at_the_fence(postgresql: Database) -> None:
    """With the rights that the page gives, a worker writes through the trigger, and can neither change nor avoid it."""
    guarded = Guarded(postgresql)
    connection = postgresql.connection
    connection.execute("CREATE ROLE worker")
    postgresql.make("trigger_rights")
    connection.execute("SET ROLE worker")
    assert guarded.write(34, INSERT) == 1
    with pytest.raises(psycopg.errors.IntegrityError, match="stale"):
        guarded.write(33, MORE)
    for statement in (
        "UPDATE fence SET token = 1",
        "DELETE FROM fence",
        "TRUNCATE frame",
        "ALTER TABLE frame DISABLE TRIGGER fenced",
        "SET session_replication_role = replica",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            guarded.write(35, statement)
    connection.execute("RESET ROLE")
    assert postgresql.rows("SELECT token FROM fence") == [(34,)]


@pytest.mark.services
def test_a_token_is_the_transaction_s_alone(postgresql: Database) -> None:
    """The next transaction on the same connection has to say its own."""
    guarded = Guarded(postgresql)
    guarded.write(34, INSERT)
    with pytest.raises(psycopg.errors.IntegrityError, match="no fencing token"):
        guarded.write(None, MORE)


# --- check


def test_check_shuts_the_older_one_out(gateway: GatewayProcess) -> None:
    """A token that `check` lets pass has raised the floor: a lower one fails its own check, and its write."""
    still_holds = code("effects.md", "check")["still_holds"]
    ask = [still_holds(gateway.control_url, "effect/1", token) for token in (33, 34, 34, 33)]
    assert ask == [True, True, True, False]
    still_holds(gateway.control_url, "effect", 34)
    assert write(gateway.s3, f"{BUCKET}/renders/effect/out", 33, "late") == "PreconditionFailed StaleToken 34"


def test_check_takes_no_other_answer_for_one(gateway: GatewayProcess) -> None:
    """What is neither yes nor no is raised: here a token that is none."""
    with pytest.raises(HTTPError, match="400"):
        code("effects.md", "check")["still_holds"](gateway.control_url, "effect", 0)
