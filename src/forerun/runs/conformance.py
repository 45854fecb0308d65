"""Does a recipe provide what the run engine asks for? The suite that every recipe's tests run, those of others too.

    from forerun.runs.conformance import faults
    assert faults("my-recipe", ["model.config.hidden_size=32"]) == []

Loads the data of small settings on the CPU and makes one batch, one forward and one backward pass; nothing is trained.
Each fault is one sentence that names the part of `runs/recipe.py` that it breaks.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from forerun.extensions import RECIPES, extensions
from forerun.runs.recipe import Experiment
from forerun.runs.registry import load_recipe, summary
from forerun.settings.load import settings_from
from forerun.step.workload import Batch, SpansStep

PROTOCOL = ("SETTINGS", "CRITERIA", "load_experiment")
SWEEPABLE = ("VARIANTS", "comparison")
SEARCHABLE = (
    "TRIAL", "search_space", "search_start", "search_overrides", "step_class", "searched_score", "baseline_scores",
    "held_out_scores", "final_comparison", "criteria_for",
)  # fmt: skip


def faults(name: str, overrides: Sequence[str] = ()) -> list[str]:
    """What is wrong with the recipe `name` under its own settings with `overrides`; nothing is a recipe that conforms.

    Raises:
        RecipeNotFound: no such recipe is installed.
    """
    recipe: Any = load_recipe(name)
    module = f"{extensions(RECIPES)[name].value}.recipe"
    missing = [f"{module} has no {part}" for part in PROTOCOL if not hasattr(recipe, part)]
    if missing:
        return missing
    settings = settings_from(recipe.SETTINGS.model_dump(), overrides)
    experiment = recipe.load_experiment(settings)
    return [
        *_faults_of_names(name, recipe),
        *_faults_of_variants(recipe),
        *_faults_of_plan(experiment, recipe.load_experiment(settings, lengths_only=True)),
        *_faults_of_data(experiment),
        *_faults_of_step(experiment),
    ]


def _faults_of_names(name: str, recipe: Any) -> Iterator[str]:
    if not summary(name):
        yield "the package has no docstring: its first line is the summary that forerun recipes shows"
    if recipe.SETTINGS.workload != name:
        yield f"SETTINGS.workload is {recipe.SETTINGS.workload!r}: runs of the ledger would not find {name!r} again"
    for group in (SWEEPABLE, SEARCHABLE):
        parts = [part for part in group if hasattr(recipe, part)]
        if hasattr(recipe, group[1]) and len(parts) < len(group):
            yield f"{group[1]} without {', '.join(part for part in group if part not in parts)}"


def _faults_of_variants(recipe: Any) -> Iterator[str]:
    hashes: dict[str, str] = {}
    for variant, overrides in getattr(recipe, "VARIANTS", {}).items():
        other = hashes.setdefault(settings_from(recipe.SETTINGS.model_dump(), overrides).hash, variant)
        if other != variant:
            yield f"VARIANTS: {other} and {variant} are the same settings"


def _faults_of_plan(experiment: Experiment, without_rows: Experiment) -> Iterator[str]:
    settings, plan = experiment.settings, experiment.plan
    if not settings.data.examples:
        yield "settings.data.examples is not filled in"
    if without_rows.plan != plan:
        yield "load_experiment(lengths_only=True) has another plan: the forecast is not of the run"
    if plan.longest.length > settings.batch.sequence_length:
        yield f"the plan has {plan.longest.length} tokens, batch.sequence_length is {settings.batch.sequence_length}"
    shapes = Counter(experiment.data.tokens(indices)[1] for step in experiment.data.epoch_steps(0) for indices in step)
    planned = Counter()
    for shape, number in plan.shapes:
        planned[shape.size * shape.length] += number
    if shapes != planned:
        yield "data.tokens and plan disagree on the padded tokens of an epoch"


def _faults_of_data(experiment: Experiment) -> Iterator[str]:
    first, again = experiment.data.epoch_steps(0), experiment.data.epoch_steps(0)
    if _as_lists(first) != _as_lists(again):
        yield "data.epoch_steps(0) differs from call to call: a run cannot be resumed"
    batch = experiment.data.collate(first[0][0])
    for key, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            yield f"data.collate: {key} is no CPU tensor"
    _, padded = experiment.data.tokens(first[0][0])
    example = experiment.workload.example_batch(experiment.settings, len(first[0][0]), 8)
    ids = batch["input_ids"]
    if ids.numel() != padded:
        yield f"data.collate has {ids.numel()} padded tokens where data.tokens has {padded}"
    if _ranks_and_types(example) != _ranks_and_types(batch):
        yield f"workload.example_batch is {_ranks_and_types(example)}, data.collate is {_ranks_and_types(batch)}"


def _as_lists(steps: Sequence[Sequence[Sequence[int]]]) -> list[list[list[int]]]:
    return [[list(map(int, indices)) for indices in step] for step in steps]


def _ranks_and_types(batch: Batch) -> dict[str, tuple[int, torch.dtype]]:
    """Rank and type of each tensor; how many labels are valid is known of real rows only."""
    return {key: (value.ndim, value.dtype) for key, value in sorted(batch.items()) if key != "count"}


def _faults_of_step(experiment: Experiment) -> Iterator[str]:
    settings, workload = experiment.settings, experiment.workload
    torch.manual_seed(settings.seed)
    model = workload.build_model(settings, pretrained=False)
    batch = experiment.data.collate(experiment.data.epoch_steps(0)[0][0])
    if workload.count(batch) <= 0:
        yield "workload.count of the first batch is not above 0"
    loss = workload.loss_of(workload.outputs(model, batch), [batch]) if isinstance(workload, SpansStep) else None
    loss = loss or workload.loss(model, batch)
    if loss.sum.ndim or not torch.isfinite(loss.sum):
        yield f"workload.loss: a finite scalar is wanted; found {loss.sum.tolist()}"
        return
    loss.sum.backward()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in trainable):
        yield "workload.loss: its gradient is zero everywhere"
