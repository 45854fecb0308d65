"""How does a plan become a settings file for `forerun forecast` and `forerun train`? Its header holds the forecast."""

from pathlib import Path

import yaml

from forerun.errors import InvalidSettings
from forerun.plan.outcome import RunPlan
from forerun.units import format_bytes, format_seconds


def write_settings(plan: RunPlan, path: Path, command: str) -> None:
    """Write the chosen settings of `plan` to `path`.

    Raises:
        InvalidSettings: the file exists and is no earlier plan, or cannot be written.
    """
    if path.exists() and not _is_a_plan(path):
        raise InvalidSettings(
            f"--write: {path} exists and was not written by forerun plan; it would be lost. Name another file."
        )
    try:
        path.write_text(settings_text(plan, command), encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"--write: {path} cannot be written: {error.strerror}. Name another file.") from error


MARK = "# Written by: "


def settings_text(plan: RunPlan, command: str) -> str:
    """The YAML text; its header names the command, the GPU and the forecast."""
    forecast = plan.forecast
    assert forecast is not None, "only a plan that fits is written"
    memory = (
        f"{format_bytes(forecast.memory.device_bytes.conservative)} of {format_bytes(forecast.memory.capacity_bytes)}"
    )
    cost = "" if forecast.run.cost is None else f", ${forecast.run.cost:,.2f}"
    lines = [
        f"{MARK}{command}",
        f"# For {plan.gpu}: {memory} at most, {format_seconds(forecast.step.seconds.expected)} a step, "
        f"{format_seconds(forecast.run.seconds.expected)} the run{cost} (forecast).",
        *(f"# {change.description}" for change in plan.changes),
    ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(plan.settings, sort_keys=False, allow_unicode=True)


def file_name(name: str) -> str:
    """A run's name as the name of a file or a job."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip(".") or "run"


def _is_a_plan(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        return False
