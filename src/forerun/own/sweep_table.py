"""Scores of the runs of a sweep over own data, side by side, on the test rows."""

from collections.abc import Sequence

from forerun.own.experiment import judged_by, scores_of
from forerun.report.tables import Cell, ResultCurve, ResultTable
from forerun.runs.recipe import SweepRun


def comparison(runs: Sequence[SweepRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
    """A table of each variant's score with its interval and the strongest baseline's."""
    score = judged_by(runs[0].settings)
    is_higher_better = scores_of(runs[0].settings)[score]
    choose = max if is_higher_better else min
    rows: list[list[Cell]] = []
    for run in runs:
        metrics = run.measurement.metrics
        baselines = {
            name.removesuffix(f".{score}"): value for name, value in metrics.items() if name.endswith(f".{score}")
        }
        best = choose(baselines, key=lambda name: baselines[name], default=None)
        ends = [metrics.get(f"{score}.{end}") for end in ("low", "high")]
        interval = None if None in ends else " to ".join(f"{end:.3f}" for end in ends)
        rows.append([
            run.name, metrics.get(score), interval, None if best is None else f"{baselines[best]:.3f}, {best}",
            metrics.get("training_loss"),
        ])  # fmt: skip
    values = [run.measurement.metrics[score] for run in runs if score in run.measurement.metrics]
    note = f"{'Higher' if is_higher_better else 'Lower'} is better, 95 %."
    if len(values) > 1:
        note += (
            " The best of several by the test rows is a little too good, and may be luck where intervals overlap; "
            "forerun tune chooses by the validation rows."
        )
    columns = ["variant", score.replace("_", " "), "interval", "strongest baseline", "training loss"]
    return [ResultTable(title="Scores on the test rows", note=note, columns=columns, rows=rows)], []
