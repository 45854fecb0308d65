"""The recipe opened, forecast without data, and judged from answers that were not generated."""

import json
from pathlib import Path

import pytest
import torch

from forerun.api import forecast, resolve
from forerun.data.instructions import Instruction
from forerun.errors import BadData, InvalidSettings
from forerun.evaluate.sandbox import isolation_here
from forerun.recipes.code_lora import base_model as code_lora_base
from forerun.recipes.code_lora import recipe as code_lora
from forerun.recipes.code_lora.data.rows import CodeLoraOptions, open_data
from forerun.recipes.code_lora.data.test_tasks import HUMANEVAL, MBPP
from forerun.recipes.code_lora.evaluation.scores import (
    CRITERIA,
    WITHOUT_TESTS,
    AnswerScores,
    Scores,
    ask,
    generated_lengths,
    held_out_loss,
    watch,
)  # fmt: skip
from forerun.recipes.code_lora.evaluation.tables import judge
from forerun.runs.registry import criteria_of
from forerun.settings.load import load_settings, settings_from
from forerun.step.build import build_step, prepare_model
from forerun.step.training_step import StepObserver
from forerun.train.loop import seed_everything

FEW = [
    "recipe.documents=64", "recipe.rows=260", "recipe.questions=6", "evaluation.examples=4", "evaluation.new_tokens=8",
    "batch.micro_batch_size=8", "model.config.hidden_size=32", "model.config.num_hidden_layers=1",
    "model.config.intermediate_size=64",
]  # fmt: skip
FOLDER = Path(code_lora.__file__).parent
NEEDS_ISOLATION = pytest.mark.skipif(not isolation_here().is_enough, reason=f"no isolation here: {isolation_here()}")


def settings(*overrides):
    return settings_from(code_lora.SETTINGS.model_dump(), [*FEW, *overrides])


@pytest.fixture(scope="module")
def recipe_data():
    run_settings = settings()
    options = CodeLoraOptions.model_validate(run_settings.recipe)
    return (
        run_settings,
        options,
        open_data(run_settings, options, code_lora_base.tokens_of(run_settings, local_only=True)),
    )


