"""Jobs from plans: they parse as what they are, and name what the plan named."""

import subprocess
from pathlib import Path

import pytest
import yaml

from forerun.api import find_device
from forerun.errors import InvalidSettings
from forerun.plan.launchers import KINDS, SKYPILOT_NAMES, require_job, script, slurm_time, train_command
from forerun.plan.outcome import RunPlan
from forerun.records import Forecast
from forerun.settings.load import settings_from
from forerun.train import launch as train_launch

HERE = Path("my run.plan.yaml")


@pytest.fixture(scope="module")
def forecast(request) -> Forecast:
    import forerun

    return forerun.forecast(
        {
            "name": "small", "workload": "causal-lm", "model": {"name": "tiny-gpt2", "config": {"n_layer": 1}},
            "precision": "fp32", "data": {"examples": 640},
            "batch": {"micro_batch_size": 2, "sequence_length": 32}, "schedule": {"warmup_steps": 0},
        },
        gpu="a100-40gb",
    )  # fmt: skip


def plan_of(forecast: Forecast, gpu: str = "a100-40gb", world_size: int = 1) -> RunPlan:
    own_forecast = forecast.model_copy(update={"gpu": gpu, "world_size": world_size})
    return RunPlan(
        name="my run", gpu=gpu, fits=True, meets_limits=True, settings={}, forecast=own_forecast, given=None,
        search_seconds=0.0, traces=0,
    )  # fmt: skip


def test_a_slurm_script_is_a_shell_script_with_the_time_of_the_forecast(forecast):
    text = script(plan_of(forecast, world_size=2), "slurm", HERE)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert "#SBATCH --gpus-per-node=2\n" in text
    assert f"#SBATCH --time={slurm_time(forecast.run.seconds.conservative * 1.1)}\n" in text
    assert "srun forerun train 'my run.plan.yaml' --nproc 2\n" in text
    assert f'{train_launch.NOTE}="$PWD/my-run-$SLURM_JOB_ID.run"' in text


def test_a_skypilot_task_is_yaml(forecast):
    task = yaml.safe_load(script(plan_of(forecast), "skypilot", HERE))
    assert task["resources"]["accelerators"] == "A100:1"
    assert task["run"].endswith("forerun train 'my run.plan.yaml'\n")


def test_every_name_of_skypilot_belongs_to_a_gpu_of_the_catalogue():
    for name in SKYPILOT_NAMES:
        assert find_device(name).name == name


def test_times_are_rounded_up():
    assert [slurm_time(s) for s in (1, 60, 61, 3600, 90000)] == [
        "0-00:01:00", "0-00:01:00", "0-00:02:00", "0-01:00:00", "1-01:00:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "world_size", "path", "words"),
    [
        ("rtx-3090", 1, HERE, "no accelerator name is known for rtx-3090"),
        ("a100-40gb", 16, HERE, "one machine with up to 8"),
        ("a100-40gb", 1, Path("/x/plan.yaml"), "travels with the current folder"),
        ("cpu", 1, HERE, "found a plan for cpu"),
    ],
)
def test_what_cannot_become_a_job(forecast, gpu, world_size, path, words):
    with pytest.raises(InvalidSettings, match=words):
        script(plan_of(forecast, gpu, world_size), "skypilot", path)


def test_refused_before_anything_is_planned():
    settings = settings_from({"name": "mine", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}})
    with pytest.raises(InvalidSettings, match="slurm or skypilot; found 'kubernetes'"):
        require_job("kubernetes", settings, ["arithmetic"])
    with pytest.raises(InvalidSettings, match="found workload='causal-lm'. Recipes: arithmetic"):
        require_job("slurm", settings, ["arithmetic"])
    for kind in KINDS:
        require_job(kind, settings.model_copy(update={"workload": "arithmetic"}), ["arithmetic"])


def test_one_device_needs_no_other_processes(forecast):
    assert train_command(plan_of(forecast), Path("a.yaml")) == "forerun train a.yaml"
