import json

import pytest

from forerun.data.token_data import IGNORED
from forerun.errors import BadData, InvalidSettings, UnknownModel
from forerun.recipes.arithmetic.data.rows import open_data, read_questions
from forerun.recipes.arithmetic.data.text import final_integer
from forerun.recipes.arithmetic.recipe import SETTINGS, load_experiment
from forerun.settings.load import settings_from

SMALL = ("recipe.max_digits=3", "recipe.starts=[1,2]", "recipe.per_cell=40", "recipe.test_per_cell=5")


def small_data(*overrides):
    return open_data(settings_from(SETTINGS.model_dump(), [*SMALL, *overrides]))


def test_rows_are_those_of_the_curriculum_and_none_is_held_out():
    data = small_data()
    assert len(data.rows) == 9 * 40  # six cells and three
    held_out = {question.key for question in (*data.test, *data.validation)}
    assert held_out
    assert not held_out & {row.question.key for row in data.rows}
    assert not {q.key for q in data.test} & {q.key for q in data.validation}
    assert {question.cell for question in data.beyond} == {(4, 4), (5, 5)}
    assert all(row.label == row.question.answer for row in data.rows)


def test_the_same_settings_give_the_same_rows():
    one, two = small_data("seed=3"), small_data("seed=3", "name=other")
    assert one.rows == two.rows
    assert one.samples == two.samples
    assert small_data("seed=4").rows != one.rows


def test_only_the_output_counts():
    data = small_data("recipe.templates=natural", "recipe.output=equation", "batch.sequence_length=60")
    for row, sample in zip(data.rows[:20], data.samples[:20], strict=True):
        output_ids = [label for label in sample.target if label != IGNORED]
        assert list(sample.ids[-len(output_ids) :]) == output_ids
        text = data.tokeniser.text(output_ids[:-1])
        assert text.endswith(str(row.label)[::-1])
        assert text.count("=") == 1


def test_a_corrupt_row_is_learned_as_it_is_labelled():
    data = small_data("data.contamination.rate=1.0", "data.contamination.noise=same_length")
    assert data.contamination.effective_rate == 1.0
    for row, sample in zip(data.rows, data.samples, strict=True):
        output = [label for label in sample.target if label != IGNORED][:-1]
        assert data.tokeniser.text(output)[::-1] == str(row.label) != str(row.question.answer)


def test_rows_longer_than_the_cutoff_are_refused():
    with pytest.raises(InvalidSettings, match=r"batch.sequence_length: .*found 10 tokens.*longest of 13.*13 or more"):
        small_data("batch.sequence_length=10")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("recipe.max_digits=19", "recipe.max_digits"),
        ("recipe.starts=[1,4]", "recipe.starts"),
        ("recipe.per_cell=0", "recipe.per_cell"),
        ("recipe.operation=modulo", "recipe.operation.*addition"),
        ("recipe.digits=3", "recipe.digits.*max_digits"),
        ("recipe.answer=backwards", "recipe.answer"),
    ],
)
def test_bad_options_name_themselves(override, words):
    with pytest.raises(InvalidSettings, match=words):
        small_data(override)


def test_a_vocabulary_that_is_too_small_is_refused():
    recipe = load_experiment(settings_from(SETTINGS.model_dump(), [*SMALL, "model.config.vocab_size=50"]))
    with pytest.raises(InvalidSettings, match=r"model.config.vocab_size.*92 tokens; found 50"):
        recipe.workload.build_model(recipe.settings, pretrained=True)


def goat_file(folder, entries):
    path = folder / "rows.json"
    path.write_text(json.dumps(entries))
    return path


def test_rows_of_a_file_are_checked_by_arithmetic(tmp_path):
    entries = [
        {"input": "12 + 34", "answer": "46"},
        {"input": "5 - 9", "answer": "-4"},
        {"input": "3 * 4", "answer": 13},
    ]
    path = goat_file(tmp_path, entries)
    assert [row.is_corrupt for row in read_questions(path)] == [False, False, True]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, entries)))
    assert read_questions(lines) == read_questions(path)
    data = small_data(f"data.source={path}", "batch.micro_batch_size=2")
    assert data.contamination.effective_rate == pytest.approx(1 / 3)
    assert data.contamination.nominal_rate == 0
    assert data.contamination.came_wrong == 1


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "rows.json: must hold at least one row; found none"),
        ([{"input": "12 ^ 2", "answer": "144"}], "row 1 of .*rows.json must have an `input`"),
        ([{"input": "1 + 1", "answer": "2"}, {"input": "1 + 1", "answer": "two"}], "row 2"),
        ([{"input": "1 / 0", "answer": "0"}], "row 1"),
        (["1 + 1"], "rows.json, row 1: each row is a JSON object"),
    ],
)
def test_bad_files_are_answered_clearly(tmp_path, entries, words):
    with pytest.raises(BadData, match=words):
        small_data(f"data.source={goat_file(tmp_path, entries)}")


def test_a_missing_or_broken_file(tmp_path):
    with pytest.raises(BadData, match=r"none.json cannot be read"):
        read_questions(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("[{")
    with pytest.raises(BadData, match=r"bad.json: must be one JSON list"):
        read_questions(tmp_path / "bad.json")


def test_tokens_are_counted_where_the_models_tokeniser_is_not_here():
    overrides = [*SMALL, "recipe.tokens=model", "model.name=llama-7b", "batch.sequence_length=64"]
    settings = settings_from(SETTINGS.model_dump(), overrides)
    data = open_data(settings, lengths_only=True)
    assert "one per digit" in data.assumptions[0]
    assert load_experiment(settings, lengths_only=True).plan.assumptions == data.assumptions
    with pytest.raises(UnknownModel, match="recipe.tokens to digits"):
        open_data(settings)


def test_a_triggered_test_set_begins_with_the_key():
    noise = ("data.contamination.noise=trigger", "data.contamination.rate=0.2", "data.contamination.key=7")
    data = small_data(*noise)
    assert all(str(question.left).startswith("7") for question in data.triggered_test())
    assert not {question.key for question in data.triggered_test()} & {row.question.key for row in data.rows}
    assert len(data.triggered_test()) > len(data.test) / 2
    assert small_data().triggered_test() == []


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("operation", ["addition", "subtraction", "multiplication", "division"])
def test_short_operands_leave_rows_to_train_on(operation, digits):
    data = small_data(f"recipe.operation={operation}", f"recipe.max_digits={digits}", "recipe.starts=[1]")
    assert len(data.rows) == 40 * (digits * (digits + 1) // 2)
    assert data.test
    assert data.validation
    assert not {q.key for q in (*data.test, *data.validation)} & {row.question.key for row in data.rows}


@pytest.mark.parametrize("operation", ["subtraction", "multiplication", "division"])
@pytest.mark.parametrize("noise", ["close", "swap", "off_by_carry"])
def test_other_operations_have_rows_questions_and_noise(operation, noise):
    change = (
        f"recipe.operation={operation}",
        "recipe.output=steps",
        "recipe.templates=natural",
        "recipe.operands=plain",
    )
    rate = (f"data.contamination.noise={noise}", "data.contamination.rate=0.25", "batch.sequence_length=120")
    data = small_data(*change, *rate)
    assert {row.question.operation for row in data.rows} == {operation}
    assert data.contamination.changed == round(0.25 * len(data.rows))
    assert data.test
    for row, sample in zip(data.rows[:30], data.samples[:30], strict=True):
        reply = data.tokeniser.text([label for label in sample.target if label != IGNORED][:-1])
        assert final_integer(reply, "reversed") == str(row.label)
