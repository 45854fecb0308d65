import json

import numpy as np
import pytest

from forerun.data.code_authorship import from_path
from forerun.errors import InvalidSettings
from forerun.infer.drift import drift_of, drift_report, stability_index, write_edge_cases
from forerun.infer.test_scoring import card
from forerun.infer.test_store import prediction
from forerun.report.monitoring import drift_tables

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
    wanted = (0.9 - 0.5) * np.log(0.9 / 0.5) + (0.1 - 0.5) * np.log(0.1 / 0.5)
    assert stability_index(np.asarray([0.5, 0.5]), np.asarray([90_000, 10_000])) == pytest.approx(wanted, rel=1e-3)


def test_what_is_alike_does_not_drift_and_what_is_not_does():
    calm = drift_report(like_reference(), card())
    assert {d.quantity: d.drifted for d in calm.drift} == {"tokens": False, "probability": False, "language": False}
    shifted = [p.model_copy(update={"tokens": 20, "language": "cpp"}) for p in like_reference()]
    found = {d.quantity: d.drifted for d in drift_report(shifted, card()).drift}
    assert found == {"tokens": True, "probability": False, "language": True}


def test_few_files_are_not_called_drift_by_chance():
    """Three short files are no surprise where a quarter is short; the bound knows how few they are."""
    few, many = drift_of("x", [0.25, 0.75], np.asarray([2, 1])), drift_of("x", [0.25, 0.75], np.asarray([200, 100]))
    assert few.chance > many.chance
    assert (few.drifted, many.drifted) == (False, True)


def test_feedback_gives_the_share_of_right_flags():
    told = [
        prediction(n, verdict=FLAG, outcome="confirmed" if n < 8 else "refuted", probability=0.9) for n in range(10)
    ]
    found = drift_report([*told, prediction(11, probability=0.31)], card())
    assert (found.precision, found.flags_with_feedback, found.feedback) == (0.8, 10, 10)
    assert found.precision_low == pytest.approx(0.4439, abs=1e-4)  # Clopper-Pearson of 8 in 10
    assert found.near_threshold == 1
    assert found.verdicts == {"no-finding": 1, FLAG: 10}
    assert [table.title for table in drift_tables(found)] == ["What was answered", "Drift against the validation files"]


def test_nothing_answered_is_no_drift():
    found = drift_report([], card())
    assert (found.predictions, found.drift, found.precision) == (0, [], None)
    assert drift_tables(found)


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
