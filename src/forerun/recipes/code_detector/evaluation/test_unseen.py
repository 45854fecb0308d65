import pytest

from forerun.ledger.store import open_ledger
from forerun.recipes.code_detector.data.test_training_data import settings
from forerun.recipes.code_detector.evaluation.unseen import FIGURES, unseen_table
from forerun.runs import pages
from forerun.verify.test_compare import measurement


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(f"sqlite:///{tmp_path}/l.sqlite") as ledger:
        yield ledger


def enter(ledger, *, auc=None, **changes):
    run_settings = settings(**changes)
    run_id = ledger.start_run(
        name="t", workload="code-detector", settings=run_settings.model_dump(mode="json"),
        settings_hash=run_settings.hash, gpu="cpu", folder="nowhere", versions={},
    )  # fmt: skip
    if auc is not None:
        run_measurement = measurement().model_copy(update={"metrics": dict.fromkeys(FIGURES, auc)})
        ledger.record_measurement(run_id, run_measurement)
    return run_id


def test_runs_with_the_same_settings_and_a_part_held_out_are_found(ledger):
    own = enter(ledger, auc=0.98)
    enter(ledger, auc=0.7, recipe={"hold_out": "source:s"})
    enter(ledger, auc=0.8, recipe={"hold_out": "source:s"}, data={"examples": 70})
    enter(ledger, auc=0.6, recipe={"hold_out": "family:f"})
    enter(ledger, auc=0.5, recipe={"hold_out": "family:g"}, seed=7)
    enter(ledger, recipe={"hold_out": "family:h"})
    table = unseen_table(ledger, own)
    assert {row[0] for row in table.rows} == {"family:f", "source:s"}
    assert dict((row[0], row[1]) for row in table.rows)["family:f"] == 0.6
    assert "nothing is known" not in table.note
    assert pages.related_tables(ledger, ledger.run(own)) == [table]


def test_where_nothing_was_held_out_nothing_is_known(ledger):
    table = unseen_table(ledger, enter(ledger))
    assert table.rows == []
    assert "nothing is known here. forerun sweep code-detector" in table.note
