import json

import numpy as np
import pytest

from forerun.recipes.text_classifier.evaluation import SHOWN
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


def opened(path, **recipe):
    return load_experiment(
        settings_from(
            {
                "name": "t", "workload": "text-classifier", "model": {"name": "text-encoder", "config": SMALL},
                "batch": {"micro_batch_size": 8, "sequence_length": 48, "padding": "bucketed"},
                "data": {"source": str(path)}, "recipe": {"vocabulary_size": 300, **recipe},
            }
        )
    )  # fmt: skip


def judged(recipe) -> Judgement:
    step = build_step(recipe.settings, recipe.workload, "cpu", pretrained=False)
    return recipe.baselines(recipe.judge(step))


def test_a_trial_leaves_the_test_rows_alone(path):
    recipe = opened(path, judged_on="selection")
    scores = recipe.judge(build_step(recipe.settings, recipe.workload, "cpu", pretrained=False))
    assert set(scores) == {"selection"}
    found = recipe.baselines(scores)
    assert all(name.startswith("selection_") for name in found.metrics)
    assert criteria_for(recipe.settings) == ()


def test_a_run_ends_beside_every_baseline(path):
    recipe = opened(path, augmentation={"policies": [{"method": "aeda"}, {"method": "mixup"}]} | {"keep_label": True})
    found = judged(opened(path, augmentation={"policies": [{"method": "aeda", "probability": 0.2}]}))
    for name in ("majority", "prior", "all-negative", "length", "tf-idf"):
        assert {f"{name}.{figure}" for figure in SHOWN} <= set(found.metrics)
    assert found.metrics["tf-idf.macro_f1"] > 0.9
    assert {criterion.quantity for criterion in CRITERIA} - set(found.metrics) == {
        "step.seconds",
        "peak_allocated_bytes",
    }
    (check,) = (t for t in found.tables if t.title == "Augmentation of text")
    assert check.rows[0][0] == "aeda"
    assert recipe.settings.data.examples == len(recipe.data.rows["train"])


def test_finalists_are_paired_with_the_winner_over_the_same_rows(path):
    recipe = opened(path, judged_on="selection")
    step = build_step(recipe.settings, recipe.workload, "cpu", pretrained=False)
    scores = held_out_scores(recipe, step)
    targets = recipe.data.targets("test")
    right = {"threshold": 0.2 + 0.6 * recipe.data.targets("threshold"), "test": 0.2 + 0.6 * targets}
    document = final_comparison(recipe, {"3": [scores, scores], "5": [right]}, "5", 0)
    assert document["metrics"]["macro_f1"] == 1
    assert document["finalists"]["5"]["below_winner"] == [0, 0, 0]
    value, low, high = document["finalists"]["3"]["below_winner"]
    assert 0 < low < value < high
    assert value == pytest.approx(1 - np.mean(document["finalists"]["3"]["scores"]))
    assert document["over_baselines"]["majority"][0] > 0.4
    assert json.loads(json.dumps(document)) == document


def test_baselines_are_scored_where_trials_are(path):
    found = baseline_scores(opened(path))
    assert found["tf-idf"] > 0.9 > found["majority"]
