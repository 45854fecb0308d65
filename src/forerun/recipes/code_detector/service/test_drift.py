import json

import numpy as np
import pytest

from forerun.errors import InvalidSettings
from forerun.recipes.code_detector.data.corpus import from_path
from forerun.recipes.code_detector.evaluation.baselines import FORMATTING_COUNTS, formatting_counts
from forerun.recipes.code_detector.evaluation.card import distribution
from forerun.recipes.code_detector.service.drift import (
    drift_of,
    drift_report,
    releases,
    stability_index,
    write_edge_cases,
)
from forerun.recipes.code_detector.service.monitoring import drift_tables
from forerun.recipes.code_detector.service.test_scoring import card
from forerun.recipes.code_detector.service.test_store import prediction

FLAG = "worth-a-conversation"


def like_reference(number=400):
    """Half Java, half Python; a quarter short, a half middling; half of the probabilities low."""
    return [
        prediction(
            n,
            language=("java", "python")[n % 2],
            tokens=(20, 70, 70, 500)[n // 2 % 4],
            probability=(0.1, 0.9)[n // 8 % 2],
        )
        for n in range(number)
    ]


def test_the_index_is_zero_for_the_same_shares_and_known_for_others():
    assert stability_index(np.asarray([0.5, 0.5]), np.asarray([100, 100])) == 0
    expected = (0.9 - 0.5) * np.log(0.9 / 0.5) + (0.1 - 0.5) * np.log(0.1 / 0.5)
    assert stability_index(np.asarray([0.5, 0.5]), np.asarray([90_000, 10_000])) == pytest.approx(expected, rel=1e-3)


def test_what_is_alike_does_not_drift_and_what_is_not_does():
    calm = drift_report(like_reference(), card())
    assert {d.quantity: d.drifted for d in calm.drift} == {"tokens": False, "probability": False, "language": False}
    shifted = [p.model_copy(update={"tokens": 20, "language": "cpp"}) for p in like_reference()]
    drifted_by_quantity = {d.quantity: d.drifted for d in drift_report(shifted, card()).drift}
    assert drifted_by_quantity == {"tokens": True, "probability": False, "language": True}


def test_few_files_are_not_called_drift_by_chance():
    """Three short files are no surprise where a quarter is short; the bound knows how few they are."""
    few, many = drift_of("x", [0.25, 0.75], np.asarray([2, 1])), drift_of("x", [0.25, 0.75], np.asarray([200, 100]))
    assert few.chance > many.chance
    assert (few.drifted, many.drifted) == (False, True)


def test_feedback_gives_the_share_of_right_flags():
    flags = [
        prediction(n, verdict=FLAG, outcome="confirmed" if n < 8 else "refuted", probability=0.9) for n in range(10)
    ]
    report = drift_report([*flags, prediction(11, probability=0.31)], card())
    assert (report.precision, report.flags_with_feedback, report.feedback) == (0.8, 10, 10)
    assert report.precision_low == pytest.approx(0.4439, abs=1e-4)  # Clopper-Pearson of 8 in 10
    assert report.near_threshold == 1
    assert report.verdicts == {"no-finding": 1, FLAG: 10}
    assert [table.title for table in drift_tables(report)] == [
        "What was answered", "Drift against the validation files", "Error by release",
    ]  # fmt: skip


def test_nothing_answered_is_no_drift():
    report = drift_report([], card())
    assert (report.predictions, report.drift, report.precision) == (0, [], None)
    assert drift_tables(report)


def test_edge_cases_can_be_trained_on(tmp_path):
    cases = [
        prediction(1, "a = 1", verdict=FLAG, outcome="refuted", probability=0.95),
        prediction(2, "b = 1", verdict="no-finding", outcome="confirmed", probability=0.05),
        prediction(3, "c = 1", verdict="no-finding", outcome="refuted", probability=0.25),
        prediction(4, "d = 1", verdict=FLAG, outcome="confirmed", probability=0.99),
        prediction(5, "e = 1", verdict=FLAG, probability=0.31),
        prediction(6, "a = 1", verdict=FLAG, outcome="refuted", probability=0.95),
    ]
    to = tmp_path / "cases.jsonl"
    assert write_edge_cases(cases, card(), to) == 3
    rows = {sample.code: sample for sample in from_path(to).samples}
    assert {code: row.label for code, row in rows.items()} == {"a = 1": "human", "b = 1": "ai", "c = 1": "human"}
    assert len({json.loads(line)["group"] for line in to.read_text().splitlines()}) == 3
    with pytest.raises(InvalidSettings, match="exists"):
        write_edge_cases(cases, card(), to)
    with pytest.raises(InvalidSettings, match="--keep-code"):
        write_edge_cases([case.model_copy(update={"code": None}) for case in cases], card(), tmp_path / "other.jsonl")


def test_formatting_drifts_where_tabs_come_in():
    rows = [formatting_counts(f"def f{n}(x):\n    return x + {n}\n" * (1 + n % 5)) for n in range(200)]
    inner = np.linspace(0, 1, 6)[1:-1]
    columns = zip(FORMATTING_COUNTS, np.asarray(rows).T, strict=True)
    features = {name: distribution(values, inner) for name, values in columns}
    reference = card().reference.model_copy(update={"features": features})

    def drifted(rows):
        predictions = [prediction(n, features=row) for n, row in enumerate(rows)]
        report = drift_report(predictions, card(reference=reference))
        return {d.quantity for d in report.drift if d.drifted and d.quantity in FORMATTING_COUNTS}

    assert drifted(rows[::2]) == set()
    tabs = [formatting_counts(f"def f{n}(x):\n\treturn x + {n}\n" * (1 + n % 5)) for n in range(60)]
    assert "tabs per character" in drifted(tabs)
    assert "lines" not in drifted(tabs)
    assert drift_report([prediction(1, features=None)], card(reference=reference)).drift[-1].quantity == "language"


def test_errors_are_counted_by_release():
    predictions = [
        prediction(1, model="old", verdict=FLAG, outcome="refuted"),
        prediction(2, model="old", verdict="no-finding", outcome="confirmed"),
        prediction(3, model="old", verdict="no-finding", outcome="refuted"),
        prediction(4, model="old", verdict="not-enough-code", outcome="confirmed"),
        prediction(5, model="new", verdict=FLAG, outcome="confirmed"),
        prediction(6, model="new"),
    ]
    old, new = releases(predictions)
    assert (old.model, old.predictions, old.checked, old.wrong_flags, old.missed) == ("old", 4, 3, 1, 1)
    assert old.error == pytest.approx(2 / 3)
    assert (new.checked, new.error, new.error_low) == (1, 0, 0)
    assert releases(predictions[5:])[0].error is None
