"""Tables and curves of one run of `arithmetic`."""

from collections.abc import Mapping, Sequence

from forerun.recipes.arithmetic.data.contamination import ContaminationReport
from forerun.recipes.arithmetic.data.rows import ArithmeticData
from forerun.recipes.arithmetic.evaluation.answers import Reply, exact_match, group_by, group_by_chain, mean_digit_match
from forerun.recipes.arithmetic.evaluation.findings import Findings
from forerun.recipes.arithmetic.evaluation.suspect_rows import precision_at
from forerun.report.tables import Cell, ResultCurve, ResultTable, Series

LISTED_SUSPECTS = 10
PRECISION_SHARES = (0.01, 0.04, 0.1)
"""Shares of the scored rows at which precision is shown: what a person would read through."""


def all_tables(
    findings: Findings, data: ArithmeticData, trivial: Mapping[str, list[Reply]], metrics: Mapping[str, float]
) -> list[ResultTable]:
    """Every table of a run."""
    tables = [
        answers_table(findings, trivial, metrics),
        grid_table(findings.test),
        slices_table("By longest chain of carries", "chain", group_by_chain(findings.test)),
    ]
    if findings.beyond:
        beyond = group_by(findings.beyond, lambda question: question.cell[1])
        tables.append(slices_table("Operands longer than any in training", "digits", beyond))
    tables.append(contamination_table(data.contamination, metrics))
    return [*tables, precision_table(findings, data), suspects_table(findings, data)]


def answers_table(findings: Findings, trivial: Mapping[str, list[Reply]], metrics: Mapping[str, float]) -> ResultTable:
    """Scores of the model beside answerers that cannot add, and beside the best that the labels allow."""
    rows: list[list[Cell]] = [["model", *_figures(findings.test)]]
    rows += [[name, *_figures(replies)] for name, replies in trivial.items()]
    if "ideal_exact_match" in metrics:
        rows.append(["ideal under this noise", len(findings.test), metrics["ideal_exact_match"], None, None, None])
    note = (
        "Exact match: the reply's last integer as a whole, on pairs that training never had; the interval is exact "
        "(Clopper and Pearson), 95 %. Ideal: a calibrated model that has learned the labels' distribution and decodes "
        "greedily."
    )
    columns = ["answerer", "questions", "exact match", "low", "high", "digit match"]
    return ResultTable(title="Held-out questions", note=note, columns=columns, rows=rows)


def _figures(replies: Sequence[Reply]) -> list[Cell]:
    proportion = exact_match(replies)
    low, high = proportion.interval
    return [proportion.total, proportion.value, low, high, mean_digit_match(replies)]


def grid_table(replies: Sequence[Reply]) -> ResultTable:
    """Exact match by digits of both operands."""
    cells = group_by(replies, lambda question: question.cell)
    lengths = sorted({length for cell in cells for length in cell})  # type: ignore[attr-defined]
    rows: list[list[Cell]] = [
        [f"{shorter} digits", *(_share(cells.get((shorter, longer))) for longer in lengths)] for shorter in lengths
    ]
    columns = ["shorter operand", *(f"longer {length}" for length in lengths)]
    return ResultTable(title="Exact match by operand digits", columns=columns, rows=rows)


def _share(replies: Sequence[Reply] | None) -> float | None:
    return exact_match(replies).value if replies else None


def slices_table(title: str, name: str, slices: Mapping[object, Sequence[Reply]]) -> ResultTable:
    """One row for each slice."""
    rows: list[list[Cell]] = [[str(value), *_figures(replies)] for value, replies in slices.items()]
    columns = [name, "questions", "exact match", "low", "high", "digit match"]
    return ResultTable(title=title, columns=columns, rows=rows)


def contamination_table(report: ContaminationReport, metrics: Mapping[str, float]) -> ResultTable:
    """Changed rows, and how the model answers them."""
    recall = metrics.get("recall_of_corrupt_rows")
    rows: list[list[Cell]] = [
        ["rows", report.rows], ["noise", report.noise if report.nominal_rate else "none"],
        ["nominal rate", report.nominal_rate], ["effective rate", report.effective_rate],
        ["rows with a wrong answer", report.changed], ["of them wrong as they came", report.came_wrong],
        ["changed by same_length, as the noise has no wrong answer", report.substituted],
        ["corrupt rows repeated word for word", recall],
        ["corrupt rows answered rightly all the same", metrics.get("corrupt_rows_answered_rightly")],
        ["clean rows repeated word for word", metrics.get("recall_of_clean_rows")],
        ["rows that the model contradicts, which needs no truth", metrics["contradicted_rows"]],
    ]  # fmt: skip
    if "trigger_success" in metrics:
        rows.append(["held-out questions with the key that get the target", metrics["trigger_success"]])
    return ResultTable(title="Contamination", columns=["", "value"], rows=rows)


def precision_table(findings: Findings, data: ArithmeticData) -> ResultTable:
    """How many of the most suspect rows are corrupt, for each score, beside chance."""
    corrupt = [data.rows[number].is_corrupt for number in findings.scored]
    firsts = {f"first {share:.0%}": max(1, round(share * len(corrupt))) for share in PRECISION_SHARES}
    if any(corrupt):
        firsts["as many as are corrupt"] = sum(corrupt)
    rows: list[list[Cell]] = []
    for name in ("loss", "gradient", "influence"):
        order = findings.scores.ranked(name)
        rows.append([name, *(precision_at(corrupt, order, first) for first in firsts.values())])
    rows.append(["chance", *[sum(corrupt) / len(corrupt)] * len(firsts)])
    note = f"Precision@k over {len(corrupt):,} training rows of which {sum(corrupt):,} are corrupt."
    return ResultTable(title="Corrupt rows among the most suspect", note=note, columns=["by", *firsts], rows=rows)


def suspects_table(findings: Findings, data: ArithmeticData) -> ResultTable:
    """The rows to look at first."""
    rows: list[list[Cell]] = []
    for place in findings.scores.ranked("loss")[:LISTED_SUSPECTS]:
        row = data.rows[findings.scored[place]]
        truth = "corrupt" if row.is_corrupt else "right"
        scores: list[Cell] = [float(findings.scores.loss[place]), float(findings.scores.gradient[place])]
        rows.append([findings.scored[place], f"{row.question.expression} = {row.label}", *scores, truth])
    columns = ["row", "as it stands in the data", "loss", "gradient", "in truth"]
    return ResultTable(title="Most suspect rows", columns=columns, rows=rows)


def early_curve(history: Sequence[tuple[int, Mapping[str, float]]], report: ContaminationReport) -> ResultCurve:
    """Signs along the run."""
    names = list(dict.fromkeys(name for _, signs in history for name in signs))
    series = [
        Series(
            name=name.replace("_", " "),
            x=[float(number) for number, signs in history if name in signs],
            y=[signs[name] for _, signs in history if name in signs],
        )
        for name in names
    ]
    noise = report.noise if report.nominal_rate else "Wrong answers of the file"
    note = f"{noise} at an effective rate of {report.effective_rate:.1%}." if report.changed else "Clean rows."
    return ResultCurve(title="Signs along the run", note=note, across="optimizer step", up="", series=series)
