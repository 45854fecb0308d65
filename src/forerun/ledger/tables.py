"""Tables of the ledger, and how several processes make them at once.

Rows are only ever added. SQLite waits for its lock; a write-ahead log lets a dashboard read while a run writes.
"""

import sqlite3
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from forerun.errors import LedgerConflict

SCHEMA_VERSION = 1
BUSY_SECONDS = 30
RETRY_SECONDS = 0.02
METADATA = sa.MetaData()
VERSION = sa.Table("schema_version", METADATA, sa.Column("version", sa.Integer, primary_key=True))
RUNS = sa.Table(
    "runs",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("workload", sa.String(200), nullable=False),
    sa.Column("gpu", sa.String(100), nullable=False),
    sa.Column("settings_hash", sa.String(16), nullable=False, index=True),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("versions", sa.JSON, nullable=False),
    sa.Column("started_at", sa.String(32), nullable=False),
)
EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.String(32), nullable=False, index=True),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("note", sa.Text, nullable=False),
)
STEPS = sa.Table(
    "steps",
    METADATA,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("report", sa.JSON, nullable=False),
)
DOCUMENTS = sa.Table(
    "documents",
    METADATA,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),
)
CALIBRATIONS = sa.Table(
    "calibrations",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("gpu", sa.String(100), nullable=False, index=True),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
)
OBSERVATIONS = sa.Table(
    "observations",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("gpu", sa.String(100), nullable=False, index=True),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("forecast", sa.JSON, nullable=False),
    sa.Column("observation", sa.JSON, nullable=False),
)


def create_tables(engine: sa.Engine) -> None:
    """Make what is not there; other processes may do the same in the same moment.

    Raises:
        LedgerConflict: a newer version of Forerun wrote the ledger.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure)
    is_whole = set(METADATA.tables) <= set(sa.inspect(engine).get_table_names())
    if not is_whole or _version(engine) is None:
        _create(engine)
    version = _version(engine)
    if version is not None and version > SCHEMA_VERSION:
        raise LedgerConflict(
            f"The ledger has schema {version}; this version of Forerun writes {SCHEMA_VERSION}. "
            f"Update Forerun, or set FORERUN_LEDGER to another ledger."
        )


def _configure(connection: Any, _: Any) -> None:
    """Settings of a connection to SQLite."""
    connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")  # sqlite.org/wal.html
            return
        except sqlite3.OperationalError as error:
            # the change to a write-ahead log does not wait for a lock, whatever busy_timeout says
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(RETRY_SECONDS)


def _create(engine: sa.Engine) -> None:
    """Each table and index where there is none, then the version as the last."""
    for table in METADATA.sorted_tables:
        for part in (sa.schema.CreateTable(table, if_not_exists=True), *_indices(table)):
            try:
                with engine.begin() as connection:
                    connection.execute(part)
            except (IntegrityError, ProgrammingError, OperationalError) as error:
                # IF NOT EXISTS of PostgreSQL looks first and makes then, so that two processes may both make it
                if "already exists" not in str(error):
                    raise
    try:
        with engine.begin() as connection:
            connection.execute(VERSION.insert().values(version=SCHEMA_VERSION))
    except IntegrityError:  # another process was quicker
        return


def _indices(table: sa.Table) -> list[sa.schema.CreateIndex]:
    return [sa.schema.CreateIndex(index, if_not_exists=True) for index in table.indexes]


def _version(engine: sa.Engine) -> int | None:
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.max(VERSION.c.version)))
