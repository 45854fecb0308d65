import json

import numpy as np
import pytest
import torch

from forerun.recipes.text_classifier.evaluation import TABLE_FIGURES
from forerun.recipes.text_classifier.finals import baseline_scores, final_comparison, held_out_scores
from forerun.recipes.text_classifier.recipe import CRITERIA, criteria_for, load_experiment
from forerun.recipes.text_classifier.test_search import SMALL
from forerun.runs.recipe import Judgement
from forerun.settings.load import settings_from
from forerun.step.build import build_step


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [
        {"text": f"{'good' if n % 2 else 'bad'} film {n} {'x ' * (n % 7)}", "label": "ny"[n % 2]} for n in range(300)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def experiment_of(path, **recipe):
    return load_experiment(
        settings_from(
            {
                "name": "t", "workload": "text-classifier", "model": {"name": "text-encoder", "config": SMALL},
                "batch": {"micro_batch_size": 8, "sequence_length": 48, "padding": "bucketed"},
                "data": {"source": str(path)}, "recipe": {"vocabulary_size": 300, **recipe},
            }
        )
    )  # fmt: skip


def judgement_of(experiment) -> Judgement:
    step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=False)
    return experiment.baselines(experiment.judge(step))


def test_a_trial_leaves_the_test_rows_alone(path):
    experiment = experiment_of(path, judged_on="selection")
    scores = experiment.judge(build_step(experiment.settings, experiment.workload, "cpu", pretrained=False))
    assert set(scores) == {"selection"}
    judgement = experiment.baselines(scores)
    assert all(name.startswith("selection_") for name in judgement.metrics)
    assert criteria_for(experiment.settings) == ()


def test_a_run_ends_beside_every_baseline(path):
    experiment = experiment_of(
        path, augmentation={"policies": [{"method": "aeda"}, {"method": "mixup"}]} | {"keep_label": True}
    )
    judgement = judgement_of(experiment_of(path, augmentation={"policies": [{"method": "aeda", "probability": 0.2}]}))
    for name in ("majority", "prior", "all-negative", "length", "tf-idf"):
        assert {f"{name}.{figure}" for figure in TABLE_FIGURES} <= set(judgement.metrics)
    assert judgement.metrics["tf-idf.macro_f1"] > 0.9
    assert {criterion.quantity for criterion in CRITERIA} - set(judgement.metrics) == {
        "step.seconds",
        "peak_allocated_bytes",
    }
    (check,) = (t for t in judgement.tables if t.title == "Augmentation of text")
    assert check.rows[0][0] == "aeda"
    assert experiment.settings.data.examples == len(experiment.data.rows["train"])


def test_finalists_are_paired_with_the_winner_over_the_same_rows(path):
    experiment = experiment_of(path, judged_on="selection")
    torch.manual_seed(1)  # of 25 encoders that learned nothing one was right by chance on these few rows
    step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=False)
    scores = held_out_scores(experiment, step)
    targets = experiment.data.targets("test")
    right = {"threshold": 0.2 + 0.6 * experiment.data.targets("threshold"), "test": 0.2 + 0.6 * targets}
    document = final_comparison(experiment, {"3": [scores, scores], "5": [right]}, "5", 0)
    assert document["metrics"]["macro_f1"] == 1
    assert document["finalists"]["5"]["below_winner"] == [0, 0, 0]
    value, low, high = document["finalists"]["3"]["below_winner"]
    assert 0 < low < value < high
    assert value == pytest.approx(1 - np.mean(document["finalists"]["3"]["scores"]))
    assert document["over_baselines"]["majority"][0] > 0.4
    assert json.loads(json.dumps(document)) == document


def test_baselines_are_scored_where_trials_are(path):
    scores = baseline_scores(experiment_of(path))
    assert scores["tf-idf"] > 0.9 > scores["majority"]
