"""A rank's own forecast becomes that of the job: it waits for stages before and behind it."""

import pytest

from forerun.clock.test_job_step import pipeline
from forerun.forecasting.job_time import JobTime
from forerun.records import Range, RunForecast, RunPhases, StepForecast, StepPhases

OWN = 4 * 3 + 0.5  # seconds: four micro-batches of three, and the update
STEP = StepForecast(
    seconds=Range(optimistic=OWN - 1, expected=OWN, conservative=OWN + 2),
    phases=StepPhases(forward_seconds=4, backward_seconds=8, optimizer_seconds=0.5),
    model_flops=1, hardware_flops=1, mfu=0.5, tokens_per_second=0, samples_per_second=0,
)  # fmt: skip
RUN = RunForecast(
    steps_per_epoch=10, total_steps=10, checkpoints_written=0, checkpoint_bytes=0,
    seconds=Range(optimistic=100, expected=10 * OWN + 5, conservative=200),
    phases=RunPhases(startup_seconds=5, training_seconds=10 * OWN), cost=2.0,
)  # fmt: skip


def time_of(stages):
    return JobTime({step.rank: step for step in pipeline(stages, 4, "1f1b")})


def test_alone_nothing_changes():
    assert time_of(1).step(0, STEP, (8.0, 80.0)).seconds == STEP.seconds
    assert time_of(1).run(0, RUN) == RUN


def test_the_jobs_step_has_its_bubble_and_the_rates_of_all():
    time = time_of(2)
    assert time.job.seconds > OWN
    step = time.step(0, STEP, (8.0, 80.0))
    assert step.seconds.expected == pytest.approx(time.job.seconds)
    assert sum(step.phases.model_dump().values()) == pytest.approx(step.seconds.expected)
    assert step.phases.communication_seconds == pytest.approx(step.seconds.expected - OWN)
    assert step.seconds.conservative / step.seconds.expected == pytest.approx((OWN + 2) / OWN)
    assert (step.samples_per_second, step.tokens_per_second) == (8 / time.job.seconds, 80 / time.job.seconds)
    assert step.mfu == pytest.approx(0.5 * OWN / time.job.seconds)


def test_only_training_is_longer_and_the_cost_follows():
    time = time_of(2)
    run = time.run(0, RUN)
    assert run.phases.training_seconds == pytest.approx(10 * time.job.seconds)
    assert run.phases.startup_seconds == 5
    assert run.cost == pytest.approx(2.0 * (10 * time.job.seconds + 5) / (10 * OWN + 5))
