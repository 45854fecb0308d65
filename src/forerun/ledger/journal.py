"""Rows of a run once more, in the run's own folder: a ledger that is lost can be made again from `runs/`.

`RUN/ledger.jsonl` has a line of JSON for each row that the ledger took of this run (itself, its events, steps and
documents), written after the ledger has it. Calibrations and observations belong to no run and are not there.
"""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from forerun.errors import UserNote
from forerun.ledger.tables import DOCUMENTS, EVENTS, RUNS, STEPS

FILE = "ledger.jsonl"
TABLES = {table.name: table for table in (RUNS, EVENTS, STEPS, DOCUMENTS)}
Row = dict[str, Any]


class JournalWarning(UserNote):
    """A run's own copy of its rows cannot be written; the ledger has them."""


class Journals:
    """Appends rows to the journals of their runs."""

    def __init__(self, engine: sa.Engine):
        self._engine = engine
        self._files: dict[str, Path | None] = {}

    def add(self, table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows that the ledger has taken; what cannot be written is said once for a run, and left."""
        if table.name not in TABLES:
            return
        lines: dict[str, list[str]] = {}
        for row in rows:
            run_id = str(row["id"] if table is RUNS else row["run_id"])
            lines.setdefault(run_id, []).append(json.dumps({"table": table.name, "row": dict(row)}) + "\n")
        for run_id, own in lines.items():
            file = self._file(run_id)
            try:
                if file is not None:
                    _append(file, "".join(own))
            except OSError as error:
                self._files[run_id] = None
                warnings.warn(
                    f"{file} cannot be written: {error}. The ledger has this run; it could not be made again from the "
                    f"run's folder.",
                    JournalWarning,
                    stacklevel=4,
                )

    def _file(self, run_id: str) -> Path | None:
        """Journal of a run; None where the folder of its runs is not on this machine."""
        if run_id not in self._files:
            with self._engine.connect() as connection:
                root = connection.scalar(sa.select(RUNS.c.folder).where(RUNS.c.id == run_id))
            self._files[run_id] = Path(root) / run_id / FILE if root and Path(root).is_dir() else None
        return self._files[run_id]


def _append(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("ab+") as stream:
        if stream.tell() > 0:
            stream.seek(-1, 2)
            if stream.read(1) != b"\n":  # a process was killed inside a line
                text = f"\n{text}"
        stream.write(text.encode())


@dataclass(frozen=True)
class RebuiltRuns:
    """What came back into a ledger from the folders of runs."""

    folders: int
    """Folders with a journal."""
    runs: int
    """Runs that the ledger did not have."""
    rows: int
    """Rows of all tables that it did not have."""
    lines_lost: int
    """Lines that cannot be read."""


def rebuild(engine: sa.Engine, root: Path) -> RebuiltRuns:
    """Put every row that journals below `root` have and the ledger has not into the ledger; nothing is changed there.

    Events come back under their own numbers where these are free, so that the order of runs is that of before.
    """
    journals = {path.parent.name: read_journal(path) for path in sorted(root.glob(f"*/{FILE}"))}
    runs = rows = lost = 0
    events: list[Row] = []
    with engine.begin() as connection:
        for run_id, (content, lines_lost) in journals.items():
            lost += lines_lost
            own = [row for row in content["runs"] if row["id"] == run_id]
            begun = connection.scalar(sa.select(RUNS.c.id).where(RUNS.c.id == run_id)) is not None
            if not begun and not own:
                continue
            if not begun:
                connection.execute(RUNS.insert(), [{**own[-1], "folder": str(root.resolve())}])
                runs += 1
            rows += not begun
            rows += sum(_add_missing(connection, table, run_id, content[table.name]) for table in (STEPS, DOCUMENTS))
            events += [event for event in content["events"] if event["run_id"] == run_id]
        rows += _add_events(connection, events)
    return RebuiltRuns(folders=len(journals), runs=runs, rows=rows, lines_lost=lost)


def read_journal(path: Path) -> tuple[dict[str, list[Row]], int]:
    """Rows of a journal by table, and the number of its lines that are no such rows."""
    content: dict[str, list[Row]] = {name: [] for name in TABLES}
    lost = 0
    for line in _lines(path):
        try:
            entry = json.loads(line)
            row, table = entry["row"], TABLES[entry["table"]]
            if set(row) - set(table.columns.keys()) or not _is_whole(table, row):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            lost += 1
            continue
        content[table.name].append(row)
    return content, lost


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        yield from (line for line in stream if line.strip())


def _is_whole(table: sa.Table, row: Row) -> bool:
    return all(row.get(column.name) is not None for column in table.columns if column.name != "number")


def _add_missing(connection: sa.Connection, table: sa.Table, run_id: str, rows: list[Row]) -> int:
    """Rows of a run that the ledger has not, by their keys; of several with one key the last."""
    keys = [column.name for column in table.primary_key]
    there = connection.execute(sa.select(*table.primary_key.columns).where(table.c.run_id == run_id))
    keys_there = {tuple(row) for row in there}
    latest = {tuple(row[key] for key in keys): row for row in rows if row["run_id"] == run_id}
    missing = [row for key, row in latest.items() if key not in keys_there]
    if missing:
        connection.execute(table.insert(), missing)
    return len(missing)


def _add_events(connection: sa.Connection, events: list[Row]) -> int:
    """Events that the ledger has not. Where their numbers are not free all of them come behind what is there."""
    there = list(connection.execute(sa.select(EVENTS)))
    uses_left = Counter((row.run_id, row.at, row.kind, row.note) for row in there)
    missing = []
    for event in sorted(events, key=lambda event: event.get("number") or 0):
        key = (event["run_id"], event["at"], event["kind"], event["note"])
        uses_left[key] -= 1
        if uses_left[key] < 0:
            missing.append(event)
    numbers = [event.get("number") for event in missing]
    is_free = None not in numbers and len({*numbers, *(row.number for row in there)}) == len(numbers) + len(there)
    # other databases count on by themselves, and would give a number that was set by hand a second time
    keeps = is_free and connection.dialect.name == "sqlite"
    for event in missing:
        row = event if keeps else {name: value for name, value in event.items() if name != "number"}
        connection.execute(EVENTS.insert().values(**row))
    return len(missing)
