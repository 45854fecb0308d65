"""A run of a generic workload on somebody's own data: read, split, tokenise, forecast, train, judge.

What was recognised of the data (`format`, `fields`, `labels`) and its sizes are filled into the settings of the run.
`evaluation.examples` is the most validation rows that are scored between epochs; 0 scores all of them. What a model
needs to be used later is written into the run's folder before the first step (`facts.py`).
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from forerun.data.own.format_parts import TAGGED
from forerun.data.own.rows import is_hub_id
from forerun.data.sided_tokens import SidedData
from forerun.data.token_data import TokenData, TokenSample
from forerun.errors import BadData, InvalidSettings, nearest
from forerun.forecasting.request import Generated
from forerun.models.first_weights import is_from_scratch
from forerun.own.classification import open_classification, scores_of_labels
from forerun.own.embedding import RETRIEVAL_SCORES, open_embedding
from forerun.own.facts import ASSETS, write_assets, write_generation
from forerun.own.gguf_export import write_gguf
from forerun.own.language import open_language
from forerun.own.masked import HiddenSamples, MaskedData, open_masked
from forerun.own.onnx_export import write_onnx
from forerun.own.parts import OwnParts, read_parts
from forerun.own.preference import PREFERENCE_SCORES, open_preference
from forerun.own.rewriting import open_rewriting
from forerun.own.tagging import TAG_SCORES, open_tagging
from forerun.own.task import COST_CRITERIA, Task, criteria_of_task, judging_score
from forerun.own.token_scores import TOKEN_SCORES
from forerun.own.tokens import RUN_FOLDER, cutting_rule
from forerun.own.unpaired import UNPAIRED_SCORES, open_unpaired
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Experiment, Judgement
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.ranks import is_follower
from forerun.verify.compare import Criterion


class _Open(Protocol):
    def __call__(self, settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task: ...


def open_answers(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of preferred answers, in pairs or one by one.

    Raises:
        BadData, InvalidSettings: as `open_preference` and `open_unpaired`.
    """
    open_rows = open_preference if parts.format == "preference" else open_unpaired
    return open_rows(settings, parts, lengths_only=lengths_only)


TASKS: dict[str, _Open] = {
    "sequence-classification": open_classification, "causal-lm": open_language, "token-classification": open_tagging,
    "masked-lm": open_masked, "seq2seq-lm": open_rewriting, "embedding": open_embedding, "preference": open_answers,
}  # fmt: skip
"""What opens each workload."""
TOKEN_WORKLOADS = ("causal-lm", "masked-lm", "seq2seq-lm")
"""Judged by their loss: tables of counts have no accuracy."""
SCORES = {
    "causal-lm": TOKEN_SCORES, "masked-lm": TOKEN_SCORES, "seq2seq-lm": TOKEN_SCORES,
    "token-classification": TAG_SCORES, "embedding": RETRIEVAL_SCORES, "preference": PREFERENCE_SCORES,
}  # fmt: skip
"""Scores of the workloads whose scores do not depend on their labels; the first is the one that they are judged by."""
FORMATS = {
    "sequence-classification": ("labelled",),
    "causal-lm": ("text", "messages", "conversations", "alpaca", "prompt-completion"),
    "token-classification": TAGGED,
    "masked-lm": ("text",),
    "seq2seq-lm": ("translation", "prompt-completion", "alpaca"),
    "embedding": ("pairs", "triplets"),
    "preference": ("preference", "unpaired-preference"),
}
"""Formats of rows that each workload can learn from, the likeliest first."""


