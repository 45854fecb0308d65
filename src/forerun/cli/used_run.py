"""Which trained model a command means, and which rows it shall answer, as somebody says them in a shell.

A model is a run of the ledger, or a folder: a run's own, also one that was copied from another machine, or what
`forerun export` wrote. Rows are in a file, or come through a pipe (`-`).
"""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from forerun.cli.options import ledger_url
from forerun.data.own.packed_files import plain_name
from forerun.errors import BadData, InvalidSettings, RunNotFound

if TYPE_CHECKING:
    from forerun.ledger.store import RunRow

PIPE, PIPED = "-", "standard input"
PIPED_ENDINGS = (".csv", ".tsv", ".txt", ".conll", ".bio", ".iob", ".iob2")
"""Forms of rows that cannot be told by their first letter; piped rows then have that of the rows trained on."""


def used_run(run_id: str) -> "RunRow":
    """The run of an id, of a unique beginning, of `last` or of a folder; an export is a run of its folder's name.

    Raises:
        RunNotFound: there is none.
        InvalidSettings: the folder is neither a run's nor an export.
    """
    from forerun.ledger.store import open_ledger

    with open_ledger(ledger_url()) as ledger:
        try:
            return ledger.run(run_id)
        except RunNotFound:
            if not Path(run_id).is_dir():
                raise
    return _row_of_folder(Path(run_id).resolve())


def _row_of_folder(folder: Path) -> "RunRow":
    """What the files of a trained model say of their run, where the ledger knows nothing of it."""
    from forerun.ledger.store import RunRow
    from forerun.own.facts import ASSETS, read_assets

    try:
        facts, settings = read_assets(folder / ASSETS if (folder / ASSETS).is_dir() else folder)
    except BadData as error:
        raise InvalidSettings(
            f"RUN: a run's id, or a folder that a run on own data or its export made; found the folder {folder} "
            f"without their files. Name one with {ASSETS}, or give an id: forerun runs lists them."
        ) from error
    return RunRow(
        id=folder.name, name=settings.name or folder.name, workload=facts.workload, gpu="", settings_hash="",
        settings=settings.model_dump(mode="json"), folder=str(folder.parent), versions={}, started_at="",
        state="finished",
    )  # fmt: skip


@contextlib.contextmanager
def rows_file(file: str, trained_on: str | None) -> Iterator[str]:
    """`file`; of `-` what comes through the pipe, as a file while it is needed.

    Rows that begin with `{` are JSON lines, with `[` a list; others have the form of those `trained_on`, else CSV.

    Raises:
        BadData: nothing comes; or the rows are bad, which are said to be of the standard input.
    """
    if file != PIPE:
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        with path.open("wb") as copy:
            shutil.copyfileobj(_piped(), copy)
        with path.open("rb") as copy:
            first = copy.read(4096).lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
        if not first:
            raise BadData("FILE: - reads rows from the input; nothing came. Pipe rows into it, or name a file.")
        ending = plain_name(Path(trained_on or "")).rpartition(".")[2]
        ending = f".{ending}" if f".{ending}" in PIPED_ENDINGS else ".csv"
        named = path.with_suffix({b"{": ".jsonl", b"[": ".json"}.get(first, ending))
        path.rename(named)
        try:
            yield str(named)
        except BadData as error:
            raise type(error)(str(error).replace(str(named), PIPED)) from error


@contextlib.contextmanager
def answers_file(to: str) -> Iterator[Path]:
    """The file that answers are written to; of `-` one whose lines of JSON go to the output when it is whole."""
    if to != PIPE:
        yield Path(to)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.jsonl"
        yield path
        with path.open(encoding="utf-8") as lines:
            shutil.copyfileobj(lines, sys.stdout)


def _piped() -> BinaryIO:
    if sys.stdin.isatty():
        raise InvalidSettings("FILE: - reads rows from a pipe; found a terminal. Name a file, or: cat FILE | forerun …")
    return sys.stdin.buffer
