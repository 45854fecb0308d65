"""Pairs of texts and several labels a text, from a file to the verdict."""

import json

import pytest

from forerun.hardware.detect import detect
from forerun.ledger.store import open_ledger
from forerun.recipes.text_classifier.recipe import load_experiment
from forerun.runs.run import run_experiment
from forerun.settings.load import settings_from

SMALL = {"vocabulary_size": 300, "orders": 2, "buckets": 512, "ngram_width": 8, "width": 16, "feed_forward": 16,
         "heads": 2}  # fmt: skip
LABELS = ("story", "music", "actor")


def pairs():
    """The second text alone says whether the first one's film is liked."""
    return [
        {
            "text": f"film {n} has a story and music {n % 7}",
            "other": f"they found it {('good fine warm' if n % 2 else 'bad dull cold').split()[n % 3]} {n}",
            "label": "liked" if n % 2 else "not",
        }
        for n in range(400)
    ]


def several():
    """A text has the labels whose words are in it: none to all three."""
    rows = []
    for n in range(400):
        labels = [name for place, name in enumerate(LABELS) if n >> place & 1]
        rows.append({"text": f"film {n} of {' and '.join(labels) or 'nothing'} {n % 11}", "label": labels})
    return rows


def run(tmp_path, rows, *overrides):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    settings = settings_from(
        {
            "name": "t", "workload": "text-classifier", "model": {"name": "text-encoder", "config": SMALL},
            "optimizer": {"learning_rate": 1e-2}, "schedule": {"epochs": 4}, "data": {"source": str(path)},
            "batch": {"micro_batch_size": 16, "sequence_length": 48, "padding": "bucketed"},
            "evaluation": {"every_epochs": 1, "examples": 1}, "recipe": {"vocabulary_size": 300},
        },
        overrides,
    )  # fmt: skip
    experiment = load_experiment(settings)
    with open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
        outcome = run_experiment(experiment, detect().device, ledger, tmp_path / "runs")
        assert ledger.run(outcome.run_id).state == "verified"
    return experiment, outcome


@pytest.mark.medium
def test_pairs_of_texts_are_learnt_from_both(tmp_path):
    experiment, outcome = run(tmp_path, pairs(), "recipe.pair_field=other")
    metrics = outcome.measurement.metrics
    assert set(experiment.data.collate(experiment.data.epoch_steps(0)[0][0])) >= {"token_type_ids", "labels"}
    assert metrics["macro_f1"] > 0.9, "the first text alone says nothing"
    assert metrics["majority.macro_f1"] < 0.4
    checked = {criterion.name: criterion.passed for criterion in outcome.verdict.criteria}
    assert checked["beats the majority"]
    assert checked["is not the all-negative answer"]


@pytest.mark.medium
def test_several_labels_a_text_are_learnt_each(tmp_path):
    experiment, outcome = run(tmp_path, several(), "recipe.task=multi-label")
    assert experiment.data.corpus.label_names == tuple(sorted(LABELS))
    assert any(not row.labels for row in experiment.data.rows["train"]), "rows without a label are rows"
    metrics = outcome.measurement.metrics
    assert metrics["macro_f1"] > 0.9
    assert metrics["all-negative.macro_f1"] == 0
    labels = next(table for table in outcome.judgement.tables if table.title == "By label")
    assert [row[0] for row in labels.rows] == sorted(LABELS)
    assert all(float(row[2]) > 0.85 for row in labels.rows)
