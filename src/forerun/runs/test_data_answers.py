"""Every answer that `init` offers for a dozen files is set as it is written, and the run is opened with it."""

import csv
import json
import random

import pytest
import yaml

from forerun.api import forecast_settings
from forerun.errors import ForerunError, InvalidSettings
from forerun.hardware.detect import detect_cpu
from forerun.own.chat_lengths import chat_lengths
from forerun.own.experiment import load_experiment
from forerun.runs.data_answers import read_answer, with_answer
from forerun.runs.data_proposal import propose, yaml_text
from forerun.runs.data_questions import DataQuestion
from forerun.settings.load import settings_from

CPU = detect_cpu().device
WORDS = [f"word{n}" for n in range(300)]
ROWS = 160
TIMED = {}
"""Operators that were timed, for all forecasts."""


def text(n, words=14):
    return " ".join(random.Random(n).choices(WORDS, k=words))


def chat(n):
    return [{"role": "user", "content": text(n)}, {"role": "assistant", "content": text(-n - 1)}]


SETS = [["a"], ["a", "b"], ["b", "c"], ["c"]]
FILES = {
    "several labels": lambda n: {"was": text(n), "team": "abc"[n % 3], "art": f"k{n % 4}", "Nr": n % 50},
    "a named label": lambda n: {"Kunde, Text": text(n), "Urteil": "abc"[n % 3], "Produkt: Art": f"p{n % 9}"},
    "a label with holes": lambda n: {"was": text(n), "team": "abc"[n % 3] if n % 7 else "", "art": f"k{n % 4}"},
    "lists or a score": lambda n: {"Title": text(n), "Tags": SETS[n % 4], "Score": n - 9},
    "a scale": lambda n: {"text": text(n), "stars": 1 + n % 5},
    "dates": lambda n: {"text": text(n), "label": f"{1 + n % 28:02}.{1 + n % 12:02}.2024"},
    "numbers or classes": lambda n: {"text": text(n), "label": f"{n % 4},{n % 4 + 1 + n % 3}"},
    "question and answer": lambda n: {"question": text(n), "answer": text(-n - 1, 60)},
    "two texts": lambda n: {"clicked_doc": text(n, 50), "user_query": f"what is in {n} of {text(n, 4)}"},
    "verdicts": lambda n: {"prompt": text(n), "completion": text(-n - 1, 60), "label": n % 2 == 0},
    "chats with verdicts": lambda n: {"messages": chat(n), "accepted": n % 3 > 0},
    "answers with scores": lambda n: {"prompt": text(n), "response": text(-n - 1), "helpfulness": n % 5, "seed": n},
    "two languages": lambda n: {"translation": {"en": text(n), "de": text(-n - 1)}},
    "a title": lambda n: {"title": f"some news of {n}", "review": text(n), "label": "ab"[n % 2]},
    "parts": lambda n: {"text": text(n), "label": "ab"[n % 2], "set": ("train", "train", "dev", "test")[n % 4]},
    "parts and labels": lambda n: {"was": text(n), "a": n % 2, "b": n % 4, "set": ["train", "dev", "test"][n % 3]},
    "code": lambda n: {"code": f"def f{n}(x):\n    return x + {n}\n", "docstring": f"Add {n} to x. {text(n, 6)}"},
}
TABLES = {
    "no header.csv": lambda n: [text(n), "ab"[n % 2], str(n % 40)],
    "no header.tsv": lambda n: [f"{text(n)}.", f"{text(-n - 1)} !"],
    "tabs.txt": lambda n: ["ab"[n % 2], text(n)],
}
LEAST = {"several labels": 2, "verdicts": 2, "question and answer": 1, "no header.csv": 1, "tabs.txt": 2, "a scale": 2}
"""Answers that are settings, at least; of the others any number."""


def no_forecast(settings, device):
    """Stands in for a forecast, which takes seconds and has tests of its own."""
    raise InvalidSettings(f"not asked for: {settings.workload} on {device.name}.")


