"""Runs of recipes can be used: a trained model of each kind answers a prompt and a file of rows, as it was judged."""

import json

import pytest

from forerun.cli import use_commands
from forerun.errors import BadData, InvalidSettings, NotSupported
from forerun.hardware.detect import detect_cpu
from forerun.runs.recipe import Experiment
from forerun.runs.registry import load_recipe
from forerun.runs.run import start_training
from forerun.runs.trained_recipe import TrainedRecipe, open_trained_recipe
from forerun.serving.predictions import write_predictions
from forerun.settings.load import settings_from

pytestmark = pytest.mark.filterwarnings("ignore::forerun.train.loop.NotLearningWarning")
SMALL = {
    "arithmetic": ("data.examples=640", "recipe.max_digits=2", "recipe.starts=[1,2]", "batch.sequence_length=12"),
    "okadfa": (
        "schedule.max_steps=2", "model.config.width=32", "model.config.layers=2", "model.config.heads=2",
        "model.config.feed_forward=48", "batch.sequence_length=16",
    ),
    "text-classifier": ("data.examples=64", "schedule.epochs=1", "recipe.vocabulary_size=300"),
}  # fmt: skip
ASKED = {"arithmetic": ("input", "12 + 34"), "okadfa": ("text", "The state of"), "text-classifier": ("text", "a film")}


def trained(name, tmp_path) -> tuple[Experiment, TrainedRecipe]:
    """The model of a run of seconds, read back from its folder."""
    recipe = load_recipe(name)
    experiment = recipe.load_experiment(settings_from(recipe.SETTINGS.model_dump(), SMALL[name]))
    device = detect_cpu().device
    for _ in start_training(experiment, device, tmp_path).steps():
        pass
    return experiment, open_trained_recipe("last", experiment, device, tmp_path)


@pytest.mark.medium
@pytest.mark.parametrize("name", SMALL)
def test_a_trained_model_answers_a_prompt_and_rows(name, tmp_path):
    _, model = trained(name, tmp_path)
    column, question = ASKED[name]
    (answer,) = model.answers([question], 5)
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({column: question, "id": n}) + "\n" for n in range(3)))
    to = tmp_path / "answers.jsonl"
    result = write_predictions(lambda: model.answered_rows(str(tmp_path / "new.jsonl"), 5), to)
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert (result.rows, [row["id"] for row in rows]) == (3, [0, 1, 2])
    for row in rows:
        assert {key: row[f"predicted_{key}" if key in (column, "id") else key] for key in answer} == answer
    if name == "text-classifier":
        assert answer["label"] in ("negative", "positive")
        assert 0.5 <= answer["probability"] <= 1
        with pytest.raises(InvalidSettings, match="writes no text"):
            model.text(question, 5)
    else:
        assert model.text(question, 5) == answer["text"]


@pytest.mark.medium
def test_answers_are_those_that_the_run_is_judged_by(tmp_path):
    experiment, model = trained("text-classifier", tmp_path)
    data = experiment.data
    texts = [row.text for row in data.rows["test"][:20]]
    judged = experiment.judge(model.step)["test"][:20]
    names = [data.corpus.label_names[number] for number in judged.argmax(axis=1)]
    assert [answer["label"] for answer in model.answers(texts, 1)] == names


@pytest.mark.medium
def test_what_cannot_be_asked_is_refused_with_what_can(tmp_path):
    experiment, model = trained("arithmetic", tmp_path)
    with pytest.raises(BadData, match="12 \\+ 34"):
        model.answers(["what is love"], 5)
    (tmp_path / "bad.jsonl").write_text('{"question": "1 + 2"}\n')
    with pytest.raises(BadData, match="row 1.*'input'"):
        list(model.answered_rows(str(tmp_path / "bad.jsonl"), 5))
    with pytest.raises(InvalidSettings, match="no checkpoint"):
        open_trained_recipe("r", experiment, detect_cpu().device, tmp_path / "none")


def test_a_detector_is_served_instead(tmp_path):
    import dataclasses

    fields = {field.name: None for field in dataclasses.fields(Experiment)}
    bare = Experiment(**fields | {"settings": load_recipe("code-detector").SETTINGS})  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="forerun serve last"):
        open_trained_recipe("last", bare, detect_cpu().device, tmp_path)


def test_a_temperature_is_refused_for_recipes():
    row = type("Row", (), {"workload": "arithmetic"})()
    with pytest.raises(InvalidSettings, match="--temperature"):
        use_commands._trained_recipe(row, 0.7)
    assert use_commands._trained_recipe(type("Row", (), {"workload": "causal-lm"})(), 0.7) is None
