"""From one GPU to another: both planned, and a table of what changes, by how much, and why."""

import time
from collections.abc import Callable, Sequence

from forerun.errors import ForerunError
from forerun.forecasting.forecast import make_forecast
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import Ask
from forerun.plan.choose import PlanLimits, make_plan
from forerun.plan.outcome import Migration, MigrationRow, RunPlan
from forerun.plan.scaling import describe_rule
from forerun.plan.space import can_run, differences
from forerun.records import Forecast
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.units import format_bytes, format_seconds


def make_migration(
    original: Settings,
    before: Device,
    after: Device,
    ask: Ask,
    *,
    limits: PlanLimits | None = None,
    allow: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda what: None,
) -> Migration:
    """Plans of `original` on two GPUs, compared; `limits` hold for the second."""
    started = time.perf_counter()
    first = make_plan(original, [before], ask, allow=allow, on_progress=on_progress)
    second = make_plan(original, [after], ask, limits=limits, allow=allow, on_progress=on_progress)
    same = _same_settings(first, after, ask)
    rule = "no plan to compare"
    if first.settings is not None and second.settings is not None:
        rule = describe_rule(settings_from(first.settings), settings_from(second.settings))
    return Migration(
        before=first,
        after=second,
        rows=_rows(first, second, same, rule, before, after),
        like_for_like_speed_up=_ratio(first.forecast, same),
        plan_speed_up=_run_ratio(first.forecast, second.forecast),
        learning_rate_rule=rule,
        search_seconds=time.perf_counter() - started,
    )


def _same_settings(first: RunPlan, after: Device, ask: Ask) -> Forecast | None:
    """The first plan's settings on the second GPU; None where they cannot run or do not fit."""
    if first.settings is None:
        return None
    settings = settings_from(first.settings)
    if not can_run(settings, after):
        return None
    try:
        forecast = make_forecast(ask(settings, after))
    except ForerunError:
        return None  # a kernel that the second GPU lacks
    return forecast if forecast.fits else None


def _ratio(one: Forecast | None, other: Forecast | None) -> float | None:
    return None if one is None or other is None else one.step.seconds.expected / other.step.seconds.expected


def _run_ratio(one: Forecast | None, other: Forecast | None) -> float | None:
    return None if one is None or other is None else one.run.seconds.expected / other.run.seconds.expected


def _rows(
    first: RunPlan, second: RunPlan, same: Forecast | None, rule: str, before: Device, after: Device
) -> list[MigrationRow]:  # fmt: skip
    if first.settings is None or second.settings is None or first.forecast is None or second.forecast is None:
        return [MigrationRow(what="fits", before=_fits(first), after=_fits(second), why="see the remedies of the plan")]
    old, new = settings_from(first.settings), settings_from(second.settings)
    one, two = first.forecast, second.forecast
    why = {reason.about: reason.said.partition(": ")[2] or reason.said for reason in second.reasons}
    changes = [
        MigrationRow(
            what=c.path, before=str(c.old), after=str(c.new), why=why.get(c.path, _by_rule(c.path, rule, after))
        )
        for c in differences(old, new)
    ]
    memory = [
        f"{format_bytes(f.memory.device_bytes.conservative)} of {format_bytes(f.memory.capacity_bytes)}"
        for f in (one, two)
    ]
    like = _ratio(one, same)
    like_text = "cannot run there with these settings" if same is None else format_seconds(same.step.seconds.expected)
    faster = _run_ratio(one, two) or 0.0
    schedule = [_warm_up(s) for s in (old, new)]
    return [
        *changes,
        MigrationRow(what="memory", before=memory[0], after=memory[1], why="conservative forecast of the card's total"),
        MigrationRow(what="step, same settings", before=format_seconds(one.step.seconds.expected), after=like_text,
                     why="like for like" + ("" if like is None else f": {like:.2f} times as fast")),
        MigrationRow(what="run, each plan", before=format_seconds(one.run.seconds.expected),
                     after=format_seconds(two.run.seconds.expected), why=f"{faster:.2f} times as fast as planned"),
        MigrationRow(what="learning rate", before=f"{old.optimizer.learning_rate:g}",
                     after=f"{new.optimizer.learning_rate:g}", why=rule),
        MigrationRow(what="warm-up", before=schedule[0], after=schedule[1], why="kept in samples"),
        MigrationRow(what="cost", before=_cost(one, before), after=_cost(two, after), why=_prices(before, after)),
    ]  # fmt: skip


def _by_rule(path: str, rule: str, after: Device) -> str:
    if path in ("optimizer.learning_rate", "schedule.warmup_steps", "schedule.max_steps"):
        return rule
    if path == "batch.gradient_accumulation_steps":
        return "follows the micro-batch size: the global batch is held"
    return f"what is fastest on {after.name}"


def _fits(plan: RunPlan) -> str:
    return f"fits {plan.gpu}" if plan.fits else "does not fit"


def _warm_up(settings: Settings) -> str:
    updates = settings.schedule.warmup_steps
    return f"{updates:,} updates, {updates * settings.global_batch_size:,} samples"


def _cost(forecast: Forecast, device: Device) -> str:
    return "no price known" if forecast.run.cost is None else f"${forecast.run.cost:,.2f}"


def _prices(before: Device, after: Device) -> str:
    prices = ["no price" if d.price_per_hour is None else f"${d.price_per_hour:.2f} an hour" for d in (before, after)]
    return f"{prices[0]} and {prices[1]}"
