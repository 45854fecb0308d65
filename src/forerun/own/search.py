"""Search space of `forerun tune` for a file of own data, and the end of such a search.

Trials are judged on the validation rows (`evaluation.judged_on: validation`), by the score that chooses the best
checkpoint; the test rows are scored once, by the finalists. Searched are the learning rate, its decay, the batch, the
epochs, and the rank and dropout of an adapter; `--search PATH=A,B` adds others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from forerun.own import experiment as own_experiment
from forerun.own.experiment import ValidationExperiment
from forerun.own.task import VALIDATION
from forerun.runs.recipe import Experiment
from forerun.runs.search_space import Dimension, Value
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.verify.compare import Criterion

TRIAL = ("evaluation.judged_on=validation",)
RATE, DECAY, BATCH, EPOCHS = (
    "optimizer.learning_rate", "optimizer.weight_decay", "batch.micro_batch_size", "schedule.epochs",
)  # fmt: skip
RANK, DROPOUT = "adapter.rank", "adapter.dropout"
RATE_FACTOR = 10.0
"""Learning rates are searched from a tenth of the settings' to ten times it."""
load_experiment = own_experiment.load_experiment


@dataclass(frozen=True)
class SearchedScore:
    """What trials are compared by."""

    name: str
    is_higher_better: bool

    def sign(self) -> float:
        """1, or -1 where less is better: a search looks for the highest."""
        return 1.0 if self.is_higher_better else -1.0


def search_space(experiment: Experiment) -> Sequence[Dimension]:
    """The dimensions around these settings."""
    settings = experiment.settings
    rate, size, rank = settings.optimizer.learning_rate, settings.batch.micro_batch_size, settings.adapter.rank
    dimensions = [
        Dimension(name=RATE, low=rate / RATE_FACTOR, high=rate * RATE_FACTOR, is_logarithmic=True),
        Dimension(name=DECAY, low=1e-4, high=0.3, is_logarithmic=True),
        Dimension(name=BATCH, values=_around(size)),
    ]
    if settings.schedule.max_steps is None and settings.schedule.epochs >= 1:
        dimensions.append(Dimension(name=EPOCHS, values=_around(int(settings.schedule.epochs))))
    if settings.adapter.kind == "lora":
        dimensions.append(Dimension(name=RANK, values=_around(rank)))
        dimensions.append(Dimension(name=DROPOUT, low=0.0, high=0.2))
    return dimensions


def _around(value: int) -> tuple[int, ...]:
    """Half, the same and twice a number."""
    return tuple(sorted({max(1, value // 2), value, 2 * value}))


def search_start(experiment: Experiment) -> Mapping[str, Value]:
    """The settings themselves as a point of the space, clipped to it."""
    start: dict[str, Value] = {}
    for dimension in search_space(experiment):
        section, _, name = dimension.name.partition(".")
        value = getattr(getattr(experiment.settings, section), name)
        start[dimension.name] = dimension.nearest(value)
    return start


def search_overrides(point: Mapping[str, Value], experiment: Experiment) -> list[str]:
    """Settings overrides of a point of the space."""
    return [f"{name}={value}" for name, value in point.items()]


def step_class(settings: Settings) -> Settings:
    """Settings with all that does not change the step's cost set alike, so that such trials share one trace."""
    optimizer = settings.optimizer.model_copy(update={"learning_rate": 1e-3, "weight_decay": 0.01})
    schedule = settings.schedule.model_copy(update={"epochs": 1, "max_steps": None, "warmup_steps": 0})
    return settings.model_copy(update={"optimizer": optimizer, "schedule": schedule})


def searched_score(metrics: Mapping[str, float], settings: Settings) -> tuple[float, float]:
    """The score on the validation rows, less being better negated; its standard error is not known here."""
    score = score_of(settings)
    return score.sign() * metrics[f"{VALIDATION}{score.name}"], 0.0


def score_note(settings: Settings) -> str:
    """What trials are compared by, in one sentence."""
    score = score_of(settings)
    negated = "" if score.is_higher_better else ", negated, as less is better"
    return f"Score: {score.name.replace('_', ' ')} of the validation rows{negated}."


def score_of(settings: Settings) -> SearchedScore:
    """`evaluation.metric`, or the workload's own score."""
    scores = own_experiment.scores_of(settings)
    name = settings.evaluation.metric or next(iter(scores))
    return SearchedScore(name, scores[name])


def baseline_scores(experiment: Experiment) -> dict[str, float]:
    """None: baselines are fitted beside the test rows, which a search leaves alone."""
    return {}


def held_out_scores(experiment: Experiment, step: TrainingStep) -> Any:
    """A finalist's answers to the test rows."""
    assert isinstance(experiment, ValidationExperiment)
    return experiment.held_out.judge(step)


def final_comparison(
    experiment: Experiment, scores: Mapping[str, Sequence[Any]], winner: str, start: int
) -> dict[str, Any]:
    """Test scores of the winner's starting point `start` beside the baselines, and of every finalist."""
    assert isinstance(experiment, ValidationExperiment)
    score = score_of(experiment.settings)
    judged = {name: [experiment.held_out.baselines(one) for one in several] for name, several in scores.items()}
    metrics = judged[winner][start].metrics
    value, low, high = (metrics.get(f"{score.name}{end}", metrics[score.name]) for end in ("", ".low", ".high"))
    ends, baselines = (f"{score.name}.low", f"{score.name}.high"), {
        name.removesuffix(f".{score.name}"): own for name, own in metrics.items() if name.endswith(f".{score.name}")
    }  # fmt: skip
    leads = {
        name: sorted(score.sign() * (each - own) for each in (low, value, high)) for name, own in baselines.items()
    }
    own_scores = {name: [one.metrics[score.name] for one in several] for name, several in judged.items()}
    gaps = {name: score.sign() * (fmean(own_scores[winner]) - fmean(own)) for name, own in own_scores.items()}
    return {
        "metric": score.name,
        "rows": experiment.test_rows,
        "metrics": {name: own for name, own in metrics.items() if name == score.name or name in ends} | {
            f"{name}.{score.name}": own for name, own in baselines.items()
        },
        "over_baselines": {name: [middle, least, most] for name, (least, middle, most) in leads.items()},
        **({} if score.is_higher_better else {"lead": f"the baseline's {score.name} minus its own, as less is better"}),
        "interval": "the interval of the winner's score, the baseline taken as exact",
        "finalists": {
            name: {
                "scores": several,
                "below_winner": [0.0, 0.0, 0.0] if name == winner else [gaps[name], None, None],
            }
            for name, several in own_scores.items()
        },
    }  # fmt: skip


def criteria_for(settings: Settings) -> tuple[Criterion, ...]:
    """What the winner must meet on the test rows."""
    return own_experiment.criteria_for(settings)
