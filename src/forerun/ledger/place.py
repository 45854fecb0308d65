"""Where the ledger is, and whether it knows some devices, without the database library, whose import takes 0.2 s."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

SQLITE = "sqlite:///"
TABLES = ("runs", "observations", "calibrations")
"""Those that a forecast asks for a device (`gpu`)."""


def default_url() -> str:
    """URL of a SQLite file in the user's data folder."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return f"{SQLITE}{home / 'forerun' / 'ledger.sqlite'}"


def url_of_file(path: Path) -> str:
    """SQLAlchemy URL of a SQLite file, from wherever it is opened."""
    return f"{SQLITE}{path.expanduser().absolute()}"


def may_know(url: str, gpus: Sequence[str]) -> bool:
    """Whether the ledger at a SQLAlchemy URL may hold runs, steps or a calibration of one of the devices.

    True where looking is not this simple: another database, a file that cannot be read, a schema of another time.
    """
    path = url.removeprefix(SQLITE)
    if path == url or not path or "?" in path or path.startswith(":"):
        return True
    if not Path(path).exists():
        return False
    marks = ", ".join("?" * len(gpus))
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as database:
            queries = (f"select 1 from {table} where gpu in ({marks}) limit 1" for table in TABLES)
            return any(database.execute(query, list(gpus)).fetchone() for query in queries)
    except sqlite3.Error:
        return True
