"""Which settings does trial number n try? A pure function of the study's seed, n, and the trials that are finished.

Optuna's sampler is started afresh for every trial, on a copy of the study in memory, with a seed made of both numbers.
So a study that is killed, at any moment and as often as one likes, proposes what it would have proposed; and workers
that share a study need not share a random generator. Trial 0 is the settings as they are.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from forerun.runs.search_space import Dimension, Value

SamplerName = Literal["tpe", "random"]
STARTUP_TRIALS = 8
"""Trials drawn at random before the sampler looks at scores."""


class NumberedProposals(BaseSampler):
    """Sampler whose values depend on the number of the trial, not on the process that asks."""

    def __init__(self, space: Sequence[Dimension], start: Mapping[str, Value], kind: SamplerName, seed: int):
        self.space, self.start, self.kind, self.seed = space, start, kind, seed
        self._points: dict[int, dict[str, Value]] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """No dimensions: every value is proposed by name, in `sample_independent`."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """No values, for the same reason."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The value that was proposed for this trial."""
        if trial.number not in self._points:
            self._points[trial.number] = self.propose(study, trial.number)
        return self._points[trial.number][param_name]

    def propose(self, study: optuna.Study, number: int) -> dict[str, Value]:
        """Values for trial `number` of `study`."""
        if number == 0:
            return dict(self.start)
        seed = int(np.random.default_rng((self.seed, number)).integers(2**31))
        scratch = optuna.create_study(direction="maximize", sampler=self._sampler(seed))
        trials = [t for t in study.get_trials(deepcopy=True) if t.number != number and _teaches(t)]
        # On a copy: ask() adds a trial, and the shared study has this one already.
        scratch.add_trials(trials)
        return suggest(scratch.ask(), self.space)

    def _sampler(self, seed: int) -> BaseSampler:
        if self.kind == "random":
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # optuna/samplers/_tpe/sampler.py (5.0): `group` warns
            return TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=STARTUP_TRIALS)


def suggest(trial: optuna.Trial, space: Sequence[Dimension]) -> dict[str, Value]:
    """Ask `trial` for every dimension that matters, in order."""
    point: dict[str, Value] = {}
    for dimension in space:
        if not dimension.is_asked(point):
            continue
        if dimension.values:
            point[dimension.name] = cast(Value, trial.suggest_categorical(dimension.name, dimension.values))
        else:
            point[dimension.name] = trial.suggest_float(
                dimension.name, dimension.low, dimension.high, log=dimension.is_logarithmic
            )
    return point


def _teaches(trial: FrozenTrial) -> bool:
    """Whether a sampler is shown the trial: finished ones, and those that run with all their values."""
    if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
        return True
    return trial.state == TrialState.RUNNING and "overrides" in trial.user_attrs


def without_fixed(space: Sequence[Dimension], overrides: Sequence[str]) -> list[Dimension]:
    """The space without what the user fixed by an override, or by one of a whole section of it."""
    paths = [override.partition("=")[0].strip() for override in overrides]
    if any(path.startswith("recipe.augmentation.policies") for path in paths):
        paths.append("augmentation")
    if "schedule.warmup_steps" in paths:
        paths.append("schedule.warmup_share")
    fixed_names: set[str] = set()
    for dimension in space:
        if any(dimension.name == path or dimension.name.startswith(f"{path}.") for path in paths):
            fixed_names.add(dimension.name)
    return [d for d in space if d.name not in fixed_names]
