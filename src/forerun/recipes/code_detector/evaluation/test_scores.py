import numpy as np
import pytest
import torch

from forerun.recipes.code_detector.data.test_training_data import corpus, settings
from forerun.recipes.code_detector.data.training_data import open_data
from forerun.recipes.code_detector.evaluation import scores as e
from forerun.recipes.code_detector.evaluation.baselines import run_baselines
from forerun.recipes.code_detector.workload import CodeDetectorWorkload


@pytest.fixture(scope="module")
def data():
    return open_data(settings(), corpus())


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return CodeDetectorWorkload(settings()).build_model(settings(), pretrained=False).train()


def test_scores_are_in_the_order_of_the_split_and_leave_the_model_training(model, data):
    scores = e.score_split(model, data, "test")
    assert model.training
    model.eval()
    for index in (0, 5, len(scores.probabilities) - 1):
        batch = data.collate(np.asarray([index]), "test")
        alone = model(batch["input_ids"], batch["attention_mask"])
        assert scores.probabilities[index] == pytest.approx(float(alone.logits.detach().softmax(1)[0, 1]), abs=1e-5)
        np.testing.assert_allclose(scores.vectors[index], alone.vectors[0].detach(), atol=1e-5)
    model.train()


def test_report_covers_the_test_split(model, data):
    report = e.evaluate_detector(model, data)
    assert report.samples == len(data.samples["test"])
    assert set(report.slices) == {"language=python", "source=SECRETSOURCE"}
    assert len(e.score_split(model, data, "val", limit=3).probabilities) == 3


def test_pair_auc_is_one_for_perfect_vectors(data):
    groups = [data.group_numbers[sample.group] for sample in data.samples["test"]]
    perfect = np.eye(max(groups) + 1)[groups]
    scores = e.SplitScores(np.zeros(len(groups)), perfect)
    assert e.task_pair_auc(scores, data, "test") == 1.0


def test_every_criterion_is_answered_by_the_metrics(model, data):
    """All but the contrastive loss, which the run adds from its step reports."""
    metrics = e.all_metrics(e.evaluate_detector(model, data), run_baselines(corpus()))
    quantities = {c.quantity for c in e.CRITERIA if c.comparison != "error within"}
    bounds = {c.bound: list(c.bounding(metrics)) for c in e.CRITERIA if isinstance(c.bound, str)}
    assert quantities - set(metrics) == {"author_loss"}
    assert {bound for bound, names in bounds.items() if not names} == {"author_floor"}
    readers = {"length-only.raw.roc_auc", "formatting-counts.raw.roc_auc", "character-ngrams.raw.roc_auc"}
    assert set(bounds["*.raw.roc_auc"]) == readers, "every baseline that reads the code, and none of its slices"


def test_baselines_read_what_the_detector_reads():
    assert e.baseline_forms(settings()) == ("raw", "normalised")
    assert e.baseline_forms(settings(recipe={"hold_out": "source:x"})) == ("raw",)
    assert e.baseline_forms(settings(recipe={"hold_out": "source:x", "form": "normalised"})) == ("normalised",)


def test_the_least_window_decides_for_long_files_alone(model):
    data = open_data(settings(batch={"micro_batch_size": 4, "sequence_length": 16}), corpus())
    plain = e.score_split(model, data, "val")
    scores = e.with_windows(plain, model, data, "val")
    assert model.training
    model.eval()
    counts = [len(windows) for windows in data.windows["val"]]
    assert min(counts) == 0 < max(counts)
    for index, windows in enumerate(data.windows["val"]):
        alone = [plain.probabilities[index]]
        for ids in windows:
            tokens = torch.from_numpy(ids.astype(np.int64))[None]
            alone.append(float(model(tokens, torch.ones_like(tokens)).logits.detach().softmax(1)[0, 1]))
        assert scores.decisive[index] == pytest.approx(min(alone), abs=1e-5)
    model.train()
    assert plain.decisive is plain.probabilities
    assert open_data(settings(recipe={"form": "normalised"}), corpus()).windows == {}
