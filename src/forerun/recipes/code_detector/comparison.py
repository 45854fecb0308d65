"""Runs of `code-detector` side by side: as shipped, without formatting, and on what each has not seen."""

from collections.abc import Sequence

from forerun.report.tables import Cell, ResultCurve, ResultTable
from forerun.runs.recipe import SweepRun

RIVALS = ("character-ngrams", "formatting-counts", "length-only")


def comparison(runs: Sequence[SweepRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
    """One row a run: the detector on its test rows, and the baselines trained and judged on the same."""
    rows: list[list[Cell]] = []
    for run in runs:
        metrics = run.measurement.metrics
        own = [metrics.get(name) for name in ("roc_auc", "roc_auc_low", "roc_auc_high", "accuracy")]
        points = [metrics.get(f"{rate}_at_1_percent_fpr") for rate in ("tpr", "fpr")]
        form = "normalised" if run.settings.recipe.get("form") == "normalised" else "raw"
        rivals = [metrics.get(f"{name}.{form}.roc_auc") for name in RIVALS]
        rows.append([run.name, *own, *points, *rivals])
    columns = ["variant", "AUC", "low", "high", "accuracy", "TPR1", "FPR1", *RIVALS]
    note = (
        "Each variant is judged on its own test rows: those held out, where something is. FPR1 is what the threshold "
        "for 1 % on validation gives there; validation never holds what was left out. 95 % intervals over groups."
    )
    return [ResultTable(title="Where nothing was learned", note=note, columns=columns, rows=rows)], []
