"""Pipelines of which every figure can be worked out on paper, against the published formulas of their bubbles."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.clock.job_step import RankStep, job_step
from forerun.clock.timed_calls import Role, TimedCall
from forerun.errors import UnmatchedExchange
from forerun.trace import Phase

FORWARD_SECONDS, BACKWARD_SECONDS, UPDATE_SECONDS = 1.0, 2.0, 0.5


def call(role=Role.KERNEL, seconds=0.0, peer=None, ranks=()):
    return TimedCall(
        name=f"{role.value} {peer}", role=role, device_seconds=seconds, host_seconds=0.0, peer=peer, ranks=ranks
    )


class Program:
    """Writes the step of one stage."""

    def __init__(self, rank, message_seconds=0.0):
        self.rank, self.message_seconds = rank, message_seconds
        self.calls, self.ops, self.phases, self.waits = [], [], [], {}

    def run(self, what, phase):
        self.calls.append(what)
        self.ops.append(len(self.calls) - 1)
        self.phases.append(phase)
        return len(self.ops) - 1

    def receive(self, peer, phase):
        place = self.run(call(Role.RECEIVE, self.message_seconds, peer), phase)
        self.waits.setdefault(place + 1, []).append(place)

    def send(self, peer, phase):
        self.run(call(Role.SEND, self.message_seconds, peer), phase)

    def forward(self, stages, seconds=FORWARD_SECONDS):
        if self.rank:
            self.receive(self.rank - 1, Phase.FORWARD)
        self.run(call(seconds=seconds), Phase.FORWARD)
        if self.rank + 1 < stages:
            self.send(self.rank + 1, Phase.FORWARD)

    def backward(self, stages, seconds=BACKWARD_SECONDS):
        if self.rank + 1 < stages:
            self.receive(self.rank + 1, Phase.BACKWARD)
        self.run(call(seconds=seconds), Phase.BACKWARD)
        if self.rank:
            self.send(self.rank - 1, Phase.BACKWARD)

    def step(self):
        self.run(call(seconds=UPDATE_SECONDS), Phase.OPTIMIZER)
        return RankStep(rank=self.rank, calls=self.calls, ops=self.ops, phases=self.phases, waits=self.waits)


def pipeline(stages, micro_batches, schedule, message_seconds=0.0):
    """Steps of all stages."""
    steps = []
    for rank in range(stages):
        program = Program(rank, message_seconds)
        ahead = micro_batches if schedule == "gpipe" else min(micro_batches, stages - rank)
        for _ in range(ahead):
            program.forward(stages)
        for number in range(micro_batches):
            program.backward(stages)
            if ahead + number < micro_batches:
                program.forward(stages)
        steps.append(program.step())
    return steps


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 2), (4, 4), (4, 16), (8, 3)])
def test_the_bubble_is_that_of_the_literature(schedule, stages, micro_batches):
    """(stages - 1) / micro-batches of the work: Narayanan et al. 2021, arXiv:2104.04473, section 2.2, both schedules."""
    ranks = tuple(range(stages))
    steps = pipeline(stages, micro_batches, schedule)
    joined = [
        step.model_copy(
            update={  # the norm of all gradients joins the stages
                "calls": [*step.calls, call(Role.AWAITED, 0.0, ranks=ranks)],
                "ops": [*step.ops[:-1], len(step.calls), step.ops[-1]],
                "phases": [*step.phases, Phase.OPTIMIZER],
            }
        )
        for step in steps
    ]
    work = micro_batches * (FORWARD_SECONDS + BACKWARD_SECONDS)
    bubble = work * (stages - 1) / micro_batches
    job = job_step(joined)
    assert job.seconds == pytest.approx(work + bubble + UPDATE_SECONDS)
    for time in job.ranks.values():
        assert time.bubble_seconds == pytest.approx(bubble)
        assert sum(time.busy.values()) == pytest.approx(job.seconds)


def test_messages_that_nothing_hides_are_no_bubble():
    """Two stages, one micro-batch: one message there and one back stand in the way."""
    job = job_step(pipeline(2, 1, "1f1b", message_seconds=0.25))
    assert job.seconds == pytest.approx(FORWARD_SECONDS + BACKWARD_SECONDS + 0.25 * 2 + 3 + UPDATE_SECONDS)
    assert job.ranks[0].busy["communication"] - job.ranks[0].bubble_seconds == pytest.approx(0.25)


def test_the_slowest_stage_sets_the_pace():
    steps = pipeline(4, 32, "1f1b")
    slow = steps[2].model_copy(
        update={
            "calls": [each.model_copy(update={"device_seconds": each.device_seconds * 1.5}) for each in steps[2].calls]
        }
    )
    job = job_step([*steps[:2], slow, steps[3]])
    assert job.seconds >= 32 * 4.5
    assert job.ranks[2].bubble_seconds < job.ranks[0].bubble_seconds


def test_ranks_that_are_not_played_are_not_waited_for():
    program = Program(3)
    program.receive(2, Phase.FORWARD)
    program.run(call(Role.AWAITED, 0.5, ranks=(0, 3, 6)), Phase.FORWARD)
    job = job_step([program.step()])
    assert job.seconds == pytest.approx(0.5 + UPDATE_SECONDS)
    assert job.ranks[3].bubble_seconds == 0


def test_what_nobody_sends_is_named():
    steps = pipeline(2, 1, "1f1b")
    silent = Program(0)
    silent.receive(1, Phase.BACKWARD)
    with pytest.raises(UnmatchedExchange, match="rank 1 at operator 1 of 5 for receive 0"):
        job_step([silent.step(), steps[1]])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 9), st.sampled_from(["gpipe", "1f1b"]), st.floats(0, 1),
)  # fmt: skip
def test_a_step_is_no_shorter_than_its_work_and_no_longer_than_everything_in_turn(stages, count, schedule, message):
    steps = pipeline(stages, count, schedule, message)
    job = job_step(steps)
    work = count * (FORWARD_SECONDS + BACKWARD_SECONDS) + UPDATE_SECONDS
    total = stages * work + 2 * (stages - 1) * count * message
    assert work - 1e-9 <= job.seconds <= total + 1e-9
    assert job_step(list(reversed(steps))).seconds == pytest.approx(job.seconds), "the order of playing says nothing"
