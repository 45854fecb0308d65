"""An update in the backward pass is the same update; the whole gradient set never exists, and training says no."""

import copy

import pytest
import torch

from forerun.api import forecast
from forerun.errors import NotSupported
from forerun.settings.load import settings_from
from forerun.settings.schema import OptimizerSettings
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.optimizer import build_optimizer

CONTENT = {
    "name": "o", "workload": "causal-lm", "precision": "bf16-true", "model": {"name": "tiny-llama", "config": {
        "vocab_size": 64, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 4,
    }},
    "optimizer": {"in_backward": True}, "batch": {"micro_batch_size": 1, "sequence_length": 32},
    "data": {"examples": 8},
}  # fmt: skip


def settings(**changes):
    return settings_from({**CONTENT, **changes})


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor"])
def test_it_is_the_same_update(name):
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    two = copy.deepcopy(one)
    plain = build_optimizer(one, OptimizerSettings(name=name, learning_rate=1e-2))
    fused = build_optimizer(two, OptimizerSettings(name=name, learning_rate=1e-2, in_backward=True))
    for step in range(3):
        rate = 1e-2 / (step + 1)  # as a schedule does
        for optimizer, model in ((plain, one), (fused, two)):
            for group in optimizer.param_groups:
                group["lr"] = rate
            model(torch.ones(4, 8)).square().sum().backward()
            optimizer.step()
            assert all(p.grad is None for p in two.parameters())
            optimizer.zero_grad()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert set(fused.state) == set(two.parameters())


def test_no_whole_gradient_set_exists():
    """The peak falls by all gradients but those that are alive at once: at most a block's largest and its like."""
    with_it, without = (
        forecast(settings(optimizer={"in_backward": value}), "a100-40gb") for value in (True, False)
    )  # fmt: skip
    gradients = without.parameters.trainable * 2
    saved = without.memory.peak_allocated_bytes - with_it.memory.peak_allocated_bytes
    largest = 512 * 2048 * 2
    assert gradients - 4 * largest < saved <= gradients
    assert with_it.step.phases.optimizer_seconds < without.step.phases.optimizer_seconds / 10
    assert with_it.step.phases.backward_seconds > without.step.phases.backward_seconds


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": {"micro_batch_size": 1, "sequence_length": 32, "gradient_accumulation_steps": 2}}, "accumulation"),
        ({"optimizer": {"in_backward": True, "max_gradient_norm": 1.0}}, "max_gradient_norm"),
        ({"precision": "fp16-mixed"}, "fp16-mixed"),
        ({"parallel": {"kind": "ddp", "world_size": 2}}, "ddp"),
        ({"optimizer": {"in_backward": True, "name": "muon"}}, "muon"),
    ],
)
def test_what_needs_all_gradients_is_refused(changes, says):
    with pytest.raises(NotSupported, match=r"optimizer\.in_backward") as refusal:
        forecast(settings(**changes), "a100-40gb")
    assert says in str(refusal.value)


def test_training_says_why_not():
    with pytest.raises(NotSupported, match="is forecast here, not trained"):
        build_step(settings(precision="fp32"), generic_workload("causal-lm"), "cpu", pretrained=False)
