"""A detector on sources, languages and generators it has not seen: the ledger's runs that held one out.

Every run's page and JSON have this table, also where it is empty: then nothing is known, which must be said beside any
score. `forerun sweep code-detector` makes the runs.
"""

from typing import Any

from forerun.ledger.store import Ledger
from forerun.report.tables import Cell, ResultTable

COLUMNS = ["held out", "AUC", "low", "high", "accuracy", "TPR1", "FPR1", "character n-grams", "formatting"]
FIGURES = ("roc_auc", "roc_auc_low", "roc_auc_high", "accuracy", "tpr_at_1_percent_fpr", "fpr_at_1_percent_fpr")
RIVALS = ("character-ngrams", "formatting-counts")
MOST_RUNS = 1000


def unseen_table(ledger: Ledger, run_id: str) -> ResultTable:
    """The newest finished run for each part that was held out under the settings of run `run_id`.

    Raises:
        RunNotFound: no such run.
    """
    own_settings = _apart_from_parts(ledger.run(run_id).settings)
    rows: dict[str, list[Cell]] = {}
    for row in ledger.runs(limit=MOST_RUNS):  # newest first
        held_out = row.settings.get("recipe", {}).get("hold_out")
        if not held_out or held_out in rows or _apart_from_parts(row.settings) != own_settings:
            continue
        measured = ledger.measurement(row.id)
        if measured is not None:
            form = row.settings["recipe"].get("form", "raw")
            names = [*FIGURES, *(f"{name}.{form}.roc_auc" for name in RIVALS)]
            rows[held_out] = [held_out, *(measured.metrics.get(name) for name in names)]
    missing = (
        ""
        if rows
        else "None has been run under these settings, so nothing is known here. forerun sweep code-detector. "
    )
    return ResultTable(
        title="On what was not seen in training",
        note=f"{missing}Each row is a run of its own, trained without that source, language or maker of generators and "
        "judged on it; 95 % intervals over groups; baselines trained on the same rows.",
        columns=COLUMNS,
        rows=[rows[name] for name in sorted(rows)],
    )


def _apart_from_parts(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without what is held out and the sizes that follow from it."""
    recipe = {key: value for key, value in settings.get("recipe", {}).items() if key != "hold_out"}
    rest = {key: value for key, value in settings.items() if key not in ("name", "recipe", "data", "evaluation")}
    return {**rest, "recipe": recipe}