def load_experiment(settings: Settings, *, lengths_only: bool = False, run_folder: Path | None = None) -> Experiment:
    """Read, split and tokenise `data.source`; fill the sizes into the settings. A forecast needs lengths only.

    `run_folder` is that of a run that goes on or is exported, whose own tokenizer stays.

    Raises:
        BadData: the rows cannot be read, or are none that the workload learns from.
        InvalidSettings: the model, its tokenizer or the settings do not go with the data.
    """
    start = time.perf_counter()
    source = settings.data.source or ""
    if lengths_only and not Path(source).exists() and not is_hub_id(source):
        raise BadData(
            f"data.source: {source} is not on this machine. Check the path; or forecast without the data: leave "
            f"data.source out, and set data.examples (training rows) and data.mean_tokens (of one)."
        )
    parts = _parts(settings)
    task = _open_again(settings, parts, run_folder, lengths_only=lengths_only)
    plan = task.data.plan()
    if task.assumptions:
        plan = replace(plan, assumptions=(*plan.assumptions, *task.assumptions))
    metric = settings.evaluation.metric
    if metric is not None and metric not in task.scores:
        raise InvalidSettings(
            f"evaluation.metric: a score of {settings.workload}; found {metric!r}. Nearest: "
            f"{nearest(metric, list(task.scores))}."
        )
    read_as = {"format": task.facts.format, "fields": task.facts.fields}
    if task.facts.label_kind != "none":
        read_as["labels"] = task.facts.label_kind
    sizes = {
        "data": settings.data.model_copy(update={"examples": task.train_size, **read_as}),
        # rows, of which samples are made: what is read again then draws the same ones
        "evaluation": settings.evaluation.model_copy(
            update={"examples": len(parts.split(settings.evaluation)["validation"])}
        ),
    }
    full = settings.model_copy(update=sizes)
    criteria = criteria_for(full)
    whole = Experiment(
        settings=full,
        workload=task.workload,
        data=task.data,
        plan=plan,
        load_seconds=time.perf_counter() - start,
        final_examples=task.final_examples,
        evaluation_examples=task.watched_size,
        evaluate=lambda step, number: task.evaluate(step),
        judge=task.judge,
        baselines=lambda answers: _with_notes(task.baselines(answers), parts, settings),
        criteria=criteria,
        save_assets=partial(_save_assets, task, full),
        write_onnx=lambda step, folder: write_onnx(step, task.facts, _example_samples(task), folder),
        write_gguf=lambda step, folder: write_gguf(step, task.tokenizer, task.facts, _example_samples(task), folder),
        trivial=task.trivial,
        best_by=task.best_by(metric),
        before=partial(_before, task, full),
        generated=task.generated,
    )
    return whole if settings.evaluation.judged_on == "test" else _judged_on_validation(whole, task)


@dataclass(frozen=True, kw_only=True)
class ValidationExperiment(Experiment):
    """A run that never scores the test rows: a trial of a search."""

    held_out: Experiment
    """The same run, judged on the test rows."""
    test_rows: int


def _judged_on_validation(whole: Experiment, task: Task) -> ValidationExperiment:
    own = {each.name: getattr(whole, each.name) for each in fields(Experiment)} | {
        "judge": task.evaluate, "baselines": lambda scores: Judgement(scores, []), "criteria": COST_CRITERIA,
        "final_examples": task.watched_size, "generated": Generated(),
    }  # fmt: skip
    return ValidationExperiment(**own, held_out=whole, test_rows=task.test_size)


def criteria_for(settings: Settings) -> tuple[Criterion, ...]:
    """Success criteria of a run on own data; its data are not read."""
    name = judged_by(settings)
    return criteria_of_task(name, is_higher_better=scores_of(settings)[name])


def judged_by(settings: Settings) -> str:
    """The score of the success criterion: `evaluation.metric`, else, or where no baseline is fit for it, its own."""
    scores, metric = scores_of(settings), settings.evaluation.metric
    has_none = settings.workload == "preference" or (settings.workload in TOKEN_WORKLOADS and metric == "accuracy")
    return judging_score(scores, None if has_none else metric)


