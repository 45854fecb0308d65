"""Every run improves the next forecast: the whole loop twice on this CPU, with a cost that tracing cannot see."""

import math
import time

import pytest
import torch
from torch._subclasses.fake_tensor import is_fake

from forerun.data.plan import BatchPlan, BatchShape
from forerun.hardware.detect import detect_cpu
from forerun.ledger.store import open_ledger
from forerun.runs.recipe import Experiment, Judgement
from forerun.runs.run import run_experiment
from forerun.settings.load import settings_from
from kill_driver import SAMPLES, SETTINGS, TinyData, TinyWorkload

HIDDEN_SECONDS = 0.15
"""Slept in every real micro-step and in none that is traced."""


class Hidden(TinyWorkload):
    """Waits where the virtual GPU does not look."""

    def loss(self, model, batch):
        if not is_fake(next(model.parameters())):
            time.sleep(HIDDEN_SECONDS)
        return super().loss(model, batch)


def hidden_experiment():
    settings = settings_from({**SETTINGS, "schedule": {"epochs": 1}})
    data = TinyData()
    shapes = [BatchShape(len(b), 8) for step in data.epoch_steps(0) for b in step]
    plan = BatchPlan.count(shapes, steps=7, samples=SAMPLES, tokens=8.0 * SAMPLES)
    return Experiment(
        settings=settings, workload=Hidden(), data=data, plan=plan, load_seconds=0.0, final_examples=0,
        evaluate=lambda step, number: {}, judge=lambda step: None, baselines=lambda scores: Judgement({}, []),
        criteria=(),
    )  # fmt: skip


@pytest.mark.medium
def test_the_second_forecast_of_a_recipe_is_better(tmp_path, request):
    """The first is short by 300 ms a step, many times the step; the second knows. Half of the logarithm is asked for."""
    device = detect_cpu().device
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # two threads on a busy machine wait for each other, a thousand times longer than they work
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    misses = []
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        for _ in range(2):
            outcome = run_experiment(hidden_experiment(), device, ledger, tmp_path / "runs")
            forecast, measured = outcome.forecast.step.seconds.expected, outcome.measurement.step.seconds
            misses.append(abs(math.log(measured / forecast)))
    assert misses[0] > math.log(2), "the first forecast cannot know"
    assert misses[1] < misses[0] / 2
    assert "the same step" in " ".join(outcome.forecast.warnings)
