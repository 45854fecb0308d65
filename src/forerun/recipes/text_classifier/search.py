"""Search space of `forerun tune text-classifier`; `test_search.py` proves that every dimension has an effect.

Trials are compared on the selection rows by the settings' metric; seed, number format, metric and split never vary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.data.sampler import padded_length
from forerun.recipes.text_classifier.augmentation.policies import IN_STEP
from forerun.recipes.text_classifier.data import EMBEDDING_METHODS, TextClassifierOptions, TextData, keeps_frozen
from forerun.recipes.text_classifier.workload import FROM_SCRATCH
from forerun.runs.recipe import Experiment
from forerun.runs.search_space import Dimension, Value
from forerun.settings.load import recipe_options
from forerun.settings.schema import Settings

TRIAL = ("recipe.judged_on=selection",)
METHOD, SHARE, WARMUP = "augmentation.method", "augmentation.probability", "schedule.warmup_share"
EDITS = ("swap", "deletion", "aeda", "keyboard", "character-swap")
"""Methods that need no lexicon or model."""
WITH_LEXICON = ("synonym", "insertion")
"""Methods that are searched too where `recipe.augmentation.lexicon` is set."""
STRENGTHS: dict[str, tuple[float, float, bool]] = {
    "edit": (0.05, 0.3, False), "mixup": (0.1, 1.0, True), "cutoff": (0.05, 0.3, False), "r-drop": (0.3, 5.0, True),
    "fgm": (0.01, 1.0, True),
}  # fmt: skip
"""Range of each kind of strength: low end, high end, whether on a logarithmic scale."""
NONE = "none"
POLICIES = "recipe.augmentation.policies"
IMBALANCED = 1.5
"""Ratio of the most to the least frequent label from which oversampling is searched."""
LENGTH_QUANTILES = (0.8, 0.95, 1.0)
"""Shares of the training texts that a searched sequence length keeps whole."""


def search_space(experiment: Experiment) -> Sequence[Dimension]:
    """The dimensions around these settings, with those left out that the task does not have."""
    settings, data = experiment.settings, _data(experiment)
    options = recipe_options(settings, TextClassifierOptions)
    is_small = settings.model.name == FROM_SCRATCH
    rates = (3e-4, 1e-2) if is_small else (1e-5, 1e-3)
    losses = ["cross-entropy", "focal", "class-balanced", *(["asymmetric"] if data.corpus.is_multi_label else [])]
    epochs = max(1, int(settings.schedule.epochs))
    dimensions = [
        Dimension(name="optimizer.learning_rate", low=rates[0], high=rates[1], is_logarithmic=True),
        Dimension(name="optimizer.weight_decay", low=1e-4, high=0.3, is_logarithmic=True),
        Dimension(name=WARMUP, low=0.0, high=0.15),
        Dimension(name="recipe.head_rate", low=1.0, high=30.0, is_logarithmic=True),
        Dimension(name="recipe.layer_decay", low=0.7, high=1.0),
        Dimension(name="recipe.dropout", low=0.0, high=0.6),
        Dimension(name="recipe.pooling", values=("cls", "mean", "attention")),
        Dimension(name="recipe.loss", values=tuple(losses)),
        Dimension(name="recipe.gamma", low=1.0, high=3.0, only_if=("recipe.loss", ("focal", "asymmetric"))),
        Dimension(name="recipe.balance", low=0.9, high=0.9999, only_if=("recipe.loss", ("class-balanced",))),
        Dimension(name="recipe.label_smoothing", low=0.0, high=0.15),
        Dimension(name="batch.micro_batch_size", values=_batches(settings)),
        *_choice("batch.sequence_length", _lengths(data)),
        *_choice("schedule.epochs", tuple(range(max(1, epochs - 1), epochs + 2))),
        *([] if is_small or not options.frozen_layers else [_frozen(options.frozen_layers)]),
        *_augmentation(options),
    ]
    counts = data.label_counts
    if max(counts) > IMBALANCED * max(1, min(counts)):
        dimensions.append(Dimension(name="recipe.augmentation.oversample", low=0.0, high=1.0))
    return dimensions


def search_start(experiment: Experiment) -> Mapping[str, Value]:
    """The settings themselves as a point of the space, clipped to it."""
    start: dict[str, Value] = {}
    for dimension in search_space(experiment):
        value = NONE if dimension.name == METHOD else _warmup(experiment) if dimension.name == WARMUP else None
        value = _setting_at(experiment.settings, dimension.name) if value is None else value
        if not dimension.is_asked(start) or value is None:
            continue
        start[dimension.name] = dimension.nearest(value)
    return start


def search_overrides(point: Mapping[str, Value], experiment: Experiment) -> list[str]:
    """Settings overrides of a point of the space."""
    overrides = [f"{n}={v}" for n, v in point.items() if not n.startswith("augmentation.") and n != WARMUP]
    method = point.get(METHOD)
    if method == NONE:
        overrides.append(f"{POLICIES}=[]")
    elif method is not None:
        strength = point[_strength_name(str(method))]
        overrides.append(f"{POLICIES}=[{{method: {method}, strength: {strength}, probability: {point[SHARE]}}}]")
    if WARMUP in point:
        size = int(point.get("batch.micro_batch_size", experiment.settings.batch.micro_batch_size))
        epochs = float(point.get("schedule.epochs", experiment.settings.schedule.epochs))
        steps = epochs * len(_data(experiment).positions) / (size * experiment.settings.micro_batches_per_step)
        overrides.append(f"schedule.warmup_steps={round(float(point[WARMUP]) * steps)}")
    return overrides


def step_class(settings: Settings) -> Settings:
    """Settings with all that does not change the step's cost set alike, so that such trials share one trace."""
    options = recipe_options(settings, TextClassifierOptions)
    policies = [
        {"method": policy.method} for policy in options.augmentation.policies if policy.method in IN_STEP
    ]  # fmt: skip
    recipe: dict[str, Any] = {
        **settings.recipe, "pooling": "mean", "loss": "cross-entropy", "label_smoothing": 0.0, "gamma": 2.0,
        "balance": 0.999, "dropout": 0.1, "head_rate": 2.0 if options.head_rate != 1 else 1.0,
        "layer_decay": 0.9 if options.layer_decay != 1 else 1.0,
        "augmentation": {"policies": policies},
    }  # fmt: skip
    optimizer = settings.optimizer.model_copy(update={"learning_rate": 1e-3, "weight_decay": 0.01})
    schedule = settings.schedule.model_copy(update={"epochs": 1, "max_steps": None, "warmup_steps": 0})
    return settings.model_copy(update={"recipe": recipe, "optimizer": optimizer, "schedule": schedule})


