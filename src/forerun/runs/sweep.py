"""How do runs of one recipe with different settings compare? Forecast all, run each in a process of its own.

The ledger is the only memory of a sweep: a run belongs to a variant by the hash of its settings. Resumed, a sweep takes
finished runs as they are, goes on with those that were stopped, and starts the rest.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.errors import InvalidSettings
from forerun.ledger.store import Ledger, RunRow
from forerun.records import Forecast
from forerun.runs.recipe import SweepRun
from forerun.runs.run import COMPARISON_DATA
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings

CRITERION_FAILED, INTERRUPTED = 4, 130
"""Exit codes of a run that finished but missed a criterion, and of one that can be resumed."""
MOST_VARIANTS = 200


@dataclass(frozen=True)
class Variant:
    """One run of a sweep: its name and settings."""

    name: str
    overrides: tuple[str, ...]
    """All overrides, those that every variant shares included."""
    settings: Settings


@dataclass
class PlannedRun:
    """A variant with its forecast, its run and its state."""

    variant: Variant
    forecast: Forecast
    run_id: str | None = None
    state: str = "waiting"
    """One of: waiting, does not fit, finished, failed."""
    failure: str = ""
    """Why the run failed; empty unless it did."""


@dataclass(frozen=True)
class Sweep:
    """The variants of one sweep on one device, in order."""

    target: str
    planned: list[PlannedRun] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Forecast seconds of the variants that wait."""
        return sum(p.forecast.run.seconds.expected for p in self.planned if p.state == "waiting")

    @property
    def cost(self) -> float | None:
        """Forecast dollars of the variants that wait; None where the device has no price."""
        costs = [p.forecast.run.cost for p in self.planned if p.state == "waiting"]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def make_variants(base: Settings, overrides: Sequence[str], usual: Mapping[str, tuple[str, ...]]) -> list[Variant]:
    """Every combination of the values that `overrides` list (`path=a,b,c`); the recipe's usual variants without lists.

    Raises:
        InvalidSettings: there is nothing to vary, a value is wrong, or two variants are the same run.
    """
    axes = [(path, values_of(text)) for path, _, text in (override.partition("=") for override in overrides)]
    shared = tuple(f"{path}={values[0]}" for path, values in axes if len(values) == 1)
    varied = [(path, values) for path, values in axes if len(values) > 1]
    named: list[tuple[str, tuple[str, ...]]] = list(usual.items())
    if varied:
        combinations = itertools.product(*([f"{path}={value}" for value in values] for path, values in varied))
        named = [(", ".join(_short(text) for text in texts), texts) for texts in combinations]
    if not named:
        raise InvalidSettings(
            f"--set: a sweep needs a setting with several values; found none, and {base.workload} has no usual "
            f"variants. Example: --set optimizer.learning_rate=1e-4,3e-4"
        )
    if len(named) > MOST_VARIANTS:
        raise InvalidSettings(f"--set: at most {MOST_VARIANTS} variants; found {len(named)}. Give fewer values.")
    variants = [
        Variant(name, (*shared, *own), settings_from(base.model_dump(), (*shared, *own))) for name, own in named
    ]
    first: dict[str, Variant] = {}
    for variant in variants:
        other = first.setdefault(variant.settings.hash, variant)
        if other is not variant:
            raise InvalidSettings(f"--set: {other.name} and {variant.name} are the same run. Give each value once.")
    return variants


def _short(override: str) -> str:
    """The override with the last part of its path only: `learning_rate=1e-4`."""
    path, _, value = override.partition("=")
    return f"{path.rpartition('.')[2]}={value}"


def values_of(text: str) -> list[str]:
    """The values that a text lists with commas; commas in brackets, braces and quotes belong to one value."""
    values, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            values.append(text[start:place])
            start = place + 1
    return [value.strip() for value in [*values, text[start:]]]


def plan_sweep(
    target: str, variants: Sequence[Variant], forecast: Callable[[Settings], Forecast], ledger: Ledger, *, resume: bool
) -> Sweep:
    """Forecast every variant; with `resume`, find what the ledger has of them."""
    rows = ledger.runs(limit=10_000) if resume else []
    planned = []
    for variant in variants:
        planned_run = PlannedRun(variant, forecast(variant.settings))
        if not planned_run.forecast.fits:
            planned_run.state = "does not fit"
        planned.append(planned_run)
        for row in rows:  # newest first
            if row.settings_hash == planned_run.forecast.settings_hash and _take(planned_run, row, ledger):
                break
    return Sweep(target, planned)


def _take(planned: PlannedRun, row: RunRow, ledger: Ledger) -> bool:
    """Whether a run of these settings counts: a finished one does, one that was stopped is to be resumed."""
    if ledger.measurement(row.id) is not None:
        planned.run_id, planned.state = row.id, "finished"
        return True
    if row.state != "failed" and ledger.forecast(row.id) is not None:
        planned.run_id = row.id
        return True
    return False


def run_variant(target: str, planned: PlannedRun) -> None:
    """Run one variant in a process of its own, to its end; its state says how that went.

    Raises:
        KeyboardInterrupt: it was stopped on request.
    """
    command = [sys.executable, "-m", "forerun", "run", target, "--json"]
    for override in planned.variant.overrides:
        command += ["--set", override]
    if planned.run_id is not None:
        command += ["--resume", planned.run_id]
    # In a process of its own: peaks of memory and crashes of one variant do not reach the next.
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    if process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode in (0, CRITERION_FAILED):
        planned.run_id, planned.state = json.loads(process.stdout)["run_id"], "finished"
    else:
        planned.state, planned.failure = "failed", f"exit code {process.returncode}"


def finished_runs(sweep: Sweep, ledger: Ledger) -> list[SweepRun]:
    """Forecast, measurement and comparison data of the finished runs, in the order of the sweep."""
    runs = []
    for planned in sweep.planned:
        if planned.state != "finished" or planned.run_id is None:
            continue
        forecast, measurement = ledger.forecast(planned.run_id), ledger.measurement(planned.run_id)
        if forecast is None or measurement is None:
            continue
        settings = settings_from(ledger.run(planned.run_id).settings)
        comparison_data: Mapping[str, Any] = ledger.results(planned.run_id).get(COMPARISON_DATA, {})
        runs.append(SweepRun(planned.variant.name, settings, forecast, measurement, comparison_data))
    return runs
