"""What a run of `code-lora` shows: answers, kinds of tasks, how programs ended, what became of the rows."""

from forerun.evaluate.proportions import paired_difference, wilson
from forerun.recipes.code_lora.data.rows import CodeLoraData, CodeLoraOptions
from forerun.recipes.code_lora.evaluation.answers import FORMS
from forerun.recipes.code_lora.evaluation.scores import MODEL, Report, Scores, report, without_model
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement

COLUMNS = ["answers by", "pass@1", "low", "high", *FORMS, "BLEU", "chrF", "CodeBLEU", "loss"]


def judge(scores: Scores, data: CodeLoraData, options: CodeLoraOptions) -> Judgement:
    """Every figure of the adapted model beside its base and what needs no model."""
    answers = scores.answers | without_model(data)
    reports = {name: report(found, data, scores.losses.get(name)) for name, found in answers.items()}
    metrics = {
        key: value for name, found in reports.items()
        for key, value in found.metrics("" if name == MODEL else f"{name}.", options.samples).items()
    }  # fmt: skip
    adapted = reports[MODEL]
    kept = {"tasks": [task.task_id for task in data.tasks], "parses": [form == "parses" for form in adapted.forms]}
    if adapted.functional is not None:
        kept["passed"] = adapted.functional.passed()
    tables = [answers_table(reports), data_table(data)]
    if adapted.functional is not None:
        tables[1:1] = [kinds_table(reports, data), endings_table(reports)]
    return Judgement(metrics, tables, comparison_data=kept)


def answers_table(reports: dict[str, Report]) -> ResultTable:
    """All figures, one row an answerer."""
    rows: list[list[Cell]] = []
    for name, found in reports.items():
        solved: list[Cell] = [None, None, None]
        if found.functional is not None:
            interval = wilson(sum(found.functional.passed()), len(found.forms))
            solved = [interval.value, interval.low, interval.high]
        forms: list[Cell] = [found.share(form) for form in FORMS]
        rows.append([name, *solved, *forms, found.text.bleu, found.text.chrf, 100 * found.code.score, found.loss])
    adapted = reports[MODEL]
    note = (
        f"{len(adapted.forms)} tasks; low and high are Wilson's 95 % interval. {standing(reports)} BLEU: "
        f"{adapted.text.bleu_signature}. chrF: {adapted.text.chrf_signature}. CodeBLEU as defined in "
        f"evaluation/code_bleu.py, not the authors' script."
    )
    return ResultTable(title="Answers", note=note, columns=COLUMNS, rows=rows)


def standing(reports: dict[str, Report]) -> str:
    """Plain words on the adapted model against the others, by paired bootstrap over tasks."""
    said = []
    mine = _scores(reports[MODEL])
    what = "pass@1" if reports[MODEL].functional is not None else "share that parses"
    for name, other in reports.items():
        if name != MODEL:
            gap = paired_difference(mine, _scores(other))
            word = "above" if gap.low > 0 else "below" if gap.high < 0 else "not told apart from"
            said.append(f"{word} {name} ({gap.value:+.3f}, {gap.low:+.3f} to {gap.high:+.3f})")
    return f"Adapted, {what}: {', '.join(said)}." if said else ""


def _scores(found: Report) -> list[float]:
    return found.functional.passed() if found.functional is not None else [float(f == "parses") for f in found.forms]


def kinds_table(reports: dict[str, Report], data: CodeLoraData) -> ResultTable:
    """pass@1 by kind of task."""
    kinds = sorted({task.kind for task in data.tasks})
    rows: list[list[Cell]] = []
    for kind in kinds:
        chosen = [number for number, task in enumerate(data.tasks) if task.kind == kind]
        row: list[Cell] = [kind or "all", len(chosen)]
        for found in reports.values():
            passed = found.functional.passed() if found.functional is not None else []
            row.append(sum(passed[number] for number in chosen) / len(chosen))
        rows.append(row)
    return ResultTable(title="pass@1 by kind of task", columns=["kind", "tasks", *reports], rows=rows)


def endings_table(reports: dict[str, Report]) -> ResultTable:
    """How the programs ended in the sandbox."""
    ended = {name: found.functional.statuses() for name, found in reports.items() if found.functional is not None}
    names = sorted({status for counts in ended.values() for status in counts})
    rows: list[list[Cell]] = [[name, *(counts.get(status, 0) for status in names)] for name, counts in ended.items()]
    return ResultTable(title="How programs ended", columns=["answers by", *names], rows=rows)


def data_table(data: CodeLoraData) -> ResultTable:
    """What became of the rows."""
    cleaned = data.cleaned
    note = (
        f"Split {data.split}. Contaminated rows share 13 words in a row, their whole request or a function's "
        f"name with the tasks. "
        f"{cleaned.unparsable_share:.1%} of the rest held no Python that parses."
    )
    rows: list[list[Cell]] = [
        ["given", cleaned.given], ["without a request", cleaned.without_request], ["duplicates", cleaned.duplicates],
        ["contaminated", cleaned.contaminated], ["without code that parses", cleaned.unparsable],
        ["too long for training", data.too_long], ["more than data.examples", data.left_out],
        ["trained on", len(data.train)], ["watched", len(data.watched)], ["held out", len(data.held_out)],
    ]  # fmt: skip
    return ResultTable(title="Data", note=note, columns=["rows", "number"], rows=rows)
