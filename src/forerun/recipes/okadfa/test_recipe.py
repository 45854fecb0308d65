import warnings

import numpy as np
import pytest

from forerun.errors import MechanismDead, UnknownModel
from forerun.recipes.okadfa.data.windows import unread_data
from forerun.recipes.okadfa.evaluation.scores import Watcher, twin_settings
from forerun.recipes.okadfa.recipe import SETTINGS, VARIANTS, comparison, load_experiment, loss_at
from forerun.runs.recipe import SweepRun
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.train.loop import Training, seed_everything

TINY = ["recipe.corpus=induction", "batch.sequence_length=16", "model.config.width=32", "model.config.layers=2",
        "model.config.heads=2", "model.config.feed_forward=32", "batch.micro_batch_size=8", "data.examples=64",
        "schedule.max_steps=6", "evaluation.examples=8", "evaluation.every_epochs=0.5"]  # fmt: skip


def tiny(*more):
    return settings_from(SETTINGS.model_dump(), [*TINY, *more])


def train(settings, folder):
    experiment = load_experiment(settings)
    seed_everything(settings.seed)
    step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=False)
    training = Training(step, experiment.data, folder, evaluate=experiment.evaluate, watch=experiment.watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        reports = list(training.steps())
    return experiment, training, reports


def test_a_run_is_judged_beside_its_baselines_and_its_twin(tmp_path):
    experiment, training, reports = train(tiny(), tmp_path)
    judgement = experiment.baselines(experiment.judge(training.step))
    metrics = judgement.metrics
    expected = {"held_out_loss", "unigram_loss", "bigram_loss", "shallow_loss", "entropy", "copied", "attention_ratio",
                "attention_floor", "gradient_is_the_rules", "gradient_cosine_0", "kernel_error", "effective_rank"}  # fmt: skip
    assert expected <= metrics.keys()
    assert metrics["gradient_cosine_1"] == pytest.approx(1)
    assert metrics["attention_ratio"] > metrics["attention_floor"]
    assert judgement.comparison_data["curve"]["step"] == [4.0]
    assert len(reports) == 6
    assert "symbols (16)" in judgement.tables[0].note


def test_dead_attention_is_stopped_in_the_first_step(tmp_path):
    with pytest.raises(MechanismDead, match="unscaled is dead"):
        train(tiny("recipe.attention=unscaled", "model.config.width=128", "model.config.heads=1"), tmp_path)


def test_the_penalty_comes_in_and_features_are_redrawn_the_same_after_a_resume(tmp_path):
    """Stopped after three steps of six and started again: bit-equal weights and features."""
    settings = tiny("recipe.redraw_every=2", "checkpoints.every_steps=3", "recipe.orthogonality=0.01")
    _, whole, _ = train(settings, tmp_path / "whole")
    assert float(whole.step.model.orthogonality_share) == 1.0
    experiment = load_experiment(settings)
    seed_everything(0)
    first = Training(
        build_step(experiment.settings, experiment.workload, "cpu", pretrained=False), experiment.data, tmp_path / "cut",
        watch=experiment.watch,
    )  # fmt: skip
    steps = first.steps()
    for _ in range(3):
        next(steps)
    next(steps)
    steps.close()
    _, again, reports = train(settings, tmp_path / "cut")
    assert reports[0].step == 4
    for (name, a), b in zip(whole.step.model.state_dict().items(), again.step.model.state_dict().values(), strict=True):
        assert np.array_equal(a.numpy(), b.numpy()), name


def test_a_forecast_reads_no_text():
    data_and_plan = unread_data(
        settings_from(SETTINGS.model_dump(), ["data.source=Salesforce/wikitext:wikitext-103-raw-v1"])
    )
    assert data_and_plan is not None
    assert data_and_plan[1].samples == 118_000_000 // 64
    assert "was not read" in data_and_plan[1].assumptions[0]
    assert unread_data(SETTINGS) is None  # the shipped text is here


def test_gpt2_tokens_are_refused_where_they_are_not(monkeypatch):
    monkeypatch.setattr("forerun.recipes.okadfa.data.windows.gpt2", lambda: None)
    with pytest.raises(UnknownModel, match="learned"):
        load_experiment(settings_from(SETTINGS.model_dump(), ["recipe.tokenizer=gpt2"]))


def test_the_twin_differs_in_its_rule_alone():
    settings = tiny("batch.gradient_accumulation_steps=2")
    twin = twin_settings(settings)
    assert twin.recipe["learning_rule"] == "shallow"
    same = {"model", "optimizer", "schedule", "batch", "seed", "precision"}
    assert twin.model_dump(include=same) == settings.model_dump(include=same)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_valid(name):
    experiment = load_experiment(settings_from(tiny().model_dump(), VARIANTS[name]))
    assert isinstance(experiment.watch.__self__, Watcher)  # type: ignore[union-attr]


def test_comparison_reads_curves_at_equal_updates_and_time():
    curve = {"step": [10.0, 20.0], "seconds": [1.0, 3.0], "loss": [4.0, 2.0]}
    slower = {"step": [10.0, 20.0], "seconds": [2.0, 6.0], "loss": [3.0, 1.0]}
    assert loss_at(curve, "seconds", 2.0) == 3.0
    assert loss_at(curve, "step", 5.0) is None
    runs = [_sweep_run("a", curve, 2.0), _sweep_run("b", slower, 1.0)]
    (table,), curves = comparison(runs)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["at equal updates"] for row in rows] == [2.0, 1.0]
    assert [row["at equal time"] for row in rows] == [2.0, 2.5]
    assert [row["over best"] for row in rows] == [2.0, 1.0]
    assert [c.across for c in curves] == ["updates", "seconds of training"]


def _sweep_run(name, curve, loss):
    class Anything:
        def __getattr__(self, name):
            return None

    measurement = Anything()
    measurement.metrics = {"held_out_loss": loss, "unigram_loss": 5.0, "bigram_loss": 4.0, "gradient_cosine_0": 0.5,
                           "gradient_cosine_1": 1.0}  # fmt: skip
    measurement.memory, measurement.step = Anything(), Anything()
    measurement.memory.peak_allocated_bytes, measurement.step.seconds = 2**20, 0.1
    return SweepRun(name, SETTINGS, Anything(), measurement, {"curve": curve})  # type: ignore[arg-type]
