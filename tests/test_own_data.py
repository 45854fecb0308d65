"""Generic workloads on own data, from the file to the judged, exported, resumed model."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun.api import request_of
from forerun.cli.run_commands import open_settings
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.detect import detect
from forerun.ledger.store import open_ledger
from forerun.own.trained import open_trained
from forerun.runs.export import export_run
from forerun.runs.registry import open_experiment
from forerun.runs.run import run_experiment, run_folder
from forerun.settings.load import settings_from
from forerun.verify.compare import NOT_TOLD_APART
from own_driver import training_of, weights_hash
from own_sets import SETS, write_set

DRIVER = Path(__file__).parent / "own_driver.py"
LEARNED = {"one": ("macro_f1", 0.9), "several": ("macro_f1", 0.6), "number": ("spearman", 0.7), "pair": ("ece", 0.0),
           "text": ("accuracy", 0.6), "packed": ("accuracy", 0.5), "chat": ("accuracy", 0.6), "tools": ("accuracy", 0.6),
           "forgets": ("accuracy", 0.6), "completion": ("accuracy", 0.6),
           "tags": ("f1", 0.9), "spans": ("f1", 0.9), "masked": ("accuracy", 0.3), "translation": ("accuracy", 0.3),
           "pairs": ("mrr", 0.2), "triplets": ("mrr", 0.2), "preference": ("accuracy", 0.9),
           "kto": ("auc", 0.9)}  # fmt: skip
"""Kind → score of the test rows that a run of seconds reaches; of pairs only that they run."""
ADAPTED = ["one", "chat", "tags", "pairs", "preference", "kto"]
"""Kinds that are trained with LoRA too."""
PEFT_CLASSES = {
    "one": "SequenceClassification", "chat": "CausalLM", "tags": "TokenClassification", "pairs": "FeatureExtraction",
    "preference": "CausalLM", "kto": "CausalLM",
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::forerun.train.loop.NotLearningWarning")


def run(tmp_path, kind, **sections):
    """A whole run; its result, experiment and folder."""
    experiment = open_experiment(write_set(tmp_path / "data", kind, **sections))
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        result = run_experiment(experiment, detect().device, ledger, tmp_path / "runs")
        return result, experiment, run_folder(ledger.run(result.run_id))


@pytest.mark.medium
@pytest.mark.parametrize("kind", SETS)
def test_a_run_learns_and_stands_beside_its_baselines(tmp_path, kind):
    batch = {"micro_batch_size": 16, "sequence_length": 48, "padding": "fixed"}  # any measured step is the heaviest
    result, experiment, folder = run(tmp_path, kind, schedule={"epochs": 8, "warmup_steps": 4}, batch=batch)
    metrics, (score, least) = result.measurement.metrics, LEARNED[kind]
    assert metrics[score] >= least, metrics
    assert not any(name.startswith("strongest.") for name in metrics), "the criterion itself finds the strongest"
    assert all(np.isfinite(value) for value in metrics.values())
    first, quantity = result.verdict.criteria[0], experiment.criteria[0].quantity
    best = next(iter(experiment.criteria[0].bounding(metrics).values()))
    low, high = (metrics[f"{quantity}.gap.{end}"] for end in ("low", "high"))
    assert low - 1e-9 <= metrics[quantity] - best <= high + 1e-9, (
        "the interval is of the difference from the strongest baseline"
    )
    assert first.name == (NOT_TOLD_APART if first.passed and low <= 0 <= high else "beats the strongest baseline")
    assert result.forecast.memory.peak_allocated_bytes == pytest.approx(
        result.measurement.memory.peak_allocated_bytes, rel=0.05
    )
    trained = open_trained(folder)  # the model that was judged, without its data
    assert trained.facts.workload == experiment.settings.workload


@pytest.mark.parametrize("kind", SETS)
def test_a_run_that_stops_anywhere_and_goes_on_ends_with_the_same_weights(tmp_path, kind):
    _, whole = training_of(tmp_path / "whole", kind, rows=120)
    for _ in whole.steps():
        pass
    whole.load_best()
    for stop in (3, 7):
        _, part = training_of(tmp_path / "parts", kind, rows=120)
        for report in part.steps():
            if report.step >= stop:
                break
    _, last = training_of(tmp_path / "parts", kind, rows=120)
    reports = list(last.steps())
    last.load_best()
    assert 0 < len(reports) < len(whole.reports)
    assert weights_hash(last.step.model) == weights_hash(whole.step.model)
    assert last.best.values[-1] == whole.best.values[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SETS)
def test_a_killed_run_ends_with_the_same_weights(tmp_path, kind):
    def start(folder, *words):
        command = [sys.executable, str(DRIVER), str(folder), kind, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    out, err = start(tmp_path / "whole").communicate()
    assert out, err
    for number in range(2):
        process, checkpoints = start(tmp_path / "killed", "slow"), tmp_path / "killed" / "checkpoints"
        while process.poll() is None and len(list(checkpoints.glob("step-*"))) <= number:
            time.sleep(0.01)
        time.sleep(0.03)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    again, err = start(tmp_path / "killed").communicate()
    assert again == out, err


@pytest.mark.medium
@pytest.mark.parametrize("kind", ADAPTED)
def test_an_adapter_is_trained_exported_and_read_back(tmp_path, kind):
    adapter = {"kind": "lora", "rank": 4, "alpha": 8}
    result, experiment, folder = run(tmp_path, kind, rows=120, adapter=adapter)
    device = detect().device
    for merge, name in ((False, "adapter"), (True, "merged")):
        report = export_run(result.run_id, experiment, device, folder, tmp_path / name, merge=merge)
        assert report.kind == name
        exported = open_trained(tmp_path / name)
        assert exported.facts == open_trained(folder).facts
    _require_peft_opens(tmp_path / "adapter", kind, open_trained(folder))


def _require_peft_opens(folder, kind, trained):
    """Check that peft, which knows nothing of the run, gives the same numbers; the seed's base is in the folder."""
    import peft

    adapter = getattr(peft, f"AutoPeftModelFor{PEFT_CLASSES[kind]}").from_pretrained(folder)
    inputs = trained.tokenizer(["the film was lovely", "after 2?"], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        both = [model.eval()(**inputs)[0] for model in (adapter, trained.model)]
    torch.testing.assert_close(*both, rtol=0, atol=1e-6)


def test_a_run_that_stops_early_says_so_and_is_judged_by_the_score_that_was_asked_for(tmp_path):
    sections = {
        "schedule": {"epochs": 30, "warmup_steps": 1, "decay": "constant"}, "rows": 80,
        "evaluation": {"patience": 1, "metric": "mcc"}, "optimizer": {"learning_rate": 1e-2},
    }  # fmt: skip
    verdict = run(tmp_path, "one", **sections)[0].verdict
    assert "validation_mcc was not better for 1 evaluation (" in verdict.stopped_early
    assert "look at the data size" not in verdict.first_cause
    assert "total_steps" not in {row.field for row in verdict.rows}
    assert verdict.criteria[0].rule.startswith("mcc above ")


@pytest.mark.medium
def test_an_exported_classifier_is_read_by_pipelines_of_transformers(tmp_path):
    from transformers import pipeline

    result, experiment, folder = run(tmp_path, "one", schedule={"epochs": 4, "warmup_steps": 4})
    export_run(result.run_id, experiment, detect().device, folder, tmp_path / "export", merge=False)
    texts = ["the film was lovely and rain", "the story was dull people in town"]
    answers = pipeline("text-classification", model=str(tmp_path / "export"))(texts)
    trained = open_trained(folder)
    with torch.inference_mode():
        logits = trained.model(**trained.tokenizer(texts, return_tensors="pt", padding=True)).logits
    labels = [trained.facts.label_names[place] for place in logits.argmax(1).tolist()]
    assert set(trained.facts.label_names) == {"pos", "neg"}
    assert [answer["label"] for answer in answers] == labels
    assert [a["score"] for a in answers] == pytest.approx(logits.softmax(1).max(1).values.tolist(), abs=1e-5)


def test_patience_stops_a_run_early_and_the_best_model_is_judged(tmp_path):
    schedule = {"epochs": 30, "warmup_steps": 1, "decay": "constant"}
    sections = {
        "schedule": schedule, "evaluation": {"patience": 2, "metric": "macro_f1"}, "rows": 80,
        "optimizer": {"learning_rate": 1e-2},
    }  # fmt: skip
    _, training = training_of(tmp_path / "whole", "one", **sections)
    steps = [report.step for report in training.steps()]
    best = training.best
    assert len(best.values) == steps[-1] / training.schedule.steps_per_epoch < 30
    assert best.values[-3] == max(best.values)
    assert best.waited == 2
    assert [path.name for path in best.folder.iterdir()] == [f"step-{best.step:08d}"]
    measured = training.measurement("cpu", training.reports, {}).run
    assert measured.total_steps == steps[-1]
    assert measured.stopped_early.startswith(
        f"stopped early after step {steps[-1]} of {training.schedule.total_steps}: validation_macro_f1 was not better "
        f"for 2 evaluations (evaluation.patience); its best, {max(best.values):.4f}, is of step {best.step}"
    )
    _, again = training_of(tmp_path / "whole", "one", **sections)
    assert list(again.steps()) == []  # it has stopped, and stays so
    training.load_best()
    again.load_best()
    assert weights_hash(again.step.model) == weights_hash(training.step.model)


def test_the_forecast_is_of_the_step_that_is_trained(tmp_path):
    settings = write_set(tmp_path, "one")
    request, experiment = request_of(settings, detect().device, None), open_experiment(settings)
    assert request.plan == experiment.plan
    assert request.settings == experiment.settings
    assert type(request.workload) is type(experiment.workload)


def test_settings_without_data_are_refused_with_what_would_do():
    settings = settings_from({"name": "a", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}})
    with pytest.raises(NotSupported, match="data.source"):
        open_settings(settings)


