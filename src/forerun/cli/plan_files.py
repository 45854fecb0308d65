"""What the planning commands write: the settings file, and documents without what is for drawing."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.plan.outcome import RunPlan


def write_plan(planned: "RunPlan", path: Path) -> str | None:
    """Write the settings of a plan that keeps its limits; says where, and what it replaces."""
    from forerun.plan.settings_file import write_settings
    from forerun.runs.registry import recipe_names

    if not planned.meets_limits:
        return None
    replaced = " (an earlier plan there was replaced)" if path.exists() else ""
    write_settings(planned, path, shlex.join(["forerun", *sys.argv[1:]]))
    trains = planned.settings is not None and planned.settings["workload"] in recipe_names()
    how = f"Run them with: forerun train {path}" if trains else f"Forecast them with: forerun forecast {path}"
    return f"Settings: {path}{replaced}. {how}"


def default_path(planned: "RunPlan") -> Path:
    """The settings file that is written where none is named."""
    from forerun.plan.settings_file import file_name

    return Path(f"{file_name(planned.name)}.plan.yaml")


def without_detail(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its forecasts as `forecast --json` prints them."""
    for part in (document, document.get("before"), document.get("after"), document.get("plan")):
        for name in ("forecast", "given"):
            if isinstance(part, dict) and isinstance(part.get(name), dict):
                part[name].pop("detail", None)
    return document
