"""Plans confirmed by real steps on this CPU, and what is made of measurements."""

from types import SimpleNamespace

import pytest
import torch

from forerun.api import find_device, forecast_settings, request_of
from forerun.data.plan import BatchPlan, BatchShape
from forerun.errors import InvalidSettings
from forerun.plan.choose import make_plan
from forerun.plan.outcome import Confirmation
from forerun.settings.load import settings_from
from forerun.verify import confirm as confirming
from forerun.verify.confirm import NOISE, _mean_step_seconds, _with_fastest, confirm, spread_shapes, step_seconds

SETTINGS = settings_from({
    "name": "small", "workload": "causal-lm", "precision": "fp32",
    "model": {"name": "tiny-gpt2", "config": {"n_layer": 1, "n_positions": 64}},
    "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 2, "sequence_length": 32},
    "data": {"examples": 4000}, "schedule": {"warmup_steps": 10},
})  # fmt: skip


def ask(settings, gpu):
    return request_of(settings, gpu, None)


@pytest.fixture(scope="module")
def here():
    return find_device("cpu")


@pytest.fixture(scope="module")
def plan(here):
    return make_plan(SETTINGS, [here], ask, seconds=0.0)


@pytest.mark.medium
def test_real_steps_of_the_contenders_choose_the_plan(plan, here, monkeypatch):
    monkeypatch.setattr(confirming, "ROUND_SECONDS", 0.05)
    messages = []
    confirmed_plan = confirm(plan, SETTINGS, here, ask, lambda s: forecast_settings(s, here), messages.append)
    assert 2 <= len(confirmed_plan.confirmed) == len(plan.contenders) <= 3
    assert len(messages) == 2 * len(plan.contenders)
    assert [line.is_chosen for line in confirmed_plan.confirmed].count(True) == 1
    choice = next(line for line in confirmed_plan.confirmed if line.is_chosen)
    assert choice.changes == confirmed_plan.changes
    least = min(line.measured_step_seconds for line in confirmed_plan.confirmed)
    assert choice.measured_step_seconds <= least * (1 + NOISE)
    assert confirmed_plan.forecast.settings_hash == settings_from(confirmed_plan.settings).hash


def lines_of(plan, *seconds):
    return [
        Confirmation(changes=[], forecast_step_seconds=1.0, measured_step_seconds=s, failed="" if s else "ran out")
        for s in seconds
    ]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("seconds", "choice"),
    [((1.0, 0.98, 1.2), 0), ((1.0, 0.9, 1.2), 1), ((None, 1.1, 1.0), 2), ((None, None, None), None)],
)
def test_another_is_chosen_only_when_it_is_clearly_faster(plan, here, seconds, choice):
    candidates = [SETTINGS.model_copy(update={"seed": n}) for n in range(3)]
    confirmed_plan = _with_fastest(
        plan, SETTINGS, candidates, lines_of(plan, *seconds), lambda s: forecast_settings(s, here)
    )
    assert [n for n, line in enumerate(confirmed_plan.confirmed) if line.is_chosen] == (
        [] if choice is None else [choice]
    )
    if choice:
        assert confirmed_plan.settings["seed"] == choice
        assert [point.changes for point in confirmed_plan.front if point.is_chosen] == [confirmed_plan.changes]
        assert confirmed_plan.reasons[-1].about == "confirmed"
    else:
        assert confirmed_plan.settings == plan.settings


@pytest.mark.medium
def test_out_of_memory_is_an_answer_and_other_faults_are_not(plan, here, monkeypatch):
    def out_of_memory(request, device):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

    monkeypatch.setattr(confirming, "step_seconds", out_of_memory)
    confirmed_plan = confirm(plan, SETTINGS, here, ask, lambda s: forecast_settings(s, here))
    assert {line.failed for line in confirmed_plan.confirmed} == {"ran out of memory"}
    assert confirmed_plan.settings == plan.settings

    def fault(request, device):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(confirming, "step_seconds", fault)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        confirm(plan, SETTINGS, here, ask, lambda s: forecast_settings(s, here))


@pytest.mark.medium
def test_a_plan_for_another_device_is_refused(plan, here):
    with pytest.raises(InvalidSettings, match="found a plan for t4"):
        confirm(plan.model_copy(update={"gpu": "t4"}), SETTINGS, here, ask, lambda s: forecast_settings(s, here))


class ClockedStep:
    """A training step that takes the seconds its batches say; every third run of a batch takes ten times as long."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = 0

    def run(self, batches, observer):
        self.runs += 1
        self.now += sum(batches) * (10 if self.runs % 3 == 0 else 1)
        return SimpleNamespace(loss=torch.zeros(()))


def test_a_step_is_the_mean_over_shapes_of_each_ones_median(monkeypatch):
    step = ClockedStep()
    monkeypatch.setattr(confirming, "time", SimpleNamespace(perf_counter=lambda: step.now))
    assert _mean_step_seconds(step, [[1.0, 1.0]]) == pytest.approx(2.0)
    assert _mean_step_seconds(step, [[1.0], [3.0]]) == pytest.approx(2.0)
    assert step.now >= 2 * confirming.ROUND_SECONDS


def test_a_real_step_is_timed(here, monkeypatch):
    monkeypatch.setattr(confirming, "ROUND_SECONDS", 0.05)
    assert 0 < step_seconds(ask(SETTINGS, here), here) < 10


def test_shapes_are_spread_over_the_epoch():
    plan = BatchPlan.count(
        [BatchShape(2, 8)] * 4 + [BatchShape(2, 16)] * 2 + [BatchShape(2, 32)] * 2, steps=8, samples=16, tokens=100.0
    )
    assert spread_shapes(plan) == [BatchShape(2, 8), BatchShape(2, 8), BatchShape(2, 16), BatchShape(2, 32)]
    even = BatchPlan.count([BatchShape(2, 8)] * 4, steps=4, samples=8, tokens=64.0)
    assert spread_shapes(even) == [BatchShape(2, 8)]
