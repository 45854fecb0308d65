"""Seconds of phases add up, also where one is inside another."""

import time

import pytest
import torch

from forerun.records import StepPhases, StepReport
from forerun.settings.load import settings_from
from forerun.trace import Phase
from forerun.train.measure import PhaseTimer, SeenShapes, cold_seconds

SLEEP = 0.02


def test_a_phase_inside_another_is_not_counted_twice():
    """The passes of a pipeline are phases inside that of its schedule; a forward pass in it is one of both."""
    timer, start = PhaseTimer("cpu"), time.perf_counter()
    with timer.phase(Phase.FORWARD):
        with timer.phase(Phase.FORWARD):
            time.sleep(SLEEP)
        with timer.phase(Phase.BACKWARD):
            time.sleep(2 * SLEEP)
        time.sleep(SLEEP)
    total = time.perf_counter() - start
    phases = timer.take(total)
    assert phases.backward_seconds >= 2 * SLEEP
    assert phases.forward_seconds >= 2 * SLEEP
    assert phases.forward_seconds + phases.backward_seconds == pytest.approx(total, rel=0.05)


def batches(*shapes):
    return [{"input_ids": torch.zeros(shape), "count": 3.0} for shape in shapes]


def test_a_shape_is_new_once_and_only_to_a_gpu():
    seen = SeenShapes("cuda")
    asked = [batches((8, 16)), batches((8, 16)), batches((8, 16), (8, 32)), batches((8, 32)), batches((4, 32))]
    assert [seen.new_in(each) for each in asked] == [True, False, True, False, True]
    assert not SeenShapes("cpu").new_in(asked[0])


def report(step, seconds, is_warm):
    return StepReport(
        step=step, epoch=0.0, loss=1.0, learning_rate=0.1, step_seconds=seconds, phases=StepPhases(), samples=1, tokens=1,
        padded_tokens=1, is_warm=is_warm,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("compile_mode", "device", "seconds"),
    [("none", "cuda", (4.0, 0.0)), ("default", "cuda", (0.0, 4.0)), ("default", "cpu", (0.0, 4.0)), ("none", "cpu", (0.0, 0.0))],
)  # fmt: skip
def test_cold_seconds_are_of_a_gpu_that_starts_or_of_the_compiler(compile_mode, device, seconds):
    settings = settings_from(
        {"name": "s", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "compile": compile_mode}
    )
    reports = [report(1, 4.0, False), report(2, 1.0, True), report(3, 3.0, True), report(4, 4.0, False)]
    assert cold_seconds(settings, device, reports) == pytest.approx(seconds)
    assert cold_seconds(settings, device, reports[:1]) == (0.0, 0.0)
