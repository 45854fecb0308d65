"""What comes after a search? Finalists, the test once, the report, and the command that trains the winner again."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.records import CriterionResult
from forerun.report.html import render_results
from forerun.report.tables import ResultCurve, ResultTable
from forerun.settings.load import recipe_options
from forerun.settings.schema import Section, Settings
from forerun.tune import results
from forerun.tune.finalists import RetrainedFinalist, test_once, train_finalists, winner
from forerun.tune.proposals import SamplerName
from forerun.tune.search import Search
from forerun.tune.study import PrunerName, completed, finished
from forerun.verify.compare import failure_line, judge

BASELINES, JUDGED_ON = "baselines", ("recipe.judged_on=", "evaluation.judged_on=")
SCHEMA = "forerun.tune/1"


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Settings of a search as a command gives them, beside its limits."""

    target: str
    overrides: tuple[str, ...]
    sampler: SamplerName = "tpe"
    pruner: PrunerName = "median"
    finalists: int = 3
    starts: int = 3
    search: tuple[str, ...] = ()
    """Settings that are searched beside the recipe's, as `path=value,value`."""


@dataclass
class StudyResult:
    """Tables, curves and JSON document of a search as it stands."""

    tables: list[ResultTable]
    curves: list[ResultCurve]
    document: dict[str, Any]
    failure: str = ""
    """One line on the criteria that the winner misses on the test rows; empty where it misses none."""


class FoldOptions(Section):
    """Options of a recipe that a search reads."""

    model_config = {**Section.model_config, "extra": "ignore"}
    folds: int = 1
    metric: str = ""


def fold_options(settings: Settings) -> FoldOptions:
    """Folds and metric of a recipe's options."""
    return recipe_options(settings, FoldOptions)


def fixed_facts(settings: Settings, plan: StudySettings, split: str, gpu: str) -> dict[str, Any]:
    """Facts that must be the same for every trial and every worker of a study."""
    options = fold_options(settings)
    return {
        "target": plan.target,
        "settings": settings.hash,
        "seed": settings.seed,
        "precision": settings.precision,
        "metric": options.metric or "the recipe's own",
        "folds": options.folds,
        "split": split,
        "sampler": plan.sampler,
        "pruner": plan.pruner,
        "device": gpu,
        "set": list(plan.overrides),
        **({"search": list(plan.search)} if plan.search else {}),
    }


def finish(search: Search, plan: StudySettings, on_progress: Callable[[str], None]) -> StudyResult:
    """Train the finalists, test them once, and describe the study; without a score there are none of both."""
    finalists: list[RetrainedFinalist] = []
    test: Mapping[str, Any] | None = None
    if plan.finalists and completed(search.study):
        finalists = train_finalists(search, plan.finalists, plan.starts, on_progress)
        test = test_once(search, finalists)
    return describe(search, plan, finalists, test)


def describe(
    search: Search, plan: StudySettings, finalists: Sequence[RetrainedFinalist], test: Mapping[str, Any] | None
) -> StudyResult:
    """Tables, curves and document of a study as it is."""
    study = search.study
    noise, source = results.noise_of(study, finalists)
    baselines = study.user_attrs.get(BASELINES, {})
    ranking = results.study_importances(study, [d.name for d in search.space])
    scored = bool(completed(study))
    tables = [
        results.progress_table(
            study, search.limits.trials, search.remaining().expected, noise, f"{_score_note(search)}Noise: {source}."
        ),
        results.trials_table(study),
        results.price_table(study),
        *(results.asked_table(study, each.name, noise) for each in search.space if each.is_asked_for),
        *([results.importance_table(ranking, len(completed(study)))] if ranking else []),
        *([results.finalists_table(finalists, test)] if finalists else []),
        *([results.test_table(test)] if test is not None else []),
    ]
    curves = [results.history_curve(study, noise, source, baselines), results.pareto_curve(study)] if scored else []
    command = reproduce(plan, winner(finalists)) if finalists else None
    checked = _criteria(search, test)
    document = {
        "schema": SCHEMA,
        "study": study.study_name,
        "storage": search.storage,
        "fixed": study.user_attrs["fixed"],
        "stopped_by": search.stopped_by,
        "trials": results.trials_document(study.get_trials(deepcopy=False)),
        "finished": len(finished(study)),
        "seconds_left": search.remaining().model_dump(),
        "noise": {"value": noise, "source": source},
        "baselines": baselines,
        "importances": [vars(importance) for importance in ranking],
        "finalists": [
            {"trial": f.trial, "searched": f.searched_score, "score": f.score, "starts": [vars(s) for s in f.starts]}
            for f in finalists
        ],
        "test": test,
        "criteria": [result.model_dump() | {"bound": bound} for result, bound in checked],
        "reproduce": command,
        "tables": [table.model_dump(mode="json") for table in tables],
        "curves": [curve.model_dump(mode="json") for curve in curves],
    }
    failure = failure_line([result for result, _ in checked], " by the winner on the test rows")
    return StudyResult(tables, curves, document, failure)


def _score_note(search: Search) -> str:
    """What a score is, in a sentence, where the recipe says it."""
    note_for = getattr(search.recipe, "score_note", None)
    return "" if note_for is None else f"{note_for(search.experiment.settings)} "


def reproduce(plan: StudySettings, best: RetrainedFinalist) -> str:
    """The command that trains the winner again, from its best starting point, and judges it on the test rows."""
    words = ["forerun", "run", plan.target]
    own = [text for text in best.overrides if not text.startswith(JUDGED_ON)]
    for text in (*plan.overrides, *own, f"seed={best.best_start.seed}"):
        words += ["--set", text]
    return shlex.join(words)


def write_study_page(outcome: StudyResult, search: Search) -> Path:
    """Write the page of a study under its root; returns the file."""
    path = search.root / f"study-{search.study.study_name}" / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = outcome.document["reproduce"]
    note = f"Study {search.study.study_name}. Reproduce the winner: {command}" if command else "No winner yet."
    note = f"{outcome.failure} {note}" if outcome.failure else note
    title = f"Search of {outcome.document['fixed']['target']}"
    path.write_text(render_results(title, note, outcome.tables, outcome.curves), encoding="utf-8")
    return path


def _criteria(search: Search, test: Mapping[str, Any] | None) -> list[tuple[CriterionResult, float | None]]:
    """The recipe's criteria on scores, by the winner's figures on the test rows, each with its bound."""
    if test is None:
        return []
    metrics = test["metrics"]
    criteria = [each for each in search.recipe.criteria_for(search.base) if each.comparison != "error within"]
    return [(judge(each, metrics), each.bound_in(metrics)) for each in criteria]
