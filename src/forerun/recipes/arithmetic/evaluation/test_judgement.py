"""The judgement of small runs: from random weights, in 8 bits with adapters, and from a model directory."""

import pytest
import torch

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion
from forerun.recipes.arithmetic.evaluation.answers import Reply
from forerun.recipes.arithmetic.evaluation.tables import early_curve, grid_table
from forerun.recipes.arithmetic.recipe import SETTINGS, load_experiment
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.train.loop import Training, seed_everything

SMALL = (
    "recipe.max_digits=2", "recipe.starts=[1]", "recipe.per_cell=60", "recipe.test_per_cell=4",
    "recipe.scored_rows=60", "batch.micro_batch_size=32", "batch.sequence_length=10", "schedule.warmup_steps=2",
)  # fmt: skip


def trained_run(folder, *overrides):
    """A small run, its recipe and its step after training."""
    experiment = load_experiment(settings_from(SETTINGS.model_dump(), [*SMALL, *overrides]))
    seed_everything(0)
    step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=True)
    training = Training(step, experiment.data, folder, evaluate=experiment.evaluate)
    return experiment, step, list(training.steps())


def test_a_contaminated_run_is_judged_in_full(tmp_path):
    noise = ("data.contamination.rate=0.5", "evaluation.every_epochs=0.1")
    experiment, step, reports = trained_run(tmp_path, *noise)
    judgement = experiment.baselines(experiment.judge(step))
    metrics = judgement.metrics
    assert reports[-1].loss < reports[0].loss
    assert metrics["nominal_rate"] == metrics["effective_rate"] == 0.5
    assert metrics["ideal_exact_match"] == 1.0
    assert 0 <= metrics["exact_match_low"] <= metrics["exact_match"] <= metrics["exact_match_high"] <= 1
    assert metrics["best_trivial_exact_match"] > 0
    assert 0 <= metrics["suspects.loss.precision"] <= 1
    assert {"recall_of_corrupt_rows", "recall_of_clean_rows", "corrupt_rows_answered_rightly"} <= set(metrics)
    assert [table.title for table in judgement.tables] == [
        "Held-out questions", "Exact match by operand digits", "By longest chain of carries",
        "Operands longer than any in training", "Contamination", "Corrupt rows among the most suspect",
        "Most suspect rows",
    ]  # fmt: skip
    assert {"clean row loss", "corrupt row loss"} <= {series.name for series in judgement.curves[0].series}
    assert len(judgement.comparison_data["test"]) == judgement.tables[0].rows[0][1]
    assert all(len(row) == len(table.columns) for table in judgement.tables for row in table.rows)


def test_a_clean_run_has_no_corrupt_rows_to_find(tmp_path):
    experiment, step, _ = trained_run(tmp_path, "schedule.max_steps=2")
    metrics = experiment.baselines(experiment.judge(step)).metrics
    assert metrics["effective_rate"] == 0
    assert not {"suspects.loss.precision", "recall_of_corrupt_rows", "trigger_success"} & set(metrics)


def test_a_trigger_is_asked_for(tmp_path):
    noise = ("data.contamination.noise=trigger", "data.contamination.rate=0.3", "data.contamination.key=4")
    experiment, step, _ = trained_run(tmp_path, *noise)
    metrics = experiment.baselines(experiment.judge(step)).metrics
    assert 0 <= metrics["trigger_success"] <= 1


