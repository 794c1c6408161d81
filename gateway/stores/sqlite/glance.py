"""What a database says of itself and of buckets to one who only looks: its gateway may be running."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite.backup import contents_of
from gateway.stores.sqlite.database import read_only
from gateway.stores.values import RESTORED, Authority, Ruling


class Glance:
    """The moment's state; the part of `gateway.stores.base.Store` that tells who rules a bucket."""

    def __init__(self, file: Path) -> None:
        """Raises `StoreUnavailable` where it is no sound database of ours."""
        contents = contents_of(file)
        try:
            with closing(sqlite3.connect(read_only(file), uri=True)) as connection:
                meta = dict(connection.execute(sql.META))
                runs = connection.execute(sql.RUNS).fetchall()
                rulings = connection.execute(sql.RULINGS).fetchall()
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{file} cannot be read ({error})") from error
        self.authority = Authority(str(meta["database"]), contents.generation, "")
        self._runs = {run for (run,) in runs}
        self._rulings = {ruling.bucket: ruling for ruling in map(sql.ruling_of, rulings)}
        if contents.made:  # whoever starts a backup is another database, which rules nothing
            self._runs.clear()
            self._rulings = {bucket: Ruling(bucket, RESTORED) for bucket in self._rulings}

    async def knows_run(self, run: str) -> bool:
        """Whether it was a run of this database."""
        return run in self._runs

    async def ruling(self, bucket: str) -> Ruling | None:
        """What is known of a bucket; None: nothing."""
        return self._rulings.get(bucket)
