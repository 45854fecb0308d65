"""A card says what a model is of, how good it is and what it cost, and quotes none of the data."""

import yaml

from forerun.report.model_card import model_card
from forerun.report.tables import ResultTable
from forerun.report.test_pages import TABLE, content
from forerun.settings.load import settings_from

SETTINGS = {
    "name": "reviews", "workload": "sequence-classification", "model": {"name": "/home/me/base"},
    "data": {"source": "/home/me/reviews.csv", "format": "labelled", "fields": {"text": "body", "label": "stars"},
             "repair": ["empty-texts"]},
    "optimizer": {"learning_rate": 3e-4},
}  # fmt: skip
SCORES = ResultTable(
    title="Test, beside its baselines", note="9 rows.", columns=["", "macro_f1"], rows=[["model", 0.75]]
)
ROWS = ResultTable(
    title="Rows", columns=["", ""], rows=[["training", "7"], ["left", "2 (/home/me/reviews.csv, row 3)"]]
)
MISTAKES = ResultTable(title="Mistakes", columns=["text"], rows=[["a secret of somebody"]])


def card(**changes):
    settings = settings_from(SETTINGS).model_dump(mode="json")
    return model_card(content(settings=settings, tables=[SCORES, ROWS, MISTAKES, TABLE], **changes), "model")


def test_it_has_data_settings_scores_forecast_and_cost():
    text = card().replace("\\_", "_")
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front)["pipeline_tag"] == "text-classification"
    for words in (
        "# reviews", "Source: reviews.csv. Rows of labelled: text from body, label from stars.", "empty-texts",
        "| model | 0.750 |", "9 rows.", "| training | 7 |", "| beats chance | 0.900 |", "$1.50", "Measured: 11.7 min",
        "| optimizer.learning_rate | 0.0003 |", "| step: seconds | 500 ms | 600 ms |",
    ):  # fmt: skip
        assert words in body, (words, body)


def test_how_outputs_are_read_stands_before_the_data():
    settings = settings_from(SETTINGS).model_dump(mode="json")
    text = model_card(content(settings=settings, tables=[]), "model", "The number is 3 + 2 × output.")
    assert text.index("# ") < text.index("The number is 3 + 2 × output.") < text.index("## Data")


def test_no_text_of_the_data_and_no_path_is_in_it():
    assert not {"secret", "/home"} & set(card().replace("/home", " /home ").split())


def test_a_run_without_a_verdict_has_a_card():
    assert "Measured" not in card(measurement=None, verdict=None, steps=[])


def test_the_card_of_an_adapter_has_lines_that_open_it():
    settings = settings_from({**SETTINGS, "adapter": {"kind": "lora"}, "quantization": "nf4"}).model_dump(mode="json")
    text = model_card(content(settings=settings, tables=[]), "adapter")
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert 'AutoPeftModelForSequenceClassification.from_pretrained(".", id2label=dict(enumerate(names)), ' in code
    assert 'bnb_4bit_quant_type="nf4"' in code
    assert "## Use" not in card()