def searched_score(metrics: Mapping[str, float], settings: Settings) -> tuple[float, float]:
    """The metric on the selection rows, and its standard error (none between epochs, where it is not needed)."""
    options = recipe_options(settings, TextClassifierOptions)
    return metrics[f"selection_{options.metric}"], metrics.get("selection_standard_error", 0.0)


def _augmentation(options: TextClassifierOptions) -> list[Dimension]:
    """Methods and their strengths, without those that would make cached frozen states useless."""
    without = EMBEDDING_METHODS if keeps_frozen(options) else ()
    strengths = {name: interval for name, interval in STRENGTHS.items() if name not in without}
    edits = EDITS if options.augmentation.lexicon is None else (*EDITS, *WITH_LEXICON)
    methods = (NONE, *edits, *(name for name in strengths if name != "edit"))
    dimensions = [Dimension(name=METHOD, values=methods)]
    for name, (low, high, is_logarithmic) in strengths.items():
        for_methods = edits if name == "edit" else (name,)
        dimensions.append(
            Dimension(
                name=f"augmentation.{name}_strength", low=low, high=high, is_logarithmic=is_logarithmic,
                only_if=(METHOD, for_methods),
            )
        )  # fmt: skip
    return [*dimensions, Dimension(name=SHARE, low=0.1, high=0.9, only_if=(METHOD, methods[1:]))]


def _strength_name(method: str) -> str:
    return f"augmentation.{'edit' if method in (*EDITS, *WITH_LEXICON) else method}_strength"


def _batches(settings: Settings) -> tuple[int, ...]:
    """Half, the same and twice the micro-batch."""
    size = settings.batch.micro_batch_size
    return tuple(sorted({max(1, size // 2), size, 2 * size}))


def _lengths(data: TextData) -> tuple[int, ...]:
    """Lengths that keep most or all training texts whole, at most the settings'."""
    lengths = [len(sample.ids) for sample in data.encoded("train")]
    limit = data.settings.batch.sequence_length
    return tuple(sorted({padded_length(int(np.quantile(lengths, q)), limit) for q in LENGTH_QUANTILES}))


def _choice(name: str, values: tuple[Value, ...]) -> list[Dimension]:
    return [Dimension(name=name, values=values)] if len(values) > 1 else []


def _frozen(frozen: int) -> Dimension:
    return Dimension(name="recipe.frozen_layers", values=tuple(sorted({max(0, frozen - 1), frozen, frozen + 1})))


def _warmup(experiment: Experiment) -> float:
    settings = experiment.settings
    steps = settings.schedule.epochs * len(_data(experiment).positions) / settings.global_batch_size
    return settings.schedule.warmup_steps / max(1.0, steps)


def _setting_at(settings: Settings, path: str) -> Value | None:
    """Value of a setting by its dotted path; options of the recipe with their defaults."""
    value: Any = settings
    for key in path.split("."):
        value = recipe_options(settings, TextClassifierOptions) if key == "recipe" else getattr(value, key, None)
    return value


def _data(experiment: Experiment) -> TextData:
    data = experiment.data
    assert isinstance(data, TextData)
    return data
