"""From a trained run to what is served: exported, read back, and the same scores as in evaluation."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from forerun.errors import BadData, NotSupported
from forerun.hardware.detect import detect_cpu
from forerun.infer.app import make_app
from forerun.infer.scoring import Question
from forerun.infer.test_store import prediction
from forerun.recipes import code_detector_promotion
from forerun.recipes.code_detector import open_recipe
from forerun.recipes.code_detector_promotion import side_by_side
from forerun.recipes.code_detector_serving import open_detector
from forerun.recipes.exporting import export_run
from forerun.recipes.flow import start_training
from forerun.recipes.test_code_detector_data import corpus
from forerun.recipes.test_code_detector_data import settings as settings_of

LONG = "".join(f"def f{n}(value):\n    return value * {n} + {n % 7}\n\n" for n in range(60))


@pytest.fixture(scope="module")
def opened():
    return open_recipe(
        settings_of(schedule={"epochs": 1, "max_steps": 8}, checkpoints={"every_steps": 100, "keep_last": 1}),
        corpus(2400),
    )


@pytest.fixture(scope="module")
def exported(opened, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    device = detect_cpu().device
    training = start_training(opened, device, folder)
    for _ in training.steps():
        pass
    export_run("r1", opened, device, folder, folder / "export", merge=False)
    return folder / "export", training


@pytest.fixture(scope="module")
def detector(exported):
    return open_detector(exported[0])


def test_served_scores_are_those_of_evaluation(detector, opened, exported):
    """On the test rows, calibrated as the card says."""
    rows = [sample for sample in corpus(2400).samples if sample.split == "test"][:200]
    scores = opened.judge(exported[1].step)["test"].probabilities[:200]
    answers = detector.answer([Question(sample.code, sample.language) for sample in rows])
    wanted = detector.card.calibration(scores)
    np.testing.assert_allclose([answer.probability for answer in answers], wanted, atol=1e-5)


@given(
    st.lists(
        st.sampled_from(["", "x", "x = 1\n" * 9, LONG, LONG[:300], "\x00", "π = 3\n" * 50]), min_size=1, max_size=6
    )
)
@settings(deadline=None, max_examples=15)
def test_answers_do_not_depend_on_what_else_is_asked(detector, codes):
    together = detector.answer([Question(code, "python") for code in codes])
    for code, answer in zip(codes, together, strict=True):
        alone = detector.answer([Question(code, "python")])[0]
        assert alone.probability == pytest.approx(answer.probability, abs=1e-5)
        assert (alone.tokens, len(alone.windows)) == (answer.tokens, len(answer.windows))
        np.testing.assert_allclose(alone.vector, answer.vector, atol=1e-5)


def test_windows_cover_a_long_file(detector):
    answer = detector.answer([Question(LONG, "python")])[0]
    assert answer.windows[0].first_line == 1
    assert answer.windows[-1].last_line >= LONG.count("\n") - 1
    for one, two in zip(answer.windows, answer.windows[1:], strict=False):
        assert one.first_line <= two.first_line <= one.last_line + 1
    assert len(detector.answer([Question(LONG * 40, "python")])[0].windows) <= 64
    assert detector.answer([Question("x = 1", "python")])[0].windows == ()


def test_the_whole_way_over_http(detector):
    with TestClient(make_app(detector)) as client:
        said = client.post("/v1/detect", json={"code": LONG, "language": "python"}).json()
        assert said["model"] == detector.card.settings_hash
        assert said["windows"]
        found = client.post(
            "/v1/similarity", json={"a": {"code": LONG, "language": "python"}, "b": {"code": LONG, "language": "java"}}
        )
        assert found.json()["embedding"] == pytest.approx(1, abs=1e-5)


def test_a_detector_beside_itself_changes_nothing(detector, monkeypatch):
    monkeypatch.setattr(code_detector_promotion, "embedded", lambda: corpus(600))
    kept = [prediction(n, LONG[: 50 * n + 50]) for n in range(5)]
    table, figures = side_by_side(detector, detector, kept)
    assert (figures["auc_difference"], figures["changed"], figures["kept_changed"]) == (0, 0, 0)
    assert (figures["kept"], figures["promotable"]) == (5, True)
    assert "is promotable" in table.note


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
