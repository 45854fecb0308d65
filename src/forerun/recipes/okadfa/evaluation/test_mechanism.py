import pytest
import torch

from forerun.errors import MechanismDead
from forerun.recipes.okadfa.evaluation.mechanism import (
    attention_floor,
    check_gradient,
    effective_rank,
    kernel_error,
    require_attention,
    require_rule,
)
from forerun.recipes.okadfa.model.feedback import DirectFeedback
from forerun.recipes.okadfa.model.kernel_decoder import DecoderConfig, KernelDecoder

BATCH = {
    name: torch.randint(0, 30, (2, 24), generator=torch.Generator().manual_seed(1)) for name in ("input_ids", "labels")
}


class NextToken:
    """Cross-entropy alone."""

    def loss(self, model, batch):
        logits = model(batch["input_ids"]).logits
        total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
        return type("Sum", (), {"sum": total})()

    def count(self, batch):
        return batch["labels"].numel()


def tiny(**changes):
    torch.manual_seed(0)
    shape = {"vocabulary_size": 30, "width": 32, "layers": 3, "heads": 2, "feed_forward": 48}
    return KernelDecoder(DecoderConfig(**shape | changes))


@pytest.mark.parametrize("rule", ["backpropagation", "dfa-macro", "dfa-micro", "shallow"])
def test_live_rules_pass(rule):
    model = tiny(learning_rule=rule)
    check = check_gradient(model, NextToken(), BATCH)
    require_rule(check, rule)
    assert all(p.grad is None for p in model.parameters())
    assert model.learning_rule == rule
    if rule == "backpropagation":
        assert check.differences == (0.0, 0.0, 0.0)
    elif rule == "shallow":
        assert check.cosines[0] != check.cosines[0]  # nothing is trained there
        assert check.cosines[2] == pytest.approx(1)
    else:
        assert min(check.differences[:2]) > 0.1
        assert max(abs(c) for c in check.cosines[:2]) < 0.99
    assert check.top_difference == 0.0


def test_feedback_that_is_not_connected_is_found(monkeypatch):
    """The original's fault: the rule is on in the settings, and plain backpropagation runs."""
    model = tiny(learning_rule="dfa-macro")
    plain = KernelDecoder.forward

    def forward(self, input_ids):
        with self.trained_by("backpropagation"):
            return plain(self, input_ids)

    monkeypatch.setattr(KernelDecoder, "forward", forward)
    with pytest.raises(MechanismDead, match="feedback is not connected"):
        require_rule(check_gradient(model, NextToken(), BATCH), "dfa-macro")


def test_a_top_without_its_true_gradient_is_found(monkeypatch):
    """Feedback that doubles the error of the last block too."""
    backward = DirectFeedback.backward

    def doubled(ctx, error):
        return backward(ctx, error * 2)

    monkeypatch.setattr(DirectFeedback, "backward", staticmethod(doubled))
    check = check_gradient(tiny(learning_rule="dfa-macro"), NextToken(), BATCH)
    assert check.differences[-1] == pytest.approx(1)
    with pytest.raises(MechanismDead, match="true gradient"):
        require_rule(check, "dfa-macro")


@pytest.mark.parametrize("attention", ["softmax", "elu", "favor"])
@pytest.mark.parametrize("length", [8, 24])
def test_live_attention_passes(attention, length):
    model = tiny(attention=attention)
    ratios = model(BATCH["input_ids"][:, :length]).attention_ratios
    require_attention(float(ratios.min()), length, attention)


def test_the_originals_attention_is_stopped():
    model = tiny(attention="unscaled", width=64, heads=1)
    ratio = float(model(BATCH["input_ids"]).attention_ratios.min())
    assert ratio < 1e-6
    with pytest.raises(MechanismDead, match=r"recipe\.attention: unscaled is dead.*favor"):
        require_attention(ratio, 24, "unscaled")
    with pytest.raises(MechanismDead):
        require_attention(float("nan"), 24, "favor")


def test_the_floor_is_a_tenth_of_what_the_first_token_alone_gives():
    assert attention_floor(400) == pytest.approx(0.005)


def test_kernel_error_falls_with_features_and_is_asked_of_estimates_only():
    few, many = (kernel_error(tiny(features=count), BATCH) for count in (4, 4096))
    assert few is not None
    assert many is not None
    assert many < few / 2  # queries and keys of length √d: few features carry most of the sum, so it falls slowly
    assert kernel_error(tiny(attention="elu"), BATCH) is None


def test_effective_rank_of_collapsed_and_of_full_states():
    model = tiny()
    usual = effective_rank(model, BATCH)
    assert 5 < usual <= 32
    with torch.no_grad():
        model.final_norm.weight.zero_()
        model.final_norm.weight[0] = 1.0
    assert effective_rank(model, BATCH) == pytest.approx(1, abs=1e-3)
    assert model.returns_states is False