def proposal_of(tmp_path, name):
    path = tmp_path / (name if name in TABLES else "rows.jsonl")
    with path.open("w", newline="") as file:
        if name in TABLES:
            between = "," if name.endswith(".csv") else "\t"
            csv.writer(file, delimiter=between, lineterminator="\n").writerows(map(TABLES[name], range(ROWS)))
        else:
            file.writelines(json.dumps(FILES[name](n)) + "\n" for n in range(ROWS))
    return propose(str(path), CPU, no_forecast, count_chats=chat_lengths)


def answers_of(proposal):
    """(answer, settings with it), without advice that is no setting."""
    content = yaml.safe_load(yaml_text(proposal, "x"))
    pairs = [(other, with_answer(content, q, other)) for q in proposal.questions for other in q.others]
    return [(other, changed) for other, changed in pairs if changed is not None]


@pytest.mark.parametrize("name", [*FILES, *TABLES])
def test_every_answer_is_read_as_it_is_written(tmp_path, name):
    proposal = proposal_of(tmp_path, name)
    answers = answers_of(proposal)
    assert len(answers) >= LEAST.get(name, 0)
    for answer, changed in [("the default", proposal.content), *answers]:
        experiment = load_experiment(settings_from(changed), lengths_only=True)
        assert experiment.settings.workload == changed["workload"], answer
        assert experiment.plan.micro_batches > 0, answer


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, *TABLES])
def test_every_answer_is_forecast_as_it_is_written(tmp_path, name):
    """Three minutes for some 40 forecasts on one core."""
    for answer, changed in answers_of(proposal_of(tmp_path, name)):
        try:
            forecast = forecast_settings(settings_from(changed), CPU, timed_calls=TIMED)
        except ForerunError as error:
            raise AssertionError(f"{answer}: {error}") from error
        assert forecast.run.seconds.expected > 0


@pytest.mark.medium
def test_another_workload_is_forecast_with_the_model_that_goes_with_it(tmp_path):
    """It was written without workload, model and padding: a classification of packed rows by a decoder, refused."""
    proposal = proposal_of(tmp_path, "several labels")
    assert proposal.content["workload"] == "causal-lm"
    answer, changed = answers_of(proposal)[0]
    assert answer.startswith("workload: sequence-classification, format: labelled, fields: {text: was, label: team}")
    forecast = forecast_settings(settings_from(changed), CPU)
    assert forecast.fits


QUESTION = DataQuestion("data.format", "what?", "this", ())


def test_settings_are_read_out_of_an_answer():
    answer = "good ones: workload: w, format: f, fields: {text: 'a, b: c', label: it's}, labels: one (a, b: c.)"
    read = read_answer(answer)
    assert read.before == "good ones: "
    assert read.settings == {
        "workload": "w", "format": "f", "fields": {"text": "a, b: c", "label": "it's"}, "labels": "one",
    }  # fmt: skip
    assert read.after == "(a, b: c.)"
    assert read_answer("header: first, it names them").settings == {"header": "first"}
    assert read_answer("write plain numbers, and ask forerun init again").settings == {}


def test_an_answer_changes_sections_by_single_settings_and_others_whole():
    content = {"workload": "a", "model": {"name": "m", "config": {"n": 1}}, "adapter": {"rank": 4},
               "data": {"fields": {"text": "t"}, "source": "s"}, "batch": {"padding": "packed", "size": 2}}  # fmt: skip
    changed = with_answer(content, QUESTION, "model: {name: o}, adapter: {}, batch: {padding: bucketed}, split: none")
    assert changed == {
        "workload": "a", "model": {"name": "o"}, "adapter": {}, "batch": {"padding": "bucketed", "size": 2},
        "data": {"fields": {"text": "t", "split": "none"}, "source": "s"},
    }  # fmt: skip
    assert with_answer(content, QUESTION, "without it they are an error") is None
    labels = with_answer(content, DataQuestion("data.labels", "", "", ()), "number")
    assert labels is not None
    assert labels["data"]["labels"] == "number"
