"""From a trained run to what is served: exported, read back, and the same scores as in evaluation."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from forerun.errors import BadData, InvalidSettings, NotSupported
from forerun.hardware.detect import detect_cpu
from forerun.recipes.code_detector.data.test_training_data import corpus
from forerun.recipes.code_detector.data.test_training_data import settings as settings_of
from forerun.recipes.code_detector.evaluation.second_opinion import FILE as SECOND
from forerun.recipes.code_detector.recipe import load_experiment
from forerun.recipes.code_detector.service import promotion as code_detector_promotion
from forerun.recipes.code_detector.service.app import make_app
from forerun.recipes.code_detector.service.detector_card import NO_SECOND_OPINION
from forerun.recipes.code_detector.service.drift import write_edge_cases
from forerun.recipes.code_detector.service.promotion import side_by_side
from forerun.recipes.code_detector.service.scoring import DetectionQuestion
from forerun.recipes.code_detector.service.serving import ServedDetector, open_detector
from forerun.recipes.code_detector.service.test_scoring import card
from forerun.recipes.code_detector.service.test_store import prediction
from forerun.runs.export import export_run
from forerun.runs.run import start_training

LONG = "".join(f"def f{n}(value):\n    return value * {n} + {n % 7}\n\n" for n in range(60))


@pytest.fixture(scope="module")
def experiment():
    return load_experiment(
        settings_of(schedule={"epochs": 1, "max_steps": 8}, checkpoints={"every_steps": 100, "keep_last": 1}),
        corpus(2400),
    )


@pytest.fixture(scope="module")
def exported(experiment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    device = detect_cpu().device
    training = start_training(experiment, device, folder)
    for _ in training.steps():
        pass
    export_run("r1", experiment, device, folder, folder / "export", merge=False)
    return folder / "export", training


@pytest.fixture(scope="module")
def detector(exported):
    return open_detector(exported[0])


def test_served_scores_are_those_of_evaluation(detector, experiment, exported):
    """Scores of the test rows, calibrated as the card says."""
    rows = [sample for sample in corpus(2400).samples if sample.split == "test"][:200]
    judged = experiment.judge(exported[1].step)["test"]
    scores = judged.probabilities[:200]
    answers = detector.answer([DetectionQuestion(sample.code, sample.language) for sample in rows])
    expected = detector.card.calibration(scores)
    np.testing.assert_allclose([answer.probability for answer in answers], expected, atol=1e-5)
    assert detector.card.decided_by_windows
    assert any(answer.windows for answer in answers)
    expected = detector.card.calibration(judged.decisive[:200])
    np.testing.assert_allclose([answer.decisive(detector.card) for answer in answers], expected, atol=1e-5)


def test_the_second_opinion_goes_with_the_export_and_is_asked_where_the_detector_flags(detector, exported, tmp_path):
    assert detector.card.has_second_opinion
    assert (exported[0] / SECOND).exists()
    low = [point.model_copy(update={"threshold": 0.0, "second_threshold": 0.5}) for point in detector.card.points]
    flags = ServedDetector(
        detector.model, detector.tokeniser, detector.settings, detector.card.model_copy(update={"points": low}),
        detector.second,
    )  # fmt: skip
    [answer] = flags.answer([DetectionQuestion(LONG, "python")])
    assert answer.second == pytest.approx(detector.second([LONG], ["python"])[0])
    older = ServedDetector(detector.model, detector.tokeniser, detector.settings, flags.card)
    assert older.answer([DetectionQuestion(LONG, "python")])[0].second is None
    folder = shutil.copytree(exported[0], tmp_path / "export")
    (folder / SECOND).unlink()
    with pytest.raises(BadData, match="second opinion that cannot be read"):
        open_detector(folder)
    (folder / "detector.json").write_text(detector.card.model_copy(update={"alone": []}).model_dump_json())
    assert open_detector(folder).card.full_statement[-1] == NO_SECOND_OPINION  # as exports were before there was one


@given(
    st.lists(
        st.sampled_from(["", "x", "x = 1\n" * 9, LONG, LONG[:300], "\x00", "π = 3\n" * 50]), min_size=1, max_size=6
    )
)
@settings(deadline=None, max_examples=15)
def test_answers_do_not_depend_on_what_else_is_asked(detector, codes):
    together = detector.answer([DetectionQuestion(code, "python") for code in codes])
    for code, answer in zip(codes, together, strict=True):
        alone = detector.answer([DetectionQuestion(code, "python")])[0]
        assert alone.probability == pytest.approx(answer.probability, abs=1e-5)
        assert (alone.tokens, len(alone.windows)) == (answer.tokens, len(answer.windows))
        np.testing.assert_allclose(alone.vector, answer.vector, atol=1e-5)


def test_windows_cover_a_long_file(detector):
    answer = detector.answer([DetectionQuestion(LONG, "python")])[0]
    assert answer.windows[0].first_line == 1
    assert answer.windows[-1].last_line >= LONG.count("\n") - 1
    for one, two in zip(answer.windows, answer.windows[1:], strict=False):
        assert one.first_line <= two.first_line <= one.last_line + 1
    assert len(detector.answer([DetectionQuestion(LONG * 40, "python")])[0].windows) <= 64
    assert detector.answer([DetectionQuestion("x = 1", "python")])[0].windows == ()


def test_the_whole_way_over_http(detector):
    with TestClient(make_app(detector)) as client:
        answer = client.post("/v1/detect", json={"code": LONG, "language": "python"}).json()
        assert answer["model"] == detector.card.settings_hash
        assert answer["windows"]
        comparison = client.post(
            "/v1/similarity", json={"a": {"code": LONG, "language": "python"}, "b": {"code": LONG, "language": "java"}}
        )
        assert comparison.json()["embedding"] == pytest.approx(1, abs=1e-5)


def test_a_detector_beside_itself_changes_nothing(detector, monkeypatch):
    monkeypatch.setattr(code_detector_promotion, "embedded", lambda: corpus(600))
    predictions = [prediction(n, LONG[: 50 * n + 50]) for n in range(5)]
    table, figures = side_by_side(detector, detector, predictions)
    assert (figures["auc_difference"], figures["changed"], figures["kept_changed"]) == (0, 0, 0)
    assert (figures["kept"], figures["promotable"]) == (5, True)
    assert "is promotable" in table.note


@pytest.fixture(scope="module")
def edge_cases(tmp_path_factory):
    """Files with blanks that turned out to be a person's, and one that is in test already."""
    file = tmp_path_factory.mktemp("edge") / "edge.jsonl"
    rows = [
        prediction(n, f"    edge_{n} = {n}\n" * 9, verdict="worth-a-conversation", outcome="refuted") for n in range(9)
    ]
    test_sample = next(sample for sample in corpus(2400).samples if sample.split == "test")
    rows.append(prediction(99, test_sample.code, verdict="worth-a-conversation", outcome="refuted"))
    assert write_edge_cases(rows, card(), file) == 10
    return file


