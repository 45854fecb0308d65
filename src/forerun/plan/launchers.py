"""How does a plan become a job? A Slurm batch script or a SkyPilot task that trains with the written settings file.

Time asked for is the conservative forecast and a tenth. A job that is put back in the queue goes on with its run: the
run's id is kept in a file beside the settings, as for processes that are started again (`train/launch.py`).
"""

import math
import shlex
from collections.abc import Collection
from pathlib import Path

import yaml

from forerun.errors import InvalidSettings
from forerun.plan.outcome import RunPlan
from forerun.plan.settings_file import file_name
from forerun.settings.schema import Settings
from forerun.units import HOUR, MINUTE, format_bytes, format_seconds

KINDS = ("slurm", "skypilot")
SPARE = 1.1
"""Time asked for over the conservative forecast."""
NOTE = "FORERUN_ELASTIC_NOTE"
"""`train.launch.NOTE`; a plan imports nothing that trains."""
ONE_MACHINE = 8
"""Devices at most: `forerun train --nproc` starts the processes of one machine."""
SKYPILOT_NAMES = {
    "t4": "T4", "v100-16gb": "V100", "v100-32gb": "V100-32GB", "a10": "A10", "a10g": "A10G", "a40": "A40",
    "a6000": "A6000", "l4": "L4", "l40s": "L40S", "a100-40gb": "A100", "a100-80gb": "A100-80GB",
    "h100-80gb": "H100", "h200": "H200",
}  # fmt: skip
"""Names that `sky show-gpus -a` prints: docs.skypilot.co/en/stable/compute/gpus.html, read 2026-11-21."""


def require_job(kind: str, settings: Settings, trainable: Collection[str]) -> None:
    """Refuse what cannot become a job before anything is planned.

    Raises:
        InvalidSettings: another kind than slurm and skypilot, or a workload that `forerun train` has no data for.
    """
    if kind not in KINDS:
        raise InvalidSettings(f"--script: {' or '.join(KINDS)}; found {kind!r}.")
    if settings.workload not in trainable:
        raise InvalidSettings(
            f"--script: a job trains a recipe, which brings its data; found workload={settings.workload!r}. Recipes: "
            f"{', '.join(trainable)}."
        )


def script(plan: RunPlan, kind: str, settings_file: Path) -> str:
    """The text of the job; `settings_file` is named in it as it is.

    Raises:
        InvalidSettings: a device that has no name there, or more devices than one machine has.
    """
    assert plan.forecast is not None, "only a plan that fits becomes a job"
    if plan.gpu == "cpu":
        raise InvalidSettings("--script: for GPUs; found a plan for cpu. Run `forerun train` with the file as it is.")
    devices = plan.forecast.world_size
    if devices > ONE_MACHINE:
        raise InvalidSettings(
            f"--script: one machine with up to {ONE_MACHINE} devices; found parallel.world_size={devices}. Start "
            f"`torchrun` on each machine yourself, with the written settings."
        )
    return _slurm(plan, settings_file) if kind == "slurm" else _skypilot(plan, settings_file)


def train_command(plan: RunPlan, settings_file: Path) -> str:
    """The shell command that trains."""
    assert plan.forecast is not None, "only a plan that fits can be trained"
    several = f" --nproc {plan.forecast.world_size}" if plan.forecast.world_size > 1 else ""
    return f"forerun train {shlex.quote(str(settings_file))}{several}"


def _slurm(plan: RunPlan, settings_file: Path) -> str:
    assert plan.forecast is not None, "checked"
    name = shlex.quote(plan.name)
    return "\n".join([
        "#!/bin/bash",
        f"# {_promise(plan)}",
        f"#SBATCH --job-name={name}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        f"#SBATCH --gpus-per-node={plan.forecast.world_size}",
        *slurm_restarts(plan),
        f"srun {train_command(plan, settings_file)}",
        "",
    ])  # fmt: skip


def _skypilot(plan: RunPlan, settings_file: Path) -> str:
    assert plan.forecast is not None, "checked"
    task = {
        "name": file_name(plan.name).lower(),
        "workdir": ".",
        "resources": {
            "accelerators": f"{skypilot_name(plan, settings_file)}:{plan.forecast.world_size}",
            "autostop": {"idle_minutes": 10, "down": False},
        },
        "setup": "python3 -m venv .venv && .venv/bin/pip install .\n",
        "run": f"source .venv/bin/activate\n{train_command(plan, settings_file)}\n",
    }
    comment = "\n".join([
        f"# {_promise(plan)}",
        "# Launch it where pyproject.toml lies: sky launch THIS_FILE. The machine stops when it has been idle for 10",
        "# minutes and keeps its disk, so that runs/ can be fetched.\n",
    ])  # fmt: skip
    return comment + yaml.safe_dump(task, sort_keys=False)


def skypilot_name(plan: RunPlan, settings_file: Path) -> str:
    """SkyPilot's name for the GPU of `plan`.

    Raises:
        InvalidSettings: it has none, or the settings file would not travel.
    """
    if plan.gpu not in SKYPILOT_NAMES:
        raise InvalidSettings(
            f"--script skypilot: no accelerator name is known for {plan.gpu}. Known: {', '.join(SKYPILOT_NAMES)}."
        )
    if settings_file.is_absolute():
        raise InvalidSettings(
            f"--script skypilot: the settings file travels with the current folder; found {settings_file}. "
            f"Name it by a path below this folder, with --write."
        )
    return SKYPILOT_NAMES[plan.gpu]


def slurm_restarts(plan: RunPlan) -> list[str]:
    """Lines of a batch script: the time asked for, and how a job that is put back in the queue goes on."""
    assert plan.forecast is not None, "checked"
    return [
        f"#SBATCH --time={slurm_time(plan.forecast.run.seconds.conservative * SPARE)}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=%x-%j.log",
        "set -euo pipefail",
        "# It keeps its number then, and so goes on with its run.",
        f'export {NOTE}="$PWD/{file_name(plan.name)}-$SLURM_JOB_ID.run"',
    ]


def _promise(plan: RunPlan) -> str:
    assert plan.forecast is not None, "checked"
    run, memory = plan.forecast.run, plan.forecast.memory
    cost = "" if run.cost is None else f", ${run.cost:,.2f}"
    return (
        f"{plan.name} on {plan.forecast.world_size} x {plan.gpu}: {format_seconds(run.seconds.optimistic)} to "
        f"{format_seconds(run.seconds.conservative)}{cost}, {format_bytes(memory.device_bytes.conservative)} of "
        f"{format_bytes(memory.capacity_bytes)} at most (forecast)."
    )


def slurm_time(seconds: float) -> str:
    """`days-hours:minutes:seconds`, rounded up to a minute."""
    minutes = math.ceil(seconds / MINUTE)
    hours, minutes = divmod(minutes, round(HOUR / MINUTE))
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02d}:{minutes:02d}:00"
