"""Losses and gradients that are no numbers: steps skipped and counted, a run stopped when they stay. A GPU that disappears."""

import math

import pytest
import torch

from forerun.errors import DeviceFailed, NonFiniteLoss
from forerun.step.workload import LossSum
from forerun.train import checkpoint
from kill_driver import run, tiny_training


def test_non_finite_loss_keeps_the_last_good_checkpoint(tmp_path):
    training = tiny_training(tmp_path)
    original = training.step.workload.loss
    count = {"calls": 0}

    def loss(model, batch):
        count["calls"] += 1
        terms = original(model, batch)
        return terms if count["calls"] <= 8 else LossSum(terms.sum * float("nan"))

    training.step.workload.loss = loss
    with pytest.raises(NonFiniteLoss, match=r"5 steps in a row.*step-00000003"):
        run(training)
    fresh = tiny_training(tmp_path)
    assert checkpoint.load_newest(tmp_path, fresh.step)["step"] == 3, "from before the steps that were skipped"
    assert all(torch.isfinite(p).all() for p in fresh.step.model.parameters()), "skipped steps changed nothing"


@pytest.mark.parametrize("clipped", [None, 1.0])
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
def test_a_step_without_a_finite_loss_is_skipped_and_counted(tmp_path, precision, clipped):
    """One bad step costs its update and nothing else, under loss scaling too."""
    optimizer = {"learning_rate": 1e-2, "max_gradient_norm": clipped}
    training = tiny_training(tmp_path, schedule={"max_steps": 6}, optimizer=optimizer, precision=precision)
    original, calls = training.step.workload.loss, []

    def loss(model, batch):
        calls.append(1)
        terms = original(model, batch)
        return terms if len(calls) != 5 else LossSum(terms.sum * float("nan"))  # the third step's first half

    training.step.workload.loss = loss
    reports = run(training)
    assert [r.step for r in reports if r.is_skipped] == [3]
    assert all(torch.isfinite(p).all() for p in training.step.model.parameters())
    assert not reports[2].is_warm


@pytest.mark.parametrize("clipped", [None, 1.0])
def test_a_step_without_a_finite_gradient_is_skipped_and_counted(tmp_path, clipped):
    """The loss may be fine where its gradient is not: the root of 0 has a slope without end."""
    optimizer = {"learning_rate": 1e-2, "max_gradient_norm": clipped}
    training = tiny_training(tmp_path, schedule={"max_steps": 6}, optimizer=optimizer)
    original, calls = training.step.workload.loss, []

    def loss(model, batch):
        calls.append(1)
        terms = original(model, batch)
        zero = (model.head.bias * 0.0).sum()
        return terms if len(calls) != 5 else LossSum(terms.sum + zero.sqrt())  # the third step's first half

    training.step.workload.loss = loss
    reports = run(training)
    assert [r.step for r in reports if r.is_skipped] == [3]
    assert all(math.isfinite(r.loss) for r in reports)
    assert [r.step for r in reports if not math.isfinite(r.gradient_norm)] == [3]
    assert all(torch.isfinite(p).all() for p in training.step.model.parameters())


def test_a_gpu_that_disappears_costs_the_steps_since_the_last_checkpoint(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    whole = tiny_training(tmp_path / "whole")
    run(whole)
    training = tiny_training(folder)
    original, calls = training.step.workload.loss, []

    def loss(model, batch):
        calls.append(1)
        if len(calls) == 15:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA")
        return original(model, batch)

    training.step.workload.loss = loss
    with pytest.raises(DeviceFailed, match=r"launch failure\. Last good.*step-00000006.*--resume run") as failure:
        run(training)
    assert "\n" not in str(failure.value)
    again = tiny_training(folder)
    assert run(again)[0].step == 7
    pairs = zip(again.step.model.parameters(), whole.step.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