@pytest.fixture(scope="module")
def continued(exported, edge_cases, tmp_path_factory):
    """A run that went on from the export with the edge cases; its data, first loss and export."""
    settings = settings_of(
        schedule={"epochs": 1, "max_steps": 4},
        checkpoints={"every_steps": 100, "keep_last": 1},
        recipe={"start": str(exported[0]), "edge_cases": str(edge_cases)},
    )
    experiment, folder, device = (
        load_experiment(settings, corpus(2400)),
        tmp_path_factory.mktemp("next"),
        detect_cpu().device,
    )
    training = start_training(experiment, device, folder)
    weights = {name: tensor.clone() for name, tensor in training.step.model.state_dict().items()}
    for _ in training.steps():
        pass
    export_run("r2", experiment, device, folder, folder / "export", merge=False)
    return experiment, weights, folder / "export"


def test_training_goes_on_from_the_export_with_the_edge_cases(exported, continued):
    experiment, weights, folder = continued
    for name, tensor in exported[1].step.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    before, after = (json.loads((each / "detector.json").read_text()) for each in (exported[0], folder))
    assert after["training_files"] == before["training_files"] + 9  # the tenth is a test row
    assert after["test_files"] == before["test_files"]
    assert "served" in after["sources"]
    assert (exported[0] / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert experiment.settings.data.examples == after["training_files"]


def test_old_and_new_are_put_side_by_side(detector, continued, monkeypatch):
    monkeypatch.setattr(code_detector_promotion, "embedded", lambda: corpus(600))
    new = open_detector(continued[2])
    predictions = [prediction(n, LONG[: 50 * n + 50], outcome=("refuted", "confirmed")[n % 2]) for n in range(4)]
    table, figures = side_by_side(detector, new, predictions)
    assert figures["auc_difference_low"] <= figures["auc_difference"] <= figures["auc_difference_high"]
    assert figures["promotable"] == (figures["auc_difference_high"] >= 0 and figures["new_fpr"] <= figures["old_fpr"])
    assert ("not promotable" in table.note) != figures["promotable"]
    assert figures["kept_checked"] == 4
    worse = copy.deepcopy(new)
    with torch.no_grad():
        for parameter in worse.model.parameters():
            parameter.zero_()
    _, figures = side_by_side(detector, worse, predictions)  # knows nothing
    assert figures["auc_difference_high"] < 0
    assert not figures["promotable"]


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ({"start": "nowhere"}, {}, "forerun export RUN"),
        ({"form": "normalised"}, {}, "Set recipe.form to 'raw'"),
        ({}, {"model": {"name": "code-encoder"}}, "model.config"),
        ({"edge_cases": "nowhere.jsonl"}, {}, "reading failed"),
    ],
)
def test_what_cannot_be_gone_on_from_is_said(exported, recipe, changes, message):
    run_settings = settings_of(**changes, recipe={"start": str(exported[0])} | recipe)
    with pytest.raises((BadData, InvalidSettings), match=message):
        load_experiment(run_settings, corpus(2400))


def test_edge_cases_that_are_all_in_test_already_are_none(edge_cases, tmp_path):
    last = tmp_path / "last.jsonl"
    last.write_text(edge_cases.read_text().splitlines()[-1])
    with pytest.raises(BadData, match="no case that is not in validation or test"):
        load_experiment(settings_of(recipe={"edge_cases": str(last)}), corpus(2400))


def test_other_folders_are_refused(exported, tmp_path):
    with pytest.raises(BadData, match="forerun export"):
        open_detector(tmp_path)
    folder = tmp_path / "other"
    folder.mkdir()
    described = json.loads((exported[0] / "forerun.json").read_text())
    described["settings"]["workload"] = "causal-lm"
    (folder / "forerun.json").write_text(json.dumps(described))
    with pytest.raises(NotSupported, match="causal-lm"):
        open_detector(folder)


def test_card_goes_with_the_export(exported):
    assert {"detector.json", "MODEL_CARD.md", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in exported[0].iterdir()
    }
