"""A damaged SQLite ledger: the file is kept aside, what can still be read of it goes into a new one, and it is said.

A forecast can do without a ledger, and a run must not end because an earlier disk was full: nothing is thrown away, and
nobody is asked. Damage is what SQLite itself finds when the ledger is opened (`PRAGMA quick_check`).
"""

import contextlib
import datetime as dt
import os
import sqlite3
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from forerun.errors import UserNote

BESIDE = ("", "-wal", "-shm")
"""Files of one SQLite database."""
MOST_CHECKED_BYTES = 64 * 2**20
"""Larger ledgers are not read through when they are opened."""


class LedgerDamage(UserNote):
    """A ledger was damaged, and another one took its place."""


def damage_of(path: Path) -> str:
    """What is wrong with a SQLite file, in SQLite's words; empty where nothing is, or there is no file yet."""
    if not path.exists() or path.stat().st_size == 0:
        return ""
    try:
        with closing(sqlite3.connect(path)) as database:
            if path.stat().st_size > MOST_CHECKED_BYTES:
                database.execute("select count(*) from sqlite_master").fetchone()
                return ""
            (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # locked, or not to be read: no damage
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if answer == "ok" else answer


@dataclass(frozen=True)
class DamagedLedger:
    """A database that was renamed with the files beside it."""

    path: Path
    """Where it was."""
    aside: Path
    problem: str

    def read_back(self, engine: sa.Engine, tables: sa.MetaData) -> None:
        """Put every row that can still be read into the new ledger, and say what became of the old one."""
        count = 0
        if self.aside.exists():  # else another process was quicker
            with closing(sqlite3.connect(self.aside)) as database, engine.connect() as connection:
                count = sum(_read_table(database, connection, table) for table in tables.sorted_tables)
                connection.commit()
        warnings.warn(
            f"The ledger {self.path} was damaged ({self.problem}). It is kept as {self.aside.name}; a new one has the "
            f"{count} rows that could still be read. What it misses of runs comes back from their folders with "
            f"forerun runs rebuild.",
            LedgerDamage,
            stacklevel=3,
        )


def aside_if_damaged(path: Path) -> DamagedLedger | None:
    """Rename a database that is damaged; None where it is not."""
    problem = damage_of(path)
    if not problem:
        return None
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S-%f")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for end in BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{aside}{end}")
    return DamagedLedger(path, aside, problem)


def _read_table(database: sqlite3.Connection, connection: sa.Connection, table: sa.Table) -> int:
    names, count = [column.name for column in table.columns], 0
    listed = ", ".join(f'"{name}"' for name in names)
    statement = sa.text(
        f"insert or ignore into {table.name} ({listed}) values ({', '.join(f':{name}' for name in names)})"  # noqa: S608
    )
    with contextlib.suppress(sqlite3.DatabaseError):  # the rest of this table is lost
        for row in database.execute(f"select {listed} from {table.name}"):  # noqa: S608 (our own tables' names)
            count += connection.execute(statement, dict(zip(names, row, strict=True))).rowcount
    return count