def rows_file(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return f"data.source={path}"


def many(number, answer="x = {number}"):
    return [
        {"instruction": f"Set x to {number}.", "input": "", "output": answer.format(number=number)}
        for number in range(number)
    ]


def test_splits_are_apart_and_stated(recipe_data):
    _, _, data = recipe_data
    instructions = {task.instruction for task in data.tasks}
    parts = [set(data.train), set(data.watched), set(data.held_out)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert not instructions & {row.request for part in parts for row in part}
    assert len(data.training.samples) == len(data.train)
    assert len(data.split) == 16


def test_adapters_of_every_variant_are_as_large_as_they_say():
    sizes = {}
    for name, overrides in code_lora.VARIANTS.items():
        variant = settings_from(code_lora.SETTINGS.model_dump(), overrides)
        assert variant.adapter.alpha / variant.adapter.rank == 2
        with torch.device("meta"):
            model = prepare_model(variant, code_lora_base.CodeLora(), pretrained=False)
        sizes[name] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    per_rank = 4 * (4 * (128 + 128) + 3 * (128 + 384))
    assert sizes == {"r8": 8 * per_rank, "r16": 16 * per_rank, "r32": 32 * per_rank, "qlora-r16": 16 * per_rank}


@pytest.mark.parametrize("target", ["code-lora", "code-lora-t4", "code-lora-a100"])
def test_only_the_variant_that_says_so_is_quantised(target):
    kinds = {n: settings_from(resolve(target).model_dump(), o).quantization for n, o in code_lora.VARIANTS.items()}
    assert kinds == {"r8": "none", "r16": "none", "r32": "none", "qlora-r16": "nf4"}


def test_the_quantised_variant_really_trains_its_adapter_alone(recipe_data):
    pytest.importorskip("bitsandbytes")
    run_settings = settings("quantization=nf4", "adapter.rank=16", "optimizer.learning_rate=0.02")
    seed_everything(0)
    step = build_step(run_settings, code_lora_base.CodeLora(), "cpu", pretrained=False)
    packed = [p for n, p in step.model.named_parameters() if "q_proj.base_layer" in n]
    assert {p.dtype for p in packed} == {torch.uint8}
    before = [p.clone() for p in packed]
    batch = recipe_data[2].training.collate(range(8))
    losses = [float(step.run([batch], StepObserver()).loss) for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(old, new) for old, new in zip(before, packed, strict=True))


def test_a_rank_stabilised_adapter_is_scaled_by_the_root_of_its_rank_and_learns(recipe_data):
    """Kalajdzievski 2023: alpha / sqrt(rank); what the adapter adds is that times B A x."""
    run_settings = settings("adapter.rslora=true", "adapter.rank=16", "adapter.alpha=8", "optimizer.learning_rate=0.02")
    seed_everything(0)
    step = build_step(run_settings, code_lora_base.CodeLora(), "cpu", pretrained=False)
    (layer,) = (m for n, m in step.model.named_modules() if n.endswith("layers.0.self_attn.q_proj"))
    batch = recipe_data[2].training.collate(range(8))
    losses = [float(step.run([batch], StepObserver()).loss) for _ in range(16)]
    assert losses[-1] < 0.9 * losses[0]
    x = torch.randn(3, 32)
    with torch.no_grad():
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        torch.testing.assert_close(layer(x) - layer.base_layer(x), 8 / 16**0.5 * x @ down.T @ up.T)


def test_the_base_is_the_model_without_its_adapter(recipe_data):
    run_settings, options, data = recipe_data
    seed_everything(0)
    step = build_step(run_settings, code_lora_base.CodeLora(), "cpu", pretrained=False)
    before = held_out_loss(step, data, data.held_out)
    for name, parameter in step.model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)
    assert held_out_loss(step, data, data.held_out) != before
    with step.model.disable_adapter():
        assert held_out_loss(step, data, data.held_out) == before
    assert set(watch(step, data, options)) == {"watched_loss", "watched_parses", "watched_exact"}
    two = ask(step, data, options.model_copy(update={"samples": 2, "temperature": 1.0}), data.tasks, "continue")
    assert [len(texts) for texts in two.texts] == [2] * len(data.tasks)


def test_a_forecast_knows_how_long_answers_and_prompts_are(recipe_data):
    run_settings, options, data = recipe_data
    longest = max(len(data.tokens.prompt(task.instruction)) for task in data.tasks)
    lengths = generated_lengths(run_settings, data, options)
    assert lengths.final == ((6, lengths.watched_tokens), (6, None))
    assert 7 < lengths.watched_tokens <= 8, "new_tokens cuts nearly every answer"
    assert lengths.longest_prompt >= longest
    whole = settings("evaluation.new_tokens=200", "adapter.kind=none")
    one = generated_lengths(whole, data, options.model_copy(update={"samples": 3}))
    rows = [sum(label >= 0 for label in sample.target) for sample in data.training.samples]
    assert max(rows) * 0.7 < one.watched_tokens < max(rows), "the longest of eight"
    assert one.final == ((18, one.watched_tokens),), "without an adapter no base is asked"


@NEEDS_ISOLATION
def test_right_answers_are_judged_right(recipe_data):
    _, options, data = recipe_data
    right = AnswerScores(tuple((f"```python\n{task.reference}```",) for task in data.tasks), (True,) * len(data.tasks))
    wrong = AnswerScores(
        (("",), ("no idea",), ("    return (",), *(("    return None",) for _ in data.tasks[3:])),
        (True, True, False, *(True for _ in data.tasks[3:])), "continue",
    )  # fmt: skip
    judgement = judge(Scores({"adapted": right, "base": wrong}, {"adapted": 0.1, "base": 0.2}), data, options)
    assert judgement.metrics["pass_at_1"] == judgement.metrics["parses"] == 1.0
    assert judgement.metrics["code_bleu"] == pytest.approx(1.0)
    assert judgement.metrics["base.pass_at_1"] == 0.0
    assert judgement.metrics["base.empty"] == judgement.metrics["base.truncated"] == pytest.approx(1 / 6)
    assert judgement.metrics["retrieval.pass_at_1"] < 1
    assert judgement.comparison_data["passed"] == [1.0] * 6
    assert [table.title for table in judgement.tables] == [
        "Answers",
        "pass@1 by kind of task",
        "How programs ended",
        "Data",
    ]
    assert "above base" in judgement.tables[0].note
    assert judgement.tables[2].rows[0][1:] == [0, 6] or judgement.tables[2].columns[-1] == "passed"


@NEEDS_ISOLATION
def test_several_samples_give_pass_at_k(recipe_data):
    _, options, data = recipe_data
    texts = tuple((f"```python\n{task.reference}```", "x = 1") for task in data.tasks)
    judgement = judge(
        Scores({"adapted": AnswerScores(texts, (True,) * len(texts))}, {"adapted": 0.1}), data,
        options.model_copy(update={"samples": 2}),
    )  # fmt: skip
    assert judgement.metrics["pass_at_1"] == 0.5
    assert judgement.metrics["pass_at_2"] == 1.0


def test_rows_of_a_file_are_judged_without_tests(tmp_path, recipe_data):
    run_settings = settings(rows_file(tmp_path, many(200)), "recipe.held_out=0.2")
    options = CodeLoraOptions.model_validate(run_settings.recipe)
    data = open_data(run_settings, options, recipe_data[2].tokens)
    assert not data.has_tests
    assert criteria_of("code-lora", run_settings) == WITHOUT_TESTS != CRITERIA == criteria_of("code-lora", settings())
    answers = AnswerScores(tuple((task.reference,) for task in data.tasks), (True,) * len(data.tasks))
    judgement = judge(Scores({"adapted": answers}, {"adapted": 0.1}), data, options)
    assert "pass_at_1" not in judgement.metrics
    assert judgement.metrics["parses"] == 1.0
    assert "passed" not in judgement.comparison_data


@NEEDS_ISOLATION
def test_tasks_of_a_file_are_judged_by_their_own_tests(tmp_path, recipe_data):
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in (HUMANEVAL, MBPP)))
    run_settings = settings(rows_file(tmp_path, many(200)), f"recipe.tasks={file}", "recipe.held_out=0.2")
    assert criteria_of("code-lora", run_settings) == CRITERIA
    options = CodeLoraOptions.model_validate(run_settings.recipe)
    data = open_data(run_settings, options, recipe_data[2].tokens)
    answers = AnswerScores((("    return x + x\n",), ("def half(n):\n    return n\n",)), (True, True))
    judgement = judge(Scores({"adapted": answers}, {"adapted": 0.1}), data, options)
    assert judgement.comparison_data["passed"] == [1.0, 0.0]
    assert judgement.comparison_data["tasks"] == ["Own/0", "7"]