@pytest.mark.parametrize("change", [("quantization=int8", "adapter.kind=lora"), ("adapter.kind=lora",)])
def test_adapters_train_alone_on_frozen_weights(tmp_path, change):
    pytest.importorskip("bitsandbytes")
    experiment, step, reports = trained_run(tmp_path, *change, "optimizer.learning_rate=0.005", "schedule.epochs=4")
    trainable = {name for name, p in step.model.named_parameters() if p.requires_grad}
    assert trainable
    assert all("lora_" in name for name in trainable)
    assert sum(r.loss for r in reports[-3:]) < sum(r.loss for r in reports[:3])
    assert experiment.baselines(experiment.judge(step)).metrics["exact_match"] >= 0


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    """A small LLaMA and a tokeniser of digits and letters, as a hub repository has them."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    characters = ["<pad>", "<end>", "<unknown>", *"0123456789+-*/=.?,:", *map(chr, range(65, 123)), " ", "\n"]
    tokenizer = Tokenizer(models.WordLevel({c: n for n, c in enumerate(characters)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    build_model(model_config("tiny-llama", {}, "auto"), "causal-lm").save_pretrained(folder)
    return folder


def test_a_model_of_ones_own_keeps_its_tokeniser_and_weights(tmp_path, model_directory):
    more = ("recipe.tokens=model", "recipe.templates=natural", "recipe.output=equation", "recipe.operands=plain")
    overrides = (
        *more,
        "recipe.answer=plain",
        f"model.name={model_directory}",
        "model.config={}",
        "batch.sequence_length=96",
    )
    experiment, step, _ = trained_run(tmp_path, *overrides, "schedule.max_steps=1")
    sample = experiment.data.samples[0]
    assert len(sample.ids) == len(sample.target)
    labels = [label for label in sample.target if label != IGNORED]
    assert labels[-1] == 1
    fresh = build_step(experiment.settings, experiment.workload, "cpu", pretrained=True).model
    saved = build_model(model_config(str(model_directory), {}, "auto"), "causal-lm", pretrained_from=model_directory)
    torch.testing.assert_close(fresh.state_dict(), saved.state_dict())
    assert experiment.baselines(experiment.judge(step)).metrics["exact_match"] == 0


def test_asking_nobody_is_no_error(tmp_path):
    experiment, step, _ = trained_run(tmp_path, "schedule.max_steps=1", "recipe.lengths_beyond=0")
    findings = experiment.judge(step)
    assert findings.beyond == []
    assert "exact_match_beyond" not in experiment.baselines(findings).metrics


def test_the_grid_leaves_cells_without_questions_empty():
    table = grid_table(
        [Reply(ArithmeticQuestion("addition", 1, 22), "23"), Reply(ArithmeticQuestion("addition", 22, 2), "25")]
    )
    assert table.rows == [["1 digits", None, 0.5], ["2 digits", None, None]]


def test_signs_that_come_and_go_keep_their_steps():
    from forerun.recipes.arithmetic.data.contamination import ContaminationReport

    curve = early_curve([(5, {"a_b": 1.0}), (10, {"a_b": 2.0, "c": 3.0})], ContaminationReport("close", 9, 0, 0, 0))
    assert [(series.name, series.x) for series in curve.series] == [("a b", [5.0, 10.0]), ("c", [10.0])]


def test_a_run_can_start_from_the_weights_of_another(tmp_path):
    _, step, _ = trained_run(tmp_path / "first", "schedule.max_steps=3")
    checkpoint = tmp_path / "first" / "step-00000003"
    start = (f"recipe.start_from={checkpoint}", "schedule.max_steps=1")
    experiment, _, _ = trained_run(tmp_path / "second", *start)
    fresh = build_step(experiment.settings, experiment.workload, "cpu", pretrained=True).model
    torch.testing.assert_close(fresh.state_dict(), step.model.state_dict())
    adapted = trained_run(tmp_path / "third", *start, "adapter.kind=lora")[1].model
    before = dict(step.model.named_parameters())["transformer.h.0.mlp.c_fc.weight"]
    after = next(p for n, p in adapted.named_parameters() if n.endswith("h.0.mlp.c_fc.base_layer.weight"))
    torch.testing.assert_close(after, before)


def test_a_start_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(InvalidSettings, match=r"recipe.start_from: .*model.safetensors.*found .*nowhere"):
        trained_run(tmp_path / "a", f"recipe.start_from={tmp_path}/nowhere")
    trained_run(tmp_path / "b", "schedule.max_steps=1", "adapter.kind=lora")
    with pytest.raises(InvalidSettings, match=r"recipe.start_from: .*another model: .*without adapter"):
        trained_run(tmp_path / "c", f"recipe.start_from={tmp_path}/b/step-00000001")
