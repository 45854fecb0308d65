"""What of `runs/` can go? Checkpoints of old runs, and frozen states that nobody has read for long.

A run keeps its checkpoints while any of these holds: it is among the newest `keep` of the ledger, it was written to
within `days`, it may still be training, it is the newest of its name that passed its criteria, or another run of the
ledger names it. Frozen states (`runs/frozen`) stay while they were read within `days`.

Never removed: rows of the ledger, pages, exports, models that were made to begin with (`runs/bases`), and folders that
the ledger does not know. A run without checkpoints cannot be resumed, scored or exported any more.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.ledger.store import Ledger, RunRow
from forerun.records import Record
from forerun.report.tables import ResultTable
from forerun.runs.folder_lock import trains_elsewhere
from forerun.runs.run import run_folder
from forerun.train.best import BEST
from forerun.train.checkpoint_files import remove_folder
from forerun.units import HOUR, format_bytes

CHECKPOINTS = "checkpoints"
FROZEN, FROZEN_PATTERN = "frozen", "*/*.safetensors"
MOST_RUNS = 100_000
DAY = 24 * HOUR


@dataclass(frozen=True)
class PrunePolicy:
    """What is kept."""

    keep: int = 10
    """Newest runs of the ledger."""
    days: float = 30.0
    """Days since the last write, or read of a frozen state."""


class PruneItem(Record):
    """One folder or file, and why it stays."""

    path: str
    size_bytes: int
    unused_days: float
    reason: str
    """Why it stays; empty where it goes."""


def prune_plan(ledger: Ledger, root: Path, policy: PrunePolicy, now: float | None = None) -> list[PruneItem]:
    """What stays and what goes below `root`, largest first; nothing is removed."""
    now = time.time() if now is None else now
    items = [*_run_items(ledger, root.resolve(), policy, now), *_frozen_items(root.resolve(), policy, now)]
    return sorted(items, key=lambda item: -item.size_bytes)


def remove(items: Sequence[PruneItem]) -> int:
    """Remove what goes; returns the bytes.

    Raises:
        OSError: something may not be removed.
    """
    removable = [item for item in items if not item.reason]
    for item in removable:
        path = Path(item.path)
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)
    return bytes_that_go(removable)


def bytes_that_go(items: Sequence[PruneItem]) -> int:
    """Bytes of what does not stay."""
    return sum(item.size_bytes for item in items if not item.reason)


def prune_table(items: Sequence[PruneItem], *, is_dry: bool) -> ResultTable:
    """What stays and what goes, with bytes and reasons."""
    going = bytes_that_go(items)
    stays = sum(item.size_bytes for item in items) - going
    then = "Nothing was removed yet: add --no-dry-run." if is_dry else "Removed."
    return ResultTable(
        title="What of runs can go",
        note=f"{format_bytes(going)} can go, {format_bytes(stays)} stay. {then}",
        columns=["path", "size", "unused for", "stays because"],
        rows=[
            [item.path, format_bytes(item.size_bytes), f"{item.unused_days:.0f} days", item.reason or "– (goes)"]
            for item in items
        ],
    )


def _run_items(ledger: Ledger, root: Path, policy: PrunePolicy, now: float) -> Iterator[PruneItem]:
    rows = ledger.runs(MOST_RUNS)
    passed = _newest_passed(ledger, rows)
    texts = {row.id: json.dumps(row.settings) for row in rows}
    for place, row in enumerate(rows):
        folder = run_folder(row)
        parts = [folder / name for name in (CHECKPOINTS, BEST) if (folder / name).is_dir()]
        if folder.resolve().parent != root or not parts:
            continue
        unused_seconds = now - max(_last_write(part) for part in parts)
        reason = (
            f"one of the newest {policy.keep} runs" if place < policy.keep
            else f"written within {policy.days:g} days" if unused_seconds < policy.days * DAY
            else "a process trains it" if trains_elsewhere(folder)
            else "may still be training" if _may_train(row) and unused_seconds < DAY
            else f"newest {row.name} that passed" if row.id in passed
            else _reference(row.id, texts)
        )  # fmt: skip
        for part in parts:
            yield _item(part, unused_seconds, reason)


def _frozen_items(root: Path, policy: PrunePolicy, now: float) -> Iterator[PruneItem]:
    for path in sorted((root / FROZEN).glob(FROZEN_PATTERN)):
        unused_seconds = now - path.stat().st_mtime
        yield _item(path, unused_seconds, f"read within {policy.days:g} days" * (unused_seconds < policy.days * DAY))


def _item(path: Path, unused_seconds: float, reason: str) -> PruneItem:
    return PruneItem(
        path=str(path), size_bytes=_bytes_of(path), unused_days=max(0.0, unused_seconds / DAY), reason=reason
    )


def _newest_passed(ledger: Ledger, rows: Sequence[RunRow]) -> set[str]:
    """Of each workload and name, the newest run whose verdict passed."""
    newest: dict[tuple[str, str], str] = {}
    for row in rows:  # newest first
        key = (row.workload, row.name)
        if key not in newest and (verdict := ledger.verdict(row.id)) is not None and verdict.passed:
            newest[key] = row.id
    return set(newest.values())


def _reference(run_id: str, texts: Mapping[str, str]) -> str:
    """Which run's settings name this one, such as one that started from its weights; empty where none does."""
    other = next((other for other, text in texts.items() if other != run_id and run_id in text), None)
    return "" if other is None else f"named by run {other}"


def _may_train(row: RunRow) -> bool:
    return row.state in ("started", "resumed")


def _files(path: Path) -> Iterator[os.stat_result]:
    for file in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # a run that trains has just removed it
            yield file.stat()


def _bytes_of(path: Path) -> int:
    return sum(file.st_size for file in _files(path))


def _last_write(path: Path) -> float:
    return max((file.st_mtime for file in _files(path)), default=0.0)


def bound_files(root: Path, pattern: str, most_bytes: float) -> int:
    """Remove the files below `root` that were read longest ago while all take more than `most_bytes`; how many."""
    files, whole, removed = [], 0.0, 0
    for path in root.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    for _, size, path in sorted(files, reverse=True):
        whole += size
        if whole > most_bytes:
            path.unlink(missing_ok=True)
            removed += 1
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # only where it is empty
    return removed
