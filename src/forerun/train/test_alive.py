"""A part of the model that does not learn is found; one that learns is not accused."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
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
        (said,) = findings(tiny_training(tmp_path))
    assert said.startswith("2 of 7 trainable tensors got no gradient in 28 steps: forgotten.bias, forgotten.weight.")


def test_a_learning_rate_of_nothing_is_found(tmp_path):
    training = tiny_training(tmp_path, optimizer={"learning_rate": 1e-30, "weight_decay": 0})
    with pytest.warns(UserWarning, match="did not move"):
        (said,) = findings(training)
    assert "5 of 5 trainable tensors did not move" in said
