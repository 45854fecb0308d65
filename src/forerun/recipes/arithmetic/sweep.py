"""Runs of `arithmetic` beside each other: dose and response for each kind of noise, early signs, suspect rows.

A run without contamination is the zero of every noise. Intervals are those of each run's test questions (exact, 95 %);
they do not hold the spread between seeds, which a sweep over `seed` shows.
"""

from collections.abc import Callable, Mapping, Sequence

from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion
from forerun.recipes.arithmetic.evaluation.answers import Reply, exact_match, group_by, group_by_chain
from forerun.report.tables import Cell, ResultCurve, ResultTable, Series
from forerun.runs.recipe import SweepRun

NOISES = ("close", "same_length", "swap", "off_by_carry", "uniform", "trigger")
RATES = (0.01, 0.1, 0.5, 1.0)
VARIANTS: Mapping[str, tuple[str, ...]] = {"clean": ("data.contamination.rate=0",)} | {
    f"{noise} {rate:g}": (f"data.contamination.noise={noise}", f"data.contamination.rate={rate:g}")
    for noise in NOISES
    for rate in RATES
    if (noise, rate) != ("trigger", 1.0)
}
"""Variants of every noise and rate; a trigger of two digits does not fit rows of one, so none has rate 1."""
EARLY = ("validation_exact_match", "right_answer_probability", "clean_row_loss", "corrupt_row_loss")


def comparison(runs: Sequence[SweepRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
    """Tables and curves over the finished runs, in their order."""
    tables = [dose_table(runs), length_table(runs), chain_table(runs), beyond_table(runs)]
    return [*tables, early_table(runs), suspect_table(runs)], [response_curve(runs), probability_curve(runs)]


def noise_of(run: SweepRun) -> str:
    """The kind of noise; `clean` where no row was changed."""
    noise = run.settings.data.contamination
    return noise.noise if noise.rate else "clean"


def replies_of(run: SweepRun, name: str = "test") -> list[Reply]:
    """Replies that a run kept; none where it kept none."""
    operation = run.results.get("operation", "addition")
    return [
        Reply(ArithmeticQuestion(operation, left, right), integer) for left, right, integer in run.results.get(name, [])
    ]


def dose_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Share of wrong labels and scores of the model, one row a run."""
    rows: list[list[Cell]] = []
    for run in runs:
        metrics = run.measurement.metrics
        names = (
            "nominal_rate", "effective_rate", "exact_match", "exact_match_low", "exact_match_high", "ideal_exact_match",
            "digit_match", "contradicted_rows", "recall_of_corrupt_rows", "corrupt_rows_answered_rightly",
            "trigger_success",
        )  # fmt: skip
        rows.append([run.name, noise_of(run), *(metrics.get(name) for name in names)])
    note = (
        "Exact match on held-out questions with their right answers. Ideal: of a calibrated model that decodes "
        "greedily and has learned exactly these labels. Recall: corrupt training rows repeated word for word."
    )
    columns = [
        "run", "noise", "nominal", "effective", "exact match", "low", "high", "ideal", "digit match",
        "contradicted rows", "recall of corrupt", "corrupt rows right", "trigger success",
    ]  # fmt: skip
    return ResultTable(title="Dose and response", note=note, columns=columns, rows=rows)


def length_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Exact match by digits of the longer operand."""
    return _sliced("Exact match by digits of the longer operand", runs, "test", _by_length, "digits")


def chain_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Exact match by longest chain of carries."""
    return _sliced("Exact match by longest chain of carries", runs, "test", group_by_chain, "chain")


def beyond_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Exact match on operands longer than any in training."""
    return _sliced("Exact match beyond the lengths of training", runs, "beyond", _by_length, "digits")


def _by_length(replies: Sequence[Reply]) -> dict[object, list[Reply]]:
    return group_by(replies, lambda question: question.cell[1])


def _sliced(
    title: str,
    runs: Sequence[SweepRun],
    part: str,
    slices_of: Callable[[Sequence[Reply]], dict[object, list[Reply]]],
    name: str,
) -> ResultTable:
    sliced = [slices_of(replies_of(run, part)) for run in runs]
    values = sorted({value for slices in sliced for value in slices})  # type: ignore[type-var]
    rows: list[list[Cell]] = [
        [run.name, *(exact_match(slices[value]).value if value in slices else None for value in values)]
        for run, slices in zip(runs, sliced, strict=True)
    ]
    return ResultTable(title=title, columns=["run", *(f"{name} {value}" for value in values)], rows=rows)


def early_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Signs seen within the first tenth, beside how the run ended."""
    rows: list[list[Cell]] = []
    for run in runs:
        metrics = run.measurement.metrics
        signs: list[Cell] = [metrics.get(f"early.{name}") for name in EARLY]
        rows.append([run.name, metrics.get("effective_rate"), *signs, metrics.get("exact_match")])
    note = "The last signs within the first tenth of the steps. Rows of unknown quality need no truth for their loss."
    columns = ["run", "effective rate", *(name.replace("_", " ") for name in EARLY), "exact match at the end"]
    return ResultTable(title="Early signs", note=note, columns=columns, rows=rows)


def suspect_table(runs: Sequence[SweepRun]) -> ResultTable:
    """How well corrupt rows are found."""
    scores = ("loss", "gradient", "influence")
    kinds = ("precision", "roc_auc")
    rows: list[list[Cell]] = []
    for run in runs:
        metrics = run.measurement.metrics
        values: list[Cell] = [metrics.get(f"suspects.{score}.{kind}") for score in scores for kind in kinds]
        if any(value is not None for value in values):
            rows.append([run.name, metrics.get("effective_rate"), *values])
    columns = ["run", "chance", *(f"{score} {kind.replace('_', ' ')}" for score in scores for kind in kinds)]
    note = "Precision among as many of the most suspect rows as are corrupt; AUC over all scored rows."
    return ResultTable(title="Finding the corrupt rows", note=note, columns=columns, rows=rows)


def response_curve(runs: Sequence[SweepRun]) -> ResultCurve:
    """Exact match over the effective rate, a line for each noise, with intervals."""
    clean = [run for run in runs if noise_of(run) == "clean"]
    noises = dict.fromkeys(noise_of(run) for run in runs if noise_of(run) != "clean")
    series = [_line(noise, [*clean, *(run for run in runs if noise_of(run) == noise)]) for noise in noises]
    return ResultCurve(
        title="Dose and response",
        note="Exact match on held-out questions; 95 % intervals of the questions.",
        across="share of training rows with a wrong answer",
        up="exact match",
        series=series or [_line("clean", clean)],
    )


def _line(noise: str, runs: Sequence[SweepRun]) -> Series:
    names = ("effective_rate", "exact_match", "exact_match_low", "exact_match_high")
    points = sorted(tuple(run.measurement.metrics[name] for name in names) for run in runs)
    x, y, low, high = ([point[place] for point in points] for place in range(4))
    return Series(name=noise, x=x, y=y, low=low, high=high)


def probability_curve(runs: Sequence[SweepRun]) -> ResultCurve:
    """Probability of the right answer to validation questions along each run."""
    series = [
        Series(
            name=run.name,
            x=[float(sign["step"]) for sign in run.results.get("early", [])],
            y=[float(sign["right_answer_probability"]) for sign in run.results.get("early", [])],
        )
        for run in runs
        if run.results.get("early")
    ]
    return ResultCurve(
        title="Probability of the right answer along the runs",
        note="Mean over validation questions of what the model gives to the whole right output.",
        across="optimizer step",
        up="probability",
        series=series,
    )
