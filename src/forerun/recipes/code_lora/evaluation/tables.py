"""Tables of a run of `code-lora`: answers, kinds of tasks, how programs ended, and which rows were removed."""

import torch

from forerun.evaluate.proportions import paired_difference, wilson
from forerun.recipes.code_lora.data.rows import CodeLoraData, CodeLoraOptions
from forerun.recipes.code_lora.evaluation.answers import FORMS
from forerun.recipes.code_lora.evaluation.scores import MODEL, Report, Scores, model_free_answers, score_answers
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement

COLUMNS = ["answers by", "pass@1", "low", "high", *FORMS, "BLEU", "chrF", "CodeBLEU", "loss"]


def judge(scores: Scores, data: CodeLoraData, options: CodeLoraOptions) -> Judgement:
    """Every figure of the adapted model beside its base and what needs no model."""
    answers = scores.answers | model_free_answers(data)
    reports = {
        name: score_answers(answer, data, scores.losses.get(name), allow_unsafe=options.unsafe)
        for name, answer in answers.items()
    }
    metrics = {
        key: value for name, report in reports.items()
        for key, value in report.metrics("" if name == MODEL else f"{name}.", options.samples).items()
    }  # fmt: skip
    adapted = reports[MODEL]
    comparison_data = {
        "tasks": [task.task_id for task in data.tasks],
        "parses": [form == "parses" for form in adapted.forms],
    }
    if adapted.functional is not None:
        comparison_data["passed"] = adapted.functional.passed()
    tables = [answers_table(reports), data_table(data)]
    if adapted.functional is not None:
        tables[1:1] = [kinds_table(reports, data), endings_table(reports)]
    return Judgement(metrics, tables, comparison_data=comparison_data)


def answers_table(reports: dict[str, Report]) -> ResultTable:
    """All figures, one row an answerer."""
    rows: list[list[Cell]] = []
    for name, report in reports.items():
        solved: list[Cell] = [None, None, None]
        if report.functional is not None:
            interval = wilson(sum(report.functional.passed()), len(report.forms))
            solved = [interval.value, interval.low, interval.high]
        forms: list[Cell] = [report.share(form) for form in FORMS]
        rows.append([name, *solved, *forms, report.text.bleu, report.text.chrf, 100 * report.code.score, report.loss])
    adapted = reports[MODEL]
    note = (
        f"{len(adapted.forms)} tasks; low and high are Wilson's 95 % interval. {standing(reports)} BLEU: "
        f"{adapted.text.bleu_signature}. chrF: {adapted.text.chrf_signature}. CodeBLEU as defined in "
        f"evaluation/code_bleu.py, not the authors' script. {torch.get_num_threads()} threads: another number adds in "
        f"another order, and a model this small then answers otherwise."
    )
    return ResultTable(title="Answers", note=note, columns=COLUMNS, rows=rows)


def standing(reports: dict[str, Report]) -> str:
    """A sentence that compares the adapted model with the others, by paired bootstrap over tasks."""
    statements = []
    mine = _scores(reports[MODEL])
    what = "pass@1" if reports[MODEL].functional is not None else "share that parses"
    for name, other in reports.items():
        if name != MODEL:
            gap = paired_difference(mine, _scores(other))
            word = "above" if gap.low > 0 else "below" if gap.high < 0 else "not told apart from"
            statements.append(f"{word} {name} ({gap.value:+.3f}, {gap.low:+.3f} to {gap.high:+.3f})")
    return f"Adapted, {what}: {', '.join(statements)}." if statements else ""


def _scores(report: Report) -> list[float]:
    return report.functional.passed() if report.functional is not None else [float(f == "parses") for f in report.forms]


def kinds_table(reports: dict[str, Report], data: CodeLoraData) -> ResultTable:
    """pass@1 by kind of task."""
    kinds = sorted({task.kind for task in data.tasks})
    rows: list[list[Cell]] = []
    for kind in kinds:
        numbers = [number for number, task in enumerate(data.tasks) if task.kind == kind]
        row: list[Cell] = [kind or "all", len(numbers)]
        for report in reports.values():
            passed = report.functional.passed() if report.functional is not None else []
            row.append(sum(passed[number] for number in numbers) / len(numbers))
        rows.append(row)
    return ResultTable(title="pass@1 by kind of task", columns=["kind", "tasks", *reports], rows=rows)


def endings_table(reports: dict[str, Report]) -> ResultTable:
    """How the programs ended in the sandbox."""
    ended = {name: report.functional.statuses() for name, report in reports.items() if report.functional is not None}
    names = sorted({status for counts in ended.values() for status in counts})
    rows: list[list[Cell]] = [[name, *(counts.get(status, 0) for status in names)] for name, counts in ended.items()]
    walls = {report.functional.isolation for report in reports.values() if report.functional is not None}
    note = "".join(f"Run behind: {isolation}." for isolation in sorted(walls))
    return ResultTable(title="How programs ended", note=note, columns=["answers by", *names], rows=rows)


def data_table(data: CodeLoraData) -> ResultTable:
    """Numbers of rows removed, trained on and held out."""
    cleaned = data.cleaned
    note = (
        f"Split {data.split}. Contaminated rows share 13 words in a row, their whole request or a function's "
        f"name with the tasks. "
        f"{cleaned.unparsable_share:.1%} of the rest held no Python that parses."
    )
    rows: list[list[Cell]] = [
        ["given", cleaned.input_rows], ["without a request", cleaned.without_request],
        ["duplicates", cleaned.duplicates], ["contaminated", cleaned.contaminated],
        ["without code that parses", cleaned.unparsable],
        ["too long for training", data.too_long], ["more than data.examples", data.left_out],
        ["trained on", len(data.train)], ["watched", len(data.watched)], ["held out", len(data.held_out)],
    ]  # fmt: skip
    return ResultTable(title="Data", note=note, columns=["rows", "number"], rows=rows)