def scores_of(settings: Settings) -> dict[str, bool]:
    """Scores of a workload, its own first, and whether higher is better."""
    if settings.workload == "sequence-classification":
        return scores_of_labels(settings.data.labels)
    if settings.preference.is_unpaired:
        return UNPAIRED_SCORES
    return SCORES[settings.workload]


def _example_samples(task: Task) -> Sequence[TokenSample]:
    """Training samples as the model is asked them: with words hidden, and of several texts the first."""
    match task.data:
        case TokenData():
            return task.data.samples
        case MaskedData():
            return HiddenSamples(task.data.inner.samples, task.data.masking)  # type: ignore[arg-type]
        case SidedData():
            return next(iter(task.data.sides.values()))
        case _:
            raise AssertionError(f"no samples are known of {type(task.data).__name__}")


def _before(task: Task, settings: Settings, step: TrainingStep, folder: Path) -> None:
    """Keep what is needed to use the model, and what the workload asks of the untrained model.

    Raises:
        InvalidSettings: the run in `folder` was begun with a tokenizer that cuts texts otherwise.
    """
    rule = cutting_rule(folder / ASSETS) if is_from_scratch(settings) else None
    if rule is not None and rule != json.loads(task.tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]:
        raise InvalidSettings(
            f"{folder.name}: a run goes on with the tokenizer that it began with; found one that cuts texts otherwise. "
            f"Start a new run."
        )
    if not is_follower():
        write_assets(folder / ASSETS, task.facts, task.tokenizer, settings)
    if task.before is not None:
        task.before(step, folder)


def _save_assets(task: Task, settings: Settings, folder: Path) -> None:
    """What users of an exported model need with its weights."""
    write_assets(folder, task.facts, task.tokenizer, settings)
    write_generation(folder, task.facts)
    if task.after is not None:
        task.after(folder)


def _open_again(settings: Settings, parts: OwnParts, run_folder: Path | None, *, lengths_only: bool) -> Task:
    """The task of the settings, with the tokenizer of the run in `run_folder` if it learned one by another rule."""
    token = RUN_FOLDER.set(None if run_folder is None else run_folder / ASSETS)
    try:
        return TASKS[settings.workload](settings, parts, lengths_only=lengths_only)
    finally:
        RUN_FOLDER.reset(token)


def open_task(settings: Settings) -> Task:
    """The task of the settings' workload and data.

    Raises:
        BadData: as `load_experiment`.
    """
    return TASKS[settings.workload](settings, _parts(settings), lengths_only=False)


def _parts(settings: Settings) -> OwnParts:
    parts = read_parts(settings)
    allowed = FORMATS[settings.workload]
    if parts.format not in allowed:
        others = [workload for workload, formats in FORMATS.items() if parts.format in formats]
        raise BadData(
            f"data.format: {settings.workload} learns from rows of {' or '.join(allowed)}; {settings.data.source} has "
            f"rows of {parts.format}. Set data.format and data.fields, or set workload to {' or '.join(others)}."
        )
    return parts


def _with_notes(judgement: Judgement, parts: OwnParts, settings: Settings) -> Judgement:
    """The judgement, and a table of the parts: how much of them was scored, and what the data lost on the way."""
    sizes = [("training", parts.train), ("validation", parts.validation), ("test", parts.test)]
    rows: list[list[Cell]] = [[name, str(len(own))] for name, own in sizes]
    judging = parts.split(settings.evaluation)
    for (name, own), setting in zip(sizes[1:], ("examples", "test_examples"), strict=True):
        if len(judging[name]) < len(own):
            chance = f"{len(judging[name])}, drawn by chance; evaluation.{setting} sets another number"
            rows.append([f"{name}, scored", chance])
    for note in parts.notes:
        what, _, detail = note.partition(": ")
        rows.append([what, detail])
    table = ResultTable(title="Rows", note=f"Rows of {parts.format}.", columns=["", ""], rows=rows)
    return replace(judgement, tables=[*judgement.tables, table])
