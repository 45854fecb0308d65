"""Tables of what a served detector has answered."""

from forerun.recipes.code_detector.service.drift import DriftReport
from forerun.report.tables import Cell, ResultTable


def drift_tables(report: DriftReport) -> list[ResultTable]:
    """Verdicts and feedback, and drift beside what chance would make of it."""
    counts: list[list[Cell]] = [["answers", report.predictions], *([name, n] for name, n in report.verdicts.items())]
    counts += [
        ["near the threshold", report.near_threshold],
        ["with feedback", report.feedback],
        ["flags with feedback", report.flags_with_feedback],
        ["flags confirmed", report.flags_confirmed],
        ["share confirmed", report.precision],
        ["  95 % from", report.precision_low],
        ["  to", report.precision_high],
    ]
    drifts: list[list[Cell]] = [
        [each.quantity, each.index, each.chance, "yes" if each.drifted else "no"] for each in report.drift
    ]
    releases: list[list[Cell]] = [
        [r.model, r.predictions, r.checked, r.wrong_flags, r.missed, r.error, r.error_low, r.error_high]
        for r in report.releases
    ]
    return [
        ResultTable(
            title="What was answered",
            note="Feedback comes from those who looked, not from all: the share confirmed is that of the cases told.",
            columns=["what", "value"],
            rows=counts,
        ),
        ResultTable(
            title="Drift against the validation files",
            note="Population stability index; by chance it stays under the second column in 95 % of cases, the counts "
            "of the formatting together. Where it drifted, the card's error rates no longer hold.",
            columns=["quantity", "index", "chance", "drifted"],
            rows=drifts,
        ),
        ResultTable(
            title="Error by release",
            note="Of the verdicts that somebody checked, with the exact 95 % interval.",
            columns=["model", "answers", "checked", "wrong flags", "missed", "error", "low", "high"],
            rows=releases,
        ),
    ]
