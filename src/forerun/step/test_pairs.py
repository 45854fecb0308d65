"""Contrast over the whole step: however it is split, and equal to the published formula."""

import pytest
import torch

from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.pairs import TEMPERATURE, Embeddings, Pairs
from forerun.step.training_step import StepObserver

DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}


def step_of(dropout):
    content = {
        "name": "a", "workload": "pairs", "batch": {"sequence_length": 12},
        "model": {"name": "tiny-bert", "config": DROPOUT if dropout else dict.fromkeys(DROPOUT, 0.0)},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
    }  # fmt: skip
    torch.manual_seed(0)
    return build_step(settings_from(content), Pairs(), "cpu", pretrained=False)


def batch(size):
    torch.manual_seed(3)
    example = Pairs().example_batch(settings_from({"name": "a", "workload": "pairs", "model": {"name": "x"}}), size, 12)
    for key in ("input_ids", "other_input_ids"):
        example[key] = torch.randint(3, 60, example[key].shape)
    example["attention_mask"][0, 7:] = 0
    return example


def pieces(whole, count):
    size = len(whole["input_ids"]) // count
    return [{k: v[i * size : (i + 1) * size] for k, v in whole.items()} for i in range(count)]


def test_it_is_the_formula():
    left, right = torch.randn(2, 3, 5).unbind()
    left, right = (v / v.norm(dim=-1, keepdim=True) for v in (left, right))
    scores = (left @ right.T / TEMPERATURE).exp()
    expected = -sum((scores[i, i] / scores[i].sum()).log() for i in range(3))
    assert Pairs().loss_of((left, right), []).sum.item() == pytest.approx(expected.item(), rel=1e-5)


def test_texts_that_come_again_are_no_negatives():
    drawn = torch.randn(3, 3, 5, generator=torch.Generator().manual_seed(0))
    left, right, negatives = torch.nn.functional.normalize(drawn, dim=-1).unbind()
    batch = {
        "key": torch.tensor([1, 2, 1]),
        "other_key": torch.tensor([5, 6, 7]),
        "negative_key": torch.tensor([9, 5, 8]),
    }
    scores = (left @ torch.cat([right, negatives]).T / TEMPERATURE).exp()
    scores[0, [2, 4]] = scores[2, 0] = 0  # another text of the same anchor; the same text among the negatives
    expected = -sum((scores[i, i] / scores[i].sum()).log() for i in range(3))
    workload = Embeddings(has_negatives=True)
    parts = [{name: values[:1] for name, values in batch.items()}, {name: values[1:] for name, values in batch.items()}]
    for batches in ([batch], parts):
        assert workload.loss_of((left, right, negatives), batches).sum.item() == pytest.approx(
            expected.item(), rel=1e-5
        )
    batch |= {"key": torch.arange(3), "negative_key": torch.arange(20, 23)}
    plain = Pairs(has_negatives=True).loss_of((left, right, negatives), [batch]).sum
    assert workload.loss_of((left, right, negatives), [batch]).sum == plain


@pytest.mark.parity
@pytest.mark.parametrize("count", [2, 4])
def test_negatives_span_the_step_however_it_is_split(count):
    results = []
    for parts in (1, count):
        step = step_of(dropout=False)
        result = step.run(pieces(batch(8), parts), StepObserver())
        results.append((result.loss, [p.detach().clone() for p in step.model.parameters()]))
    (one_loss, one), (loss, other) = results
    assert loss.item() == pytest.approx(one_loss.item(), rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, other, strict=True))


def test_the_second_pass_draws_the_same_dropout():
    """Else the gradient would belong to other outputs than the loss: a step against finite differences of the loss."""
    step = step_of(dropout=True)
    parts = pieces(batch(4), 2)
    left_vectors = []
    original = step.workload.outputs

    def outputs(model, part):
        vectors = original(model, part)
        left_vectors.append(vectors[0].detach().clone())
        return vectors

    step.workload.outputs = outputs
    try:
        step.run(parts, StepObserver())
    finally:
        del step.workload.outputs
    assert torch.equal(left_vectors[0], left_vectors[2])
    assert torch.equal(left_vectors[1], left_vectors[3])
    assert not torch.equal(original(step.model, parts[0])[0], left_vectors[0])
