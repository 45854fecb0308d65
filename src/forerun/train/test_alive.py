"""A part of the model that does not learn is found; one that learns is not accused."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
from forerun.records import StepPhases, StepReport
from forerun.train.alive import AliveCheck, TrivialLoss, label_entropy
from kill_driver import TinyWorkload, tiny_training


def findings(training):
    for _ in training.steps():
        pass
    return training.alive.findings


def test_a_run_that_learns_has_no_findings(tmp_path):
    assert findings(tiny_training(tmp_path)) == []


def test_a_thawed_encoder_is_looked_at(tmp_path):
    training = tiny_training(tmp_path, schedule={"epochs": 4, "frozen_encoder_epochs": 1})
    steps = training.steps()
    for _ in range(8):
        next(steps)
    assert {name for name in training.alive._start if name.startswith("encoder")}
    assert not training.alive._without_gradient


def test_a_head_that_nothing_reads_is_found(tmp_path, monkeypatch):
    def build(self, settings, *, pretrained):
        model = original(self, settings, pretrained=pretrained)
        model.forgotten = torch.nn.Linear(3, 3)
        return model

    original = TinyWorkload.build_model
    monkeypatch.setattr(TinyWorkload, "build_model", build)
    with pytest.warns(UserWarning, match="got no gradient"):
        (finding,) = findings(tiny_training(tmp_path))
    assert finding.startswith("2 of 7 trainable tensors got no gradient in 28 steps: forgotten.bias, forgotten.weight.")


def test_a_learning_rate_of_nothing_is_found(tmp_path):
    training = tiny_training(tmp_path, optimizer={"learning_rate": 1e-30, "weight_decay": 0})
    with pytest.warns(UserWarning, match="did not move"):
        (finding,) = findings(training)
    assert "5 of 5 trainable tensors did not move" in finding


def report(step, loss, **details):
    return StepReport(
        step=step, epoch=1, loss=loss, learning_rate=1e-3, step_seconds=1, phases=StepPhases(), samples=1, tokens=1,
        padded_tokens=1, details=details,
    )  # fmt: skip


def after_losses(tmp_path, losses, trivial, **details):
    check = AliveCheck(tiny_training(tmp_path).step, total_steps=400, trivial=trivial)
    for number, loss in enumerate(losses, start=1):
        check.check_loss(report(number, loss, **{name: value[number - 1] for name, value in details.items()}))
    return check.findings


def test_a_loss_no_better_than_a_constant_answer_is_found_by_a_quarter_of_the_run(tmp_path):
    coin = TrivialLoss(label_entropy([0, 1]), "a coin")
    assert coin.value == pytest.approx(0.6931, abs=1e-4)
    (finding,) = after_losses(tmp_path, [0.7] * 120, coin)
    assert finding.startswith("loss is 0.7000 in the mean of the last 10 steps at step 100; a coin has 0.6931.")
    assert after_losses(tmp_path, [0.7] * 90 + [0.6] * 10, coin) == []
    assert after_losses(tmp_path, [0.7] * 99, coin) == [], "it has a quarter of the run"
    part = TrivialLoss(coin.value, "a coin", part="task_loss")
    assert after_losses(tmp_path, [9.0] * 100, part, task_loss=[0.1] * 100) == []


def test_entropy_of_labels():
    assert label_entropy([0, 0, 0, 1]) == pytest.approx(0.5623, abs=1e-4), "H(1/4) in nats"
    assert label_entropy([0, 0, 0, 1], smoothing=1.0) == pytest.approx(0.6931, abs=1e-4), "smoothed all the way"
    assert label_entropy([5]) == 0