def test_bad_data_is_answered_clearly(tmp_path, recipe_data):
    tokens = recipe_data[2].tokens

    def opening(*overrides):
        run_settings = settings(*overrides)
        return open_data(run_settings, CodeLoraOptions.model_validate(run_settings.recipe), tokens)

    with pytest.raises(BadData, match="200 hold no Python that parses"):
        opening(rows_file(tmp_path, many(200, "no code, {number}")))
    with pytest.raises(BadData, match=r"longer than batch.sequence_length=24"):
        opening(rows_file(tmp_path, many(200, "x = " + "1 + " * 40 + "{number}")), "batch.sequence_length=24")
    with pytest.raises(BadData, match="at least one row"):
        opening(rows_file(tmp_path, []))
    with pytest.raises(BadData, match="jsonl"):
        opening(rows_file(tmp_path, many(3), "rows.parquet"))
    with pytest.raises(InvalidSettings, match="new_tokens=0"):
        code_lora.load_experiment(settings("evaluation.new_tokens=0"))
    with pytest.raises(InvalidSettings, match="recipe.docments: no such setting. Nearest: documents"):
        code_lora.load_experiment(settings("recipe.docments=3"))


def test_rows_longer_than_the_cutoff_are_left_out_and_counted(tmp_path, recipe_data):
    rows = many(150) + [{"instruction": f"Long {n}.", "output": "x = " + "1 + " * 300 + str(n)} for n in range(50)]
    run_settings = settings(rows_file(tmp_path, rows), "recipe.held_out=0.2")
    data = open_data(run_settings, CodeLoraOptions.model_validate(run_settings.recipe), recipe_data[2].tokens)
    assert 30 < data.too_long <= 50
    assert max(data.training.lengths) < 256
    assert all(not isinstance(row, Instruction) or len(row.output) < 600 for row in data.train)


@pytest.mark.parametrize(("profile", "gpu"), [("a100.yaml", "a100-40gb"), ("t4.yaml", "t4")])
@pytest.mark.slow
def test_profiles_are_forecast_without_weights_rows_or_network(profile, gpu, monkeypatch):
    monkeypatch.setattr(code_lora, "hub_is_reachable", lambda: False)
    profile_forecast = forecast(FOLDER / profile, gpu)
    assert profile_forecast.fits
    assert profile_forecast.parameters.total - profile_forecast.parameters.trainable == 2_614_341_888
    assert profile_forecast.parameters.trainable == 6_389_760
    assert profile_forecast.run.total_steps == 3 * 1047
    assert profile_forecast.run.phases.evaluation_seconds > 0
    assert any("120 tokens" in warning for warning in profile_forecast.warnings)


def test_profiles_change_what_the_table_says():
    first, second = (load_settings(FOLDER / f"{name}.yaml") for name in ("t4", "a100"))
    assert (first.precision, second.precision) == ("fp16-mixed", "bf16-mixed")
    assert first.global_batch_size == second.global_batch_size == 16
    assert first.optimizer == second.optimizer
