"""`restore` and `backup`: what they say to programs when they do nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.stores.sqlite import SqliteStore
from tests.gateway_process import command


def refused(*arguments: str) -> str:
    """What programs are told of a command that was refused; it is told to people, too."""
    result = command(*arguments, "--json")
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert told["ok"] is False
    assert told["error"] in result.stderr
    error: str = told["error"]
    return error


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """One of a database that is in use no more."""
    store = SqliteStore(tmp_path / "gateway.db")
    await store.start("rules")
    await store.backup(tmp_path / "backup.db")
    await store.stop(clean=True)
    return tmp_path / "backup.db"


async def test_programs_are_told_why_nothing_is_restored(tmp_path: Path, backup: Path) -> None:
    """A database that is there, one that is in use, a file that is no backup, a directory that is none."""
    restore = ("restore", "--set", f"store.url=sqlite:{tmp_path}/gateway.db")
    assert "--force" in refused(*restore, str(backup))
    store = SqliteStore(tmp_path / "gateway.db")
    await store.start("rules")
    assert "in use by process" in refused(*restore, "--force", str(backup))
    await store.stop(clean=True)
    (tmp_path / "junk").write_bytes(b"junk")
    assert "junk" in refused(*restore, "--force", str(tmp_path / "junk"))
    nowhere = f"store.url=sqlite:{tmp_path}/junk/gateway.db"
    assert "cannot be written" in refused("restore", "--set", nowhere, str(backup))


async def test_root_restores_for_who_owns_the_directory(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway with a user of its own could open neither the database nor its lock file else."""
    given: list[tuple[str, int, int]] = []

    def chown(path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        assert not follow_symlinks
        given.append((path.name, uid, gid))

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", chown)
    place = tmp_path / "place"
    place.mkdir()
    result = command("restore", "--set", f"store.url=sqlite:{place}/gateway.db", str(backup))
    assert result.exit_code == 0, result.output
    owner = place.stat()
    assert given == [(name, owner.st_uid, owner.st_gid) for name in ("gateway.db", "gateway.db.lock")]
    assert {path.name for path in place.iterdir()} == {"gateway.db", "gateway.db.lock"}


def test_programs_are_told_of_a_configuration_that_cannot_be_used(tmp_path: Path) -> None:
    """Exit status 2, and the fault as JSON, whichever command reads it."""
    (tmp_path / "backup.db").touch()
    for asked in (("restore", str(tmp_path / "backup.db")), ("doctor",), ("explain", "s3://b/k"), ("serve",)):
        result = command(*asked, "--set", "store.url=nothing", "--json")
        assert result.exit_code == 2
        assert "sqlite:" in json.loads(result.stdout)["error"]


def test_programs_are_told_why_there_is_no_backup(tmp_path: Path) -> None:
    """A file that is there, before the gateway is asked."""
    (tmp_path / "there").touch()
    assert "say --force" in refused("backup", str(tmp_path / "there"), "--url", "http://127.0.0.1:1")
    assert os.listdir(tmp_path) == ["there"]


async def test_the_floors_that_a_restore_raises_are_told(tmp_path: Path, backup: Path) -> None:
    """To people and to programs, each with its key, before and after."""
    store = SqliteStore(tmp_path / "gateway.db")
    await store.start("rules")
    await store.raise_floor("job", 34)
    await store.raise_floor("huge", 2**53 + 1)
    await store.stop(clean=True)
    restore = ("restore", "--set", f"store.url=sqlite:{tmp_path}/gateway.db", "--force", str(backup))
    told = json.loads(command(*restore, "--json").stdout)
    assert told["raised"] == 2
    assert told["raised_keys"] == [
        {"key": "huge", "before": 0, "floor": str(2**53 + 1)}, {"key": "job", "before": 0, "floor": 34}
    ]  # fmt: skip
    shown = command(*restore)
    assert "Floors raised  2, to what it knew" in shown.stdout
    assert "job   0 -> 34" in shown.stdout