def test_a_score_that_the_workload_does_not_have_is_named(tmp_path):
    settings = write_set(tmp_path, "one", evaluation={"metric": "macro-f1"})
    with pytest.raises(InvalidSettings, match="macro_f1"):
        open_experiment(settings)


def test_a_trained_model_answers_as_the_run_did(tmp_path):
    experiment, training = training_of(tmp_path, "number", rows=120)
    for _ in training.steps():
        pass
    training.load_best()
    trained = open_trained(tmp_path)
    mine, theirs = training.step.model.state_dict(), trained.model.state_dict()
    assert all(torch.equal(theirs[name], value) for name, value in mine.items())
    assert trained.settings == experiment.settings
    assert trained.facts.label_kind == "number"
    assert trained.facts.label_scale > 1


def test_another_loss_of_preferences_is_trained_and_judged_by(tmp_path):
    own = {"loss": "ipo", "beta": 0.5}
    experiment, training = training_of(tmp_path, "preference", rows=60, preference=own, schedule={"max_steps": 3})
    assert experiment.settings.preference.beta == own["beta"]
    first = next(training.steps())
    assert first.loss == pytest.approx((1 / (2 * own["beta"])) ** 2, rel=1e-4)  # no answer has gained anything
    scores = experiment.evaluate(training.step, 1)
    assert scores["validation_loss"] < first.loss
    usual, plain = training_of(tmp_path / "usual", "preference", rows=60, schedule={"max_steps": 3})
    assert usual.settings.hash != experiment.settings.hash
    assert next(plain.steps()).loss == pytest.approx(np.log(2), rel=1e-5)


def test_a_folder_without_weights_is_told_as_one(tmp_path):
    settings = write_set(tmp_path, "forgets", rows=120)
    workload = open_experiment(settings).workload
    workload.build_model(settings, pretrained=True)  # warnings are errors
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"model\.name: the folder .* has no weights"):
        workload.build_model(settings, pretrained=True)
    sized = write_set(tmp_path / "other", "forgets", rows=120)
    sized = sized.model_copy(update={"model": sized.model.model_copy(update={"config": {"intermediate_size": 100}})})
    with pytest.warns(UserWarning, match=r"model\.config: changes the size"):
        workload.build_model(sized, pretrained=True)
